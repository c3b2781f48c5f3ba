"""A loss fails a query until just that loss is acknowledged."""

from __future__ import annotations

import logging
import re

import pytest

from topicd.errors import InvalidRequest
from topicd.spark.loss import Gap, Policy, RecordsLost, Seqs, parse_gaps

TOLD = re.compile(r"acknowledgeGaps=(\{.*\}),")


def given(error: RecordsLost) -> str:
    """The option as the error says it."""
    found = TOLD.search(error.message)
    assert found is not None, error.message
    return found[1]


def acknowledging(text: str) -> Policy:
    return Policy(acknowledged=parse_gaps(text))


def test_a_loss_is_acknowledged_with_what_its_error_says(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(RecordsLost, match=r"topic t: records 101 to 500 are gone \(cap\)") as raised:
        Policy().report("t", 5, 101, 500, "cap")
    assert (raised.value.detail["first_seq"], raised.value.detail["last_seq"]) == (101, 500)
    with caplog.at_level(logging.WARNING, "topicd.spark"):
        acknowledging(given(raised.value)).report("t", 5, 101, 500, "cap")
    assert caplog.messages == ["topic t: records 101 to 500 are gone (cap); acknowledged; reading on without them"]


def test_what_is_acknowledged_covers_parts_of_itself_and_nothing_else() -> None:
    policy = acknowledging('{"t": {"id": 5, "seqs": "101-500"}}')
    policy.report("t", 5, 150, 200, "cap")
    for topic, topic_id, first, last, left in [
        ("t", 5, 101, 501, "501 to 501"),
        ("t", 5, 90, 600, "90 to 100 and 501 to 600"),
        ("t", 5, 1, 100, "1 to 100"),
        ("t", 6, 101, 500, "101 to 500"),
        ("u", 5, 101, 500, "101 to 500"),
    ]:
        with pytest.raises(RecordsLost, match=f"records {left} are gone"):
            policy.report(topic, topic_id, first, last, "cap")


def test_a_gap_that_goes_on_behind_the_task_is_acknowledged_at_once() -> None:
    with pytest.raises(RecordsLost, match=r"records 5 to 10 are gone") as raised:
        Policy().report("t", 5, 5, 10, "power_loss", gap_to=99)
    policy = acknowledging(given(raised.value))
    policy.report("t", 5, 11, 99, "power_loss")
    with pytest.raises(RecordsLost):
        policy.report("t", 5, 11, 100, "power_loss")


def test_a_topic_that_was_created_again_is_acknowledged_once() -> None:
    with pytest.raises(RecordsLost, match="records above 100, if there were any, are gone") as raised:
        Policy().report_rest("t", 5, 100, "recreated")
    policy = acknowledging(given(raised.value))
    policy.report_rest("t", 5, 100, "recreated")
    with pytest.raises(RecordsLost):
        policy.report_rest("t", 5, 99, "recreated")
    with pytest.raises(RecordsLost):
        policy.report_rest("t", 6, 100, "recreated")  # and again


def test_several_gaps_of_several_topics() -> None:
    text = '{"t": {"id": 5, "seqs": "1-3, 7,9-"}, "u": {"id": 6, "seqs": "1-"}}'
    assert parse_gaps(text) == (
        Gap("t", 5, Seqs(1, 3)),
        Gap("t", 5, Seqs(7, 7)),
        Gap("t", 5, Seqs(9, None)),
        Gap("u", 6, Seqs(1, None)),
    )
    with pytest.raises(RecordsLost, match=r"records 4 to 6 and 8 to 8 are gone"):
        acknowledging(text).report("t", 5, 1, 20, "cap")


def test_without_failing_nothing_has_to_be_acknowledged(caplog: pytest.LogCaptureFixture) -> None:
    Policy(fail=False).report("t", 5, 1, 2, "cap")
    Policy(fail=False).report_rest("t", 5, 2, "recreated")
    assert caplog.messages == [
        "topic t: records 1 to 2 are gone (cap); reading on without them",
        "topic t: records above 2, if there were any, are gone (recreated); reading on without them",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "1",
        '{"t": "1-5"}',
        '{"t": {"seqs": "1-5"}}',
        '{"t": {"id": 5}}',
        '{"t": {"id": true, "seqs": "1"}}',
        '{"t": {"id": 5, "seqs": "5-1"}}',
        '{"t": {"id": 5, "seqs": "0-1"}}',
        '{"t": {"id": 5, "seqs": "-5"}}',
        '{"t": {"id": 5, "seqs": ""}}',
        '{"t": {"id": 5, "seqs": "1", "more": 1}}',
    ],
)
def test_what_names_no_gap_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="option acknowledgeGaps must be JSON"):
        parse_gaps(text)
