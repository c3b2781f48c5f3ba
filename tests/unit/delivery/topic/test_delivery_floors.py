"""What of a topic is gone from the front: floors, losses and tombstones."""

from __future__ import annotations

import pytest

from topicd.model import Tombstone
from topicd.shards.delivery.topic.floors import Floors, Loss


def evicted(*losses: tuple[int, str]) -> Floors:
    floors = Floors()
    for floor, reason in losses:
        floors.note_loss(floor, reason, floor - floors.evict_floor)
        floors.advance(floor)
    return floors


@pytest.mark.parametrize("from_seq", [0, 1, 999])
def test_nothing_lost_gives_no_tombstone(from_seq: int) -> None:
    assert evicted().tombstone(from_seq, 1000) is None


@pytest.mark.parametrize(("from_seq", "missed"), [(0, 10), (5, 5), (9, 1)])
def test_a_reader_behind_the_floor_is_told_the_exact_range(from_seq: int, missed: int) -> None:
    tombstone = evicted((11, "cap")).tombstone(from_seq, 1000)
    assert tombstone == Tombstone(from_seq + 1, 10, "cap", missed, 11, 1000)


@pytest.mark.parametrize("from_seq", [10, 11, 500])
def test_a_reader_at_the_floor_has_missed_nothing(from_seq: int) -> None:
    """A tombstone iff from_seq + 1 < evict_floor."""
    assert evicted((11, "cap")).tombstone(from_seq, 1000) is None


def test_reasons_mix_only_for_those_who_missed_both() -> None:
    floors = evicted((11, "cap"), (21, "ttl"))
    assert [floors.tombstone(at, 1000).reason for at in (0, 9, 10, 19)] == ["mixed", "mixed", "ttl", "ttl"]  # type: ignore[union-attr]


def test_a_floor_never_goes_back() -> None:
    floors = evicted((21, "cap"))
    floors.note_loss(11, "ttl", 5)
    floors.note_loss(21, "ttl", 0)
    assert (floors.evict_floor, len(floors.losses)) == (21, 1)


def test_losses_of_one_reason_merge() -> None:
    floors = evicted(*((floor, "cap") for floor in range(2, 500)))
    assert [tuple(loss) for loss in floors.losses] == [(499, "cap", 498)]


def test_the_list_of_losses_stays_short_and_keeps_its_sum() -> None:
    floors = evicted(*((floor, "cap" if floor % 2 else "ttl") for floor in range(2, 500)))
    assert len(floors.losses) <= 64
    assert sum(loss.records for loss in floors.losses) == 498
    assert floors.tombstone(0, 1000).reason == "mixed"  # type: ignore[union-attr]
    assert floors.tombstone(497, 1000).reason == "cap"  # type: ignore[union-attr]


def test_missed_from_is_above_whatever_took_records() -> None:
    floors = evicted((11, "cap"))
    floors.delete_through(20)
    assert floors.missed_from == 21
    floors.advance(30)
    assert floors.missed_from == 30


def test_a_delete_never_goes_back() -> None:
    floors = Floors()
    floors.delete_through(20)
    floors.delete_through(10)
    assert floors.delete_below == 21


@pytest.mark.parametrize(("floor", "kept"), [(9, "snapshot"), (11, "snapshot"), (12, "log")])
def test_a_snapshot_may_be_ahead_of_the_log(floor: int, kept: str) -> None:
    floors = evicted((11, "snapshot"))
    floors.replay_losses(floor, [Loss(floor, "log", 1)])
    assert (floors.evict_floor, [loss.reason for loss in floors.losses]) == (max(floor, 11), [kept])
