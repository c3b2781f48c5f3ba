"""Commits that are being published: room is held for one and kept from others, seqs are kept until it is closed."""

from __future__ import annotations

import pytest

from topicd.errors import Throttled
from topicd.shards.delivery.topic.commits import COMMITS_MAX, CommitTable

NOW = 1_000


@pytest.fixture
def table() -> CommitTable:
    made = CommitTable()
    made.open(7, 1, 100, 1_000, 50, NOW + 50)
    return made


def test_room_is_held_for_one_and_from_all_others(table: CommitTable) -> None:
    assert table.held(8, NOW) == (100, 1_000) and table.held(7, NOW) == (0, 0)
    assert table.covers(7, 100, 1_000, NOW) and not table.covers(8, 1, 1, NOW)
    assert not table.covers(7, 101, 1, NOW) and not table.covers(7, 1, 1_001, NOW)


def test_a_hold_ends_and_goes_on_as_long_as_batches_come(table: CommitTable) -> None:
    assert table.held(8, NOW + 50) == (0, 0) and not table.covers(7, 1, 1, NOW + 50)
    table.take(7, 1, 11, 40, 300, NOW + 40)
    assert table.held(8, NOW + 80) == (60, 700) and table.covers(7, 60, 700, NOW + 80)


def test_what_failed_is_held_again_and_was_never_published(table: CommitTable) -> None:
    table.take(7, 1, 11, 40, 300, NOW)
    table.take(7, 2, 51, 10, 100, NOW)
    assert table.is_under_way(7) and table.settled(60) == 10
    table.stored([(7, 1)])
    table.failed([(7, 2)])
    assert not table.is_under_way(7) and table.held(8, NOW) == (60, 700)
    commit = table.get(7, 1)
    assert commit is not None and list(commit.seqs) == [(11, 50)]


def test_only_what_is_published_and_not_closed_is_unsettled(table: CommitTable) -> None:
    assert (table.settled(20), table.published) == (20, 0)
    table.take(7, 1, 11, 5, 10, NOW)
    table.open(8, 1, 10, 10, 50, NOW + 50)
    table.take(8, 1, 9, 2, 5, NOW)
    assert (table.settled(20), table.published) == (8, 2)
    table.close(8, 2)
    assert table.settled(20) == 8
    table.close(8, 1)
    assert (table.settled(20), table.published) == (10, 1)
    table.close(7, 1)
    assert (table.settled(20), len(table)) == (20, 0)


def test_a_batch_of_an_earlier_commit_is_not_of_this_one(table: CommitTable) -> None:
    table.open(7, 5, 10, 10, 50, NOW + 50)
    table.open(7, 2, 99, 99, 50, NOW + 50)  # somebody who sleeps
    assert table.held(8, NOW) == (10, 10) and table.get(7, 2) is None
    table.take(7, 4, 1, 5, 5, NOW)
    assert table.settled(9) == 9


def test_there_are_not_too_many_and_those_that_are_over_make_room(table: CommitTable) -> None:
    for producer in range(100, 100 + COMMITS_MAX - 1):
        table.open(producer, 1, 1, 1, 50, NOW + 50)
    with pytest.raises(Throttled):
        table.check_room(9, NOW)
    table.check_room(7, NOW)
    table.take(7, 1, 1, 1, 1, NOW)
    table.check_room(9, NOW + 60)
    assert len(table) == 1, "the one of which something is published stays"


def test_a_snapshot_and_the_log_bring_it_back(table: CommitTable) -> None:
    table.take(7, 1, 11, 40, 300, NOW)
    table.take(7, 2, 51, 10, 100, NOW)
    again = CommitTable()
    again.restore(table.to_snapshot(50))
    assert again.settled(50) == 10 and again.held(8, NOW) == (50, 600)
    again.replay_batch(7, 2, 51, 10)
    again.replay_batch(7, 0, 1, 5)
    commit = again.get(7, 1)
    assert commit is not None and list(commit.seqs) == [(11, 60)]
    again.replay_change({"action": "close", "producer_id": 7, "first_no": 1})
    assert len(again) == 0
    room = {"records": 5, "bytes": 6, "hold_ms": 7, "until_ms": NOW + 7}
    again.replay_change({"action": "open", "producer_id": 7, "first_no": 3, **room})
    assert again.held(8, NOW) == (5, 6)


def test_a_fence_is_for_one_producer(table: CommitTable) -> None:
    commit = table.get(7, 1)
    assert commit is not None and not table.is_fenced(7)
    commit.fenced = True
    assert table.is_fenced(7) and not table.is_fenced(8)


def test_what_was_judged_is_known_after_a_restart(table: CommitTable) -> None:
    table.open(8, 3, 10, 10, 50, NOW + 50, judged=True)
    assert table.is_judged(8, 3) and not table.is_judged(8, 2) and not table.is_judged(7, 1)
    again, replayed = CommitTable(), CommitTable()
    again.restore(table.to_snapshot(100))
    again.restore([[9, 1, 5, 5, 50, NOW, []]])  # as earlier ones were written
    body = {"action": "open", "producer_id": 8, "first_no": 3, "records": 1, "bytes": 1, "hold_ms": 1, "until_ms": 1}
    replayed.replay_change({**body, "judged": True})
    for found in (again, replayed):
        assert found.is_judged(8, 3) and not found.is_judged(7, 1) and not found.is_judged(9, 1)
    replayed.replay_change(body)
    assert not replayed.is_judged(8, 3)
