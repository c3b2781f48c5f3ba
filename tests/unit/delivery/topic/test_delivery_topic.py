"""Floors, losses and tombstones of one topic, and the class of its next write."""

from __future__ import annotations

import pytest

from tests.unit.delivery.kit import make_topic
from topicd.model import Tombstone
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need


def evicted(*losses: tuple[int, str]) -> Topic:
    topic = make_topic()
    topic.seqs.reach(1000)
    for floor, reason in losses:
        topic.floors.note_loss(floor, reason, floor - topic.floors.evict_floor)
        topic.floors.advance(floor)
    return topic


@pytest.mark.parametrize("from_seq", [0, 1, 999])
def test_nothing_lost_gives_no_tombstone(from_seq: int) -> None:
    assert evicted().floors.tombstone(from_seq, 1000) is None


@pytest.mark.parametrize(("from_seq", "missed"), [(0, 10), (5, 5), (9, 1)])
def test_a_reader_behind_the_floor_is_told_the_exact_range(from_seq: int, missed: int) -> None:
    tombstone = evicted((11, "cap")).floors.tombstone(from_seq, 1000)
    assert tombstone == Tombstone(from_seq + 1, 10, "cap", missed, 11, 1000)


@pytest.mark.parametrize("from_seq", [10, 11, 500])
def test_a_reader_at_the_floor_has_missed_nothing(from_seq: int) -> None:
    """A tombstone iff from_seq + 1 < evict_floor."""
    assert evicted((11, "cap")).floors.tombstone(from_seq, 1000) is None


def test_reasons_mix_only_for_those_who_missed_both() -> None:
    topic = evicted((11, "cap"), (21, "ttl"))
    assert [topic.floors.tombstone(at, 1000).reason for at in (0, 9, 10, 19)] == ["mixed", "mixed", "ttl", "ttl"]  # type: ignore[union-attr]


def test_a_floor_never_goes_back() -> None:
    topic = evicted((21, "cap"))
    topic.floors.note_loss(11, "ttl", 5)
    topic.floors.note_loss(21, "ttl", 0)
    assert (topic.floors.evict_floor, len(topic.floors.losses)) == (21, 1)


def test_losses_of_one_reason_merge() -> None:
    topic = evicted(*((floor, "cap") for floor in range(2, 500)))
    assert [tuple(loss) for loss in topic.floors.losses] == [(499, "cap", 498)]


def test_the_list_of_losses_stays_short_and_keeps_its_sum() -> None:
    topic = evicted(*((floor, "cap" if floor % 2 else "ttl") for floor in range(2, 500)))
    assert len(topic.floors.losses) <= 64
    assert sum(loss.records for loss in topic.floors.losses) == 498
    assert topic.floors.tombstone(0, 1000).reason == "mixed"  # type: ignore[union-attr]
    assert topic.floors.tombstone(497, 1000).reason == "cap"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("durability", "need"),
    [("ephemeral", Need.PLACED), ("memory", Need.PLACED), ("disk", Need.WRITTEN), ("fsync", Need.SYNCED)],
)
def test_each_class_needs_what_it_promises(durability: str, need: Need) -> None:
    topic = make_topic(durability=durability)
    topic.seqs.reserve(100)
    assert topic.need_for(1) is need


def test_a_disk_write_beyond_the_reserved_seqs_waits_for_the_sync() -> None:
    topic = make_topic(durability="disk")
    topic.seqs.reserve(100)
    assert topic.need_for(100) is Need.WRITTEN
    assert topic.need_for(101) is Need.SYNCED


@pytest.mark.parametrize("durability", ["memory", "disk"])
def test_no_write_overtakes_a_stricter_one_under_way(durability: str) -> None:
    topic = make_topic(durability=durability)
    topic.seqs.reserve(100)
    topic.flight.synced = 1
    assert topic.need_for(1) is Need.SYNCED
