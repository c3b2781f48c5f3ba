"""Live records over segments and tail alike: where they are, how large, and when they were written."""

from __future__ import annotations

import random

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.kit import TS
from topicd.model import TagMatch
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.names import DATA
from topicd.shards.storage.segment.places import resolve

# Records 1..20 are i bytes long and were written at TS + 10 * i. Segments: 1..8 and 9..12, the rest in memory.
COUNT = 20
DEAD = {1, 3, 4, 8, 9, 12, 13, 20}


@pytest.fixture
def topic(desk: Desk) -> Topic:
    desk.serve()
    made = desk.topic(durability="memory")
    for seq in range(1, COUNT + 1):
        desk.clock.set_wall(TS + 10 * seq)
        desk.write(made, [bytes(seq)], tags=b"dead" if seq in DEAD else None)
        if seq == 12:
            desk.checkpoint()
    assert [(info.first_seq, info.last_seq, info.sealed) for info in made.contents.segments] == [
        (1, 8, True),
        (9, 12, False),
    ]
    return made


def kill(desk: Desk, topic: Topic) -> None:
    desk.parts.deletion.delete(topic, None, TagMatch(b"dead"), lambda body, error: None)
    desk.settle()


def size_of(seq: int, tagged: bool) -> int:
    return seq + (4 if tagged else 0)


@pytest.mark.parametrize("dead", [False, True])
def test_counts_and_sizes_are_those_of_the_live_records(desk: Desk, topic: Topic, dead: bool) -> None:
    if dead:
        kill(desk, topic)
    chance, live = random.Random(1), desk.parts.live
    for _ in range(100):
        first, last = sorted(chance.choices(range(1, COUNT + 1), k=2))
        wanted = [seq for seq in range(first, last + 1) if not (dead and seq in DEAD)]
        size = sum(size_of(seq, seq in DEAD) for seq in wanted)
        assert live.within(topic, first, last) == (len(wanted), size), (first, last)


def test_runs_are_neighbouring_live_records_in_order(desk: Desk, topic: Topic) -> None:
    kill(desk, topic)
    found = [seq for a, b, _ in desk.parts.live.runs(topic, 1, COUNT) for seq in range(a, b + 1)]
    assert found == [seq for seq in range(1, COUNT + 1) if seq not in DEAD]


def test_an_empty_range_has_nothing(desk: Desk, topic: Topic) -> None:
    assert list(desk.parts.live.stretches(topic, 5, 4)) == []


@pytest.mark.parametrize(("seq", "found"), [(1, 2), (3, 5), (8, 10), (12, 14), (13, 14), (19, 19), (20, 21), (25, 21)])
def test_the_first_live_record_from_a_seq_on(desk: Desk, topic: Topic, seq: int, found: int) -> None:
    kill(desk, topic)
    assert desk.parts.live.first_from(topic, seq) == found


@pytest.mark.parametrize(("dropped", "seq", "found"), [(0, 3, 10), (1, 9, 14), (1, 12, 14), (1, 8, 14)])
def test_the_first_live_record_behind_a_segment_that_went(
    desk: Desk, topic: Topic, dropped: int, seq: int, found: int
) -> None:
    kill(desk, topic)
    topic.contents.drop(topic.contents.segments[dropped])
    assert desk.parts.live.first_from(topic, seq) == found


@pytest.mark.parametrize("seq", [1, 8, 9, 12])
def test_the_time_of_a_stored_record(desk: Desk, topic: Topic, seq: int) -> None:
    assert desk.parts.live.ts_of(topic, seq) == TS + 10 * seq


def test_the_time_of_one_that_is_not_there_is_the_newest(desk: Desk, topic: Topic) -> None:
    assert desk.parts.live.ts_of(topic, COUNT + 1) == TS + 10 * COUNT


@pytest.mark.parametrize("seq", [1, 2, 8, 9, 12, 13, 14, 20])
def test_the_last_seq_before_a_time(desk: Desk, topic: Topic, seq: int) -> None:
    at = TS + 10 * seq
    assert desk.parts.live.seq_before(topic, at) == seq - 1
    assert desk.parts.live.seq_before(topic, at + 1) == seq
    assert desk.parts.live.seq_before(topic, 0) == 0


def test_records_that_are_in_a_segment_and_still_in_memory_count_once(desk: Desk) -> None:
    """A checkpoint that failed half way has stored the first records of a blob."""
    desk.serve()
    topic = desk.topic(durability="memory")
    desk.write(topic, [b"x"] * 12)  # one blob, two segments
    second = resolve(desk.parts.place.topic_dir(topic.id), 9).file(DATA)
    desk.fail_disk(lambda name, path: path == second)
    desk.checkpoint()
    assert (desk.fs.failures, topic.seqs.stored, len(topic.contents.tail)) == (1, 8, 1)
    assert desk.parts.live.within(topic, 1, 12) == (12, 12)
    assert [stretch.first for stretch in desk.parts.live.stretches(topic, 1, 12)] == [1, 9]
