"""Topics that moved, and the priority that fades after the last read."""

from __future__ import annotations

import pytest

from tests.unit.delivery.kit import TS, make_topic
from topicd.shards.delivery.ready import Ready, effective_priority


def test_first_in_first_out_and_each_at_most_once() -> None:
    ready = Ready()
    a, b = make_topic("a", 1), make_topic("b", 2)
    for topic in (a, b, a, a):
        ready.add(topic)
    assert len(ready) == 2
    assert [ready.next(), ready.next(), ready.next()] == [a, b, None]


def test_one_that_moves_again_while_it_is_served_comes_again() -> None:
    ready, topic = Ready(), make_topic()
    ready.add(topic)
    assert ready.next() is topic
    ready.add(topic)
    assert ready.next() is topic


def test_one_that_is_gone_is_not_served() -> None:
    ready, topic = Ready(), make_topic()
    ready.add(topic)
    ready.forget(topic)
    ready.forget(topic)
    assert ready.next() is None


def test_a_topic_that_is_read_comes_first_for_a_while() -> None:
    topic = make_topic(priority=10)
    assert effective_priority(topic, TS) == 10  # never read
    topic.last_read_ms = TS
    boosted = [effective_priority(topic, TS + age) for age in (0, 30_000, 60_000, 299_999, 300_000)]
    assert boosted[:3] == [510, 260, 135]
    assert boosted[3:] == [10, 10]


def test_a_clock_that_went_back_boosts_no_more_than_a_read_now() -> None:
    topic = make_topic()
    topic.last_read_ms = TS
    assert effective_priority(topic, TS - 1_000_000) == effective_priority(topic, TS)


@pytest.mark.parametrize("priority", [None, 0, -5])
def test_without_auto_priority_only_the_own_one_counts(priority: int | None) -> None:
    topic = make_topic(priority=priority, auto_priority=False)
    topic.last_read_ms = TS
    assert effective_priority(topic, TS) == (priority or 0)
