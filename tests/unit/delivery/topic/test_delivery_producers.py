"""Who has sent which batch: retries, order, failures, bounds, restarts."""

from __future__ import annotations

import pytest

from topicd.errors import Conflict, OutOfOrder
from topicd.limits import LASTING
from topicd.shards.delivery.topic import producers
from topicd.shards.delivery.topic.producers import ANSWERS_KEPT, ANSWERS_SAVED, PRODUCERS_KEPT, ProducerTable

P = 0xFEED


def sent(count: int, first_no: int = 1) -> ProducerTable:
    """A producer that sent batches of ten records each."""
    table = ProducerTable()
    for number in range(first_no, first_no + count):
        table.assign(P, number, (number - first_no) * 10 + 1, 10)
    return table


def test_a_producer_nobody_knows_may_begin_anywhere() -> None:
    assert ProducerTable().is_next(P, 1)
    assert ProducerTable().is_next(P, 500)


def test_the_next_number_is_next_and_no_other_is() -> None:
    table = sent(3)
    assert table.is_next(P, 4)
    assert not any(table.is_next(P, number) for number in (0, 1, 3, 5, 2**64 - 1))


def test_a_retry_gets_the_first_answer() -> None:
    assert sent(3).lookup(P, 2) == (2, 11, 10)


def test_a_number_too_early_says_which_is_expected() -> None:
    with pytest.raises(OutOfOrder) as caught:
        sent(3).lookup(P, 5)
    assert caught.value.detail == {"expected": 4}
    assert caught.value.retriable


def test_a_number_too_old_is_a_conflict_and_not_stored_again() -> None:
    table = sent(ANSWERS_KEPT + 5)
    assert table.lookup(P, 6) == (6, 51, 10)
    with pytest.raises(Conflict):
        table.lookup(P, 5)


def test_a_failed_batch_gives_its_number_back() -> None:
    table = sent(3)
    table.take_back(P, 3)
    assert table.is_next(P, 3)
    table.assign(P, 3, 99, 1)
    assert table.lookup(P, 3) == (3, 99, 1)


def test_a_failed_batch_is_in_no_snapshot_though_others_have_its_seqs_by_then() -> None:
    table = sent(3)
    table.take_back(P, 3)
    [[_, last_no, answers]] = table.to_snapshot(visible=1000)
    assert (last_no, [answer[0] for answer in answers]) == (2, [1, 2])


def test_a_failure_takes_back_everything_behind_it_in_any_order() -> None:
    for order in ((5, 4, 3), (3, 4, 5), (4, 5, 3)):
        table = sent(5)
        for number in order:
            table.take_back(P, number)
        assert table.is_next(P, 3)
        assert table.lookup(P, 2) == (2, 11, 10)


def test_taking_back_from_an_unknown_producer_changes_nothing() -> None:
    table = ProducerTable()
    table.take_back(P, 1)
    assert len(table) == 0


def test_the_table_is_bounded_and_forgets_who_wrote_longest_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "PRODUCERS_KEPT", 3)
    table = ProducerTable()
    for seq, producer in enumerate((1, 2, 3, 1), start=1):
        table.assign(producer, seq, seq, 1)
    table.assign(4, 1, 5, 1)
    assert len(table) == 3
    assert table.lookup(4, 1) == (1, 5, 1)
    assert table.lookup(1, 4) == (4, 4, 1)
    assert table.is_next(2, 77)  # a stranger again


def test_no_newcomer_is_forgotten_at_once() -> None:
    """A retry of a batch that was just taken must find it, however many producers there are."""
    table = ProducerTable()
    for producer in range(1, PRODUCERS_KEPT + 50):
        table.assign(producer, 1, producer, 1)
        assert table.lookup(producer, 1) == (1, producer, 1)
    assert len(table) == PRODUCERS_KEPT


def test_a_snapshot_holds_what_is_stored_and_nothing_under_way() -> None:
    table = sent(4)
    restored = ProducerTable()
    restored.restore(table.to_snapshot(visible=25))
    assert restored.lookup(P, 2) == (2, 11, 10)
    assert restored.is_next(P, 3)


def test_a_producer_of_which_nothing_is_stored_is_not_in_the_snapshot() -> None:
    assert sent(1).to_snapshot(visible=9) == []


def test_a_snapshot_is_bounded() -> None:
    rows = sent(ANSWERS_SAVED + 20).to_snapshot(visible=10**9)
    assert [len(answers) for _, _, answers in rows] == [ANSWERS_SAVED]
    restored = ProducerTable()
    restored.restore(rows)
    assert restored.lookup(P, 21)[0] == 21
    with pytest.raises(Conflict):
        restored.lookup(P, 20)


def test_replay_of_what_the_snapshot_knows_changes_nothing() -> None:
    table = sent(3)
    for number in (1, 2, 3):
        table.replay_batch(P, number, 999, 999)
    assert table.lookup(P, 3) == (3, 21, 10)
    table.replay_batch(P, 4, 31, 10)
    assert table.lookup(P, 4) == (4, 31, 10)
    assert table.is_next(P, 5)


def test_numbers_need_not_begin_at_one() -> None:
    table = sent(3, first_no=1_000_000)
    assert table.lookup(P, 1_000_001) == (1_000_001, 11, 10)
    assert table.is_next(P, 1_000_003)


def test_a_lasting_producer_begins_at_one() -> None:
    table = ProducerTable()
    assert table.is_next(LASTING, 1) and not table.is_next(LASTING, 2)
    with pytest.raises(OutOfOrder) as caught:
        table.lookup(LASTING, 2)
    assert caught.value.detail == {"expected": 1}


def test_a_lasting_producer_outlives_any_number_of_others_until_it_is_released() -> None:
    table = ProducerTable()
    table.assign(LASTING + 1, 1, 1, 1)
    for seq in range(2, PRODUCERS_KEPT + 50):
        table.assign(seq, 1, seq, 1)
    restored = ProducerTable()
    restored.restore(table.to_snapshot(visible=10**9))
    for one in (table, restored):
        assert one.expected(LASTING + 1, visible=10**9) == 2
        assert len(one) == PRODUCERS_KEPT + 1
        one.release(LASTING + 1)
        assert one.lookup(LASTING + 1, 1) == (1, 1, 1)
        one.assign(10**6, 1, 10**6, 1)
        assert one.expected(LASTING + 1, visible=10**9) == 1
        assert len(one) == PRODUCERS_KEPT


def test_lasting_producers_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producers, "LASTING_KEPT", 3)
    table = ProducerTable()
    for n in range(5):
        table.assign(LASTING + n, 1, n + 1, 1)
    assert [table.expected(LASTING + n, visible=99) for n in range(5)] == [1, 1, 2, 2, 2]


def test_what_is_under_way_is_not_stored_yet() -> None:
    table = sent(3)
    assert [table.expected(P, visible) for visible in (0, 9, 10, 29, 30)] == [1, 1, 2, 3, 4]
