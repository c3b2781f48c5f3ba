"""Numbers and verdicts, by themselves; what comes of them together is in test_outbox."""

from __future__ import annotations

import pytest

from topicd.errors import (
    ConnectionLost,
    FormatError,
    NotReady,
    OutOfOrder,
    Throttled,
    TopicdError,
    TopicFull,
    TopicNotFound,
    WrongShard,
)
from topicd.ipc.protocol.once import (
    TOPICS_KEPT,
    Numbers,
    Verdict,
    expected_number,
    new_producer_id,
    outcome_unknown,
    verdict,
)
from topicd.limits import LASTING


@pytest.mark.parametrize(
    ("error", "first", "later"),
    [
        (Throttled("x"), Verdict.RETRY, Verdict.RETRY),
        (NotReady("x"), Verdict.RETRY, Verdict.RETRY),
        (WrongShard("x"), Verdict.RETRY, Verdict.RETRY),
        (ConnectionLost("x"), Verdict.RETRY, Verdict.RETRY),
        (OutOfOrder("x", expected=3), Verdict.RENUMBER, Verdict.RENUMBER),
        (TopicNotFound("x"), Verdict.REOPEN, Verdict.GIVE_UP),
        (TopicFull("x"), Verdict.GIVE_UP, Verdict.GIVE_UP),
        (FormatError("x"), Verdict.GIVE_UP, Verdict.GIVE_UP),
    ],
)
def test_what_an_error_means(error: TopicdError, first: Verdict, later: Verdict) -> None:
    assert verdict(error, reopened=False) is first
    assert verdict(error, reopened=True) is later


def test_only_a_lost_answer_leaves_the_outcome_unknown() -> None:
    assert outcome_unknown(ConnectionLost("x"))
    assert outcome_unknown(FormatError("x"))
    assert not any(outcome_unknown(error) for error in (TopicFull("x"), Throttled("x"), OutOfOrder("x")))


@pytest.mark.parametrize(("detail", "expected"), [({"expected": 4}, 4), ({}, 0), ({"expected": "4"}, 0)])
def test_the_number_that_the_daemon_expects(detail: dict[str, object], expected: int) -> None:
    assert expected_number(OutOfOrder("x", **detail)) == expected
    assert expected_number(TopicFull("x", **detail)) == 0
    assert expected_number(None) == 0


def test_numbers_count_by_topic_and_begin_anew_with_a_new_identity() -> None:
    numbers = Numbers()
    before = numbers.producer_id
    assert [numbers.take(1), numbers.take(1), numbers.take(2), numbers.take(1)] == [1, 2, 1, 3]
    numbers.continue_at(1, 2)
    assert (numbers.next(1), numbers.next(2), numbers.next(3)) == (2, 2, 1)
    numbers.renew()
    assert numbers.producer_id != before
    assert numbers.next(1) == 1


def test_more_topics_than_are_worth_it_are_noticed() -> None:
    numbers = Numbers()
    for topic_id in range(TOPICS_KEPT):
        numbers.take(topic_id)
    assert not numbers.crowded
    numbers.take(TOPICS_KEPT)
    assert numbers.crowded


def test_producer_ids_are_neither_none_nor_lasting() -> None:
    made = {new_producer_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(0 < producer_id < LASTING for producer_id in made)
