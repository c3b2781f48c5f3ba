"""Records that should be there and are not: a gap, damage, or nothing. Their seqs are not given out again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.delivery.kit import TS, make_place, make_topic, publish
from topicd.model import TagMatch
from topicd.shards.delivery.pulse import Pulse
from topicd.shards.delivery.reading.live import LiveRecords
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.starting.holes import Holes
from topicd.shards.delivery.storing.checkpoint_round import CheckpointRound
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.info import Cut


class Scene:
    def __init__(self, **place: Any) -> None:
        self.damage: list[str] = []
        self.place = make_place(**place)
        segments = Segments(self.place)
        self.holes = Holes(self.place, segments, LiveRecords(segments, Pulse(lambda: None)), self.damage.append)

    def judge(self, topic: Topic, in_log: list[tuple[int, int]] | None = None, claims: Ranges | None = None) -> Topic:
        self.holes.judge(topic, in_log or [], claims)
        return topic


def topic_at(head: int, **config: Any) -> Topic:
    topic = make_topic(**config)
    topic.seqs.reach(head)
    return topic


def damaged(topic: Topic) -> list[tuple[int, int]]:
    return [(place.first_seq, place.last_seq) for place in topic.contents.damaged]


def test_with_nothing_missing_nothing_is_said() -> None:
    scene = Scene()
    topic = scene.judge(topic_at(10))
    assert (scene.damage, damaged(topic), list(topic.contents.lost), topic.seqs.head) == ([], [], [], 10)


def test_a_hole_in_the_log_or_between_segments_is_damage() -> None:
    scene, topic = Scene(), topic_at(20)
    scene.holes.between_segments[topic.id] = [(3, 4)]
    scene.judge(topic, [(11, 12)])
    assert damaged(topic) == [(3, 4), (11, 12)]
    assert [("segment" in line, "WAL" in line) for line in scene.damage] == [(True, False), (False, True)]


def test_what_somebody_removed_is_no_damage() -> None:
    scene, topic = Scene(), topic_at(20)
    topic.floors.delete_through(5)
    topic.contents.gone, topic.contents.lost = Ranges([(8, 9)]), Ranges([(12, 12)])
    scene.judge(topic, [(3, 6), (8, 10), (12, 12)])
    assert damaged(topic) == [(6, 6), (10, 10)]


# ---- the head ----


@pytest.mark.parametrize(
    ("durability", "power_lost", "known", "reserved", "head", "lost", "bad"),
    [
        ("fsync", False, 15, 0, 15, [], [(11, 15)]),
        ("fsync", True, 15, 0, 15, [], [(11, 15)]),
        ("memory", False, 15, 0, 15, [(11, 15)], []),
        ("memory", True, 15, 0, 15, [(11, 15)], []),
        ("disk", False, 15, 1024, 15, [], [(11, 15)]),
        ("disk", True, 0, 1024, 1024, [(11, 1024)], []),
        ("disk", False, 0, 1024, 10, [], []),
        ("memory", True, 0, 1024, 10, [], []),
    ],
)
def test_a_seq_that_was_given_out_is_not_given_out_again(
    durability: str,
    power_lost: bool,
    known: int,
    reserved: int,
    head: int,
    lost: list[tuple[int, int]],
    bad: list[tuple[int, int]],
) -> None:
    scene, topic = Scene(power_lost=power_lost), topic_at(10, durability=durability)
    topic.seqs.reserve(reserved)
    scene.holes.heads[topic.id] = known
    scene.judge(topic)
    assert (topic.seqs.head, list(topic.contents.lost), damaged(topic)) == (head, lost, bad)
    assert len(scene.damage) == len(bad)


def test_a_tail_that_was_deleted_is_not_missed() -> None:
    scene, topic = Scene(), topic_at(10, durability="fsync")
    scene.holes.heads[topic.id] = 15
    topic.floors.delete_through(15)
    scene.judge(topic)
    assert (topic.seqs.head, scene.damage) == (15, [])


# ---- cuts ----


def cut(first: int, last: int, indexed: int) -> Cut:
    return Cut(Path("seg.data"), first, last, Path("seg.cut"), indexed)


@pytest.mark.parametrize(
    ("head", "claims", "bad", "after"),
    [
        (10, None, [(11, 15)], 15),
        (13, None, [(14, 15)], 15),  # the log brought some back
        (15, None, [], 15),
        (10, Ranges([(11, 15)]), [(11, 12)], 12),  # on its way past the log: durable as far as the index names it
    ],
)
def test_a_tail_that_was_cut_and_did_not_come_back_is_damage(
    head: int, claims: Ranges | None, bad: list[tuple[int, int]], after: int
) -> None:
    scene, topic = Scene(), topic_at(head)
    scene.holes.cuts[topic.id] = [cut(11, 15, indexed=12)]
    scene.judge(topic, claims=claims)
    assert (damaged(topic), topic.seqs.head) == (bad, after)


# ---- half a direct write ----


def stored(scene: Scene, records: int) -> Topic:
    """A segment on the disk, of batches of two; the last one may lack its end."""
    topic = make_topic()
    place = scene.place.topic_dir(topic.id)
    for _ in range((records + 1) // 2):
        publish(topic, [b"x", b"y"], tags=b"t")
    work = CheckpointRound(full=True)
    work.add(topic, place, [], scene.place.settings, TS, set())
    [(_, draft)] = work.drafts
    if records % 2:
        blob = next(iter(topic.contents.tail))
        end = blob.offset_of(records + 1)
        draft.data, draft.count, draft.bytes = [memoryview(blob.data)[:end]], records, end
    work.store(scene.place.fs)
    topic.contents.segments = [draft.info()]
    topic.contents.tail.drop_through(100)
    topic.contents.recent_tags.clear()
    topic.seqs.load(records, TS)
    scene.holes.index_active_tags(topic)
    return topic


@pytest.mark.parametrize(
    ("records", "claims", "left"),
    [
        (5, Ranges([(5, 6)]), 4),
        (4, Ranges([(3, 4)]), 4),
        (5, Ranges([(9, 9)]), 5),
        (5, None, 5),
        (1, Ranges([(1, 2)]), 0),
    ],
    ids=["half", "whole", "another's", "of the log", "the first of all"],
)
def test_half_a_direct_write_is_cut(records: int, claims: Ranges | None, left: int) -> None:
    scene = Scene()
    topic = stored(scene, records)
    scene.judge(topic, claims=claims)
    assert (topic.seqs.head, topic.seqs.stored, scene.damage) == (left, left, [])
    assert [info.last_seq for info in topic.contents.segments] == ([left] if left else [])
    assert topic.contents.recent_tags.matching(TagMatch(b"t"), 1, 99) == list(range(1, left + 1))
