"""Queues in `topicctl status` and `top`."""

from __future__ import annotations

import pytest

from topicd.cli.show.queues import mode_text, rate_rows, row

STATS = {
    "topic": "thumbs",
    "topic_id": 3,
    "ready": 1_200,
    "in_flight": 4,
    "delayed": 0,
    "dead_lettered": 2,
    "oldest_ready_ts": None,
    "acked": 100,
    "failed": 5,
    "workers": 2,
    "paused": None,
    "draining": False,
}


def test_a_queue_is_a_row() -> None:
    assert row(STATS) == ["thumbs", "1,200", "4", "0", "2", "-", "100", "5", "2", "open"]


def test_rates_are_of_the_time_between_two_looks() -> None:
    later = {**STATS, "acked": 300, "failed": 6}
    (shown,) = rate_rows({"queues": [STATS]}, {"queues": [later]}, 2.0)
    assert shown[6:8] == ["100", "0.50"]
    (anew,) = rate_rows({"queues": [{**STATS, "topic_id": 2}]}, {"queues": [later]}, 2.0)
    assert anew[6:8] == ["0", "0"]
    assert rate_rows({}, {}, 1.0) == []


@pytest.mark.parametrize(
    ("mode", "text"),
    [
        ({"paused": None, "draining": False}, "open"),
        ({"paused": None, "draining": True}, "draining"),
        ({"paused": {"by": "breaker", "reason": "50 of 100\nfailed"}}, "paused by breaker: 50 of 100 failed"),
    ],
)
def test_a_mode_is_a_phrase(mode: dict[str, object], text: str) -> None:
    assert mode_text(mode) == text
