"""Deletes: exact, bounded by the head at the call, in the log before they count, and the same again at replay."""

from __future__ import annotations

import errno
import random
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.kit import Rooms, make_topic, publish
from topicd.errors import TopicdError
from topicd.frames import FrameType, core
from topicd.ipc.protocol.messages import Op
from topicd.model import TagMatch
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.removing.deletion import _not_in
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges

A = TagMatch(b"a")
A_ALL = TagMatch(b"a", prefix=True)
COUNT = 20


def tag(seq: int) -> bytes | None:
    return (None, b"a", b"ab", b"b")[seq % 4]


@pytest.fixture
def topic(desk: Desk) -> Topic:
    """1..8 in a sealed segment, 9..12 in an active one, 13..20 in memory; record i has i bytes beside its tag."""
    desk.serve()
    made = desk.topic(durability="memory")
    for seq in range(1, COUNT + 1):
        desk.write(made, [bytes(seq)], tags=[tag(seq)])
        if seq == 12:
            desk.checkpoint()
    return made


def delete(desk: Desk, topic: Topic, before: int | None = None, match: TagMatch | None = None) -> dict[str, Any]:
    told: list[tuple[dict[str, Any] | None, TopicdError | None]] = []
    desk.parts.deletion.delete(topic, before, match, lambda body, error: told.append((body, error)))
    desk.settle()
    [(body, error)] = told
    assert error is None
    assert body is not None
    return body


def left(desk: Desk, topic: Topic) -> list[int]:
    found, at = [], 0
    while at < topic.seqs.visible:
        answer = desk.parts.reader.fetch(topic, at, 1000, 1 << 20, NO_FILTER)
        found += [row[0] for part in answer.parts for row in core.decode_frames(part, 0, len(part))]
        at = answer.next_from
    return found


def check(desk: Desk, topic: Topic, alive: set[int]) -> None:
    assert left(desk, topic) == sorted(alive)
    size = sum(seq + len(tag(seq) or b"") for seq in alive)
    assert (topic.contents.count, topic.contents.bytes) == (len(alive), size)
    assert topic.floors.earliest == min(alive, default=topic.seqs.visible + 1)


@pytest.mark.parametrize("seed", range(12))
def test_any_deletes_leave_exactly_the_others(desk: Desk, topic: Topic, seed: int) -> None:
    chance, alive = random.Random(seed), set(range(1, COUNT + 1))
    for _ in range(5):
        before = chance.choice([None, chance.randint(1, COUNT + 5)])
        match = chance.choice([A, A_ALL, TagMatch(b"b")] if before is None else [None, A, A_ALL])
        gone = {seq for seq in alive if (before is None or seq < before) and (match is None or match.matches(tag(seq)))}
        alive -= gone
        body = delete(desk, topic, before, match)
        assert (body["deleted"], body["count"]) == (len(gone), len(alive))
        assert body["deleted_bytes"] == sum(seq + len(tag(seq) or b"") for seq in gone)
        check(desk, topic, alive)
        if chance.random() < 0.3:
            desk.checkpoint()
            check(desk, topic, alive)


def test_a_delete_is_silent(desk: Desk, topic: Topic) -> None:
    delete(desk, topic, before=15)
    assert desk.parts.reader.fetch(topic, 0, 10, 1000, NO_FILTER).tombstone is None
    assert topic.floors.evict_floor == 1
    assert desk.parts.counters.deleted == 14


def test_what_is_written_after_the_call_is_spared(desk: Desk, topic: Topic) -> None:
    topic_f = desk.topic("f", durability="fsync")
    desk.write(topic_f, [b"x"], tags=b"a")
    desk.append(topic_f, [b"y"], tags=b"a")
    told: list[Any] = []
    desk.parts.deletion.delete(topic_f, None, A, lambda body, error: told.append(body))
    desk.settle()
    assert told[0]["deleted"] == 1
    assert left(desk, topic_f) == [2]


def test_it_counts_when_the_log_has_it_and_not_if_it_has_not(desk: Desk, topic: Topic) -> None:
    told: list[TopicdError | None] = []
    desk.parts.deletion.delete(topic, 10, None, lambda body, error: told.append(error))
    assert topic.contents.count == COUNT
    desk.fail_wal(errno.EIO)
    assert [error.code for error in told if error is not None] == ["storage_failed"]
    check(desk, topic, set(range(1, COUNT + 1)))


def test_only_tags_are_looked_at(desk: Desk, topic: Topic) -> None:
    assert delete(desk, topic, match=TagMatch(b"none"))["examined"] == 0
    assert delete(desk, topic, match=A)["examined"] == 5


def test_marks_wait_for_the_checkpoint_and_segments_for_their_space(desk: Desk, topic: Topic) -> None:
    delete(desk, topic, match=A)
    assert list(desk.parts.backlog.unmarked) == list(desk.parts.backlog.reclaimable) == [topic.id]
    assert {first: list(ranges) for first, ranges in topic.contents.unmarked.items()} == {
        1: [(1, 1), (5, 5)],
        9: [(9, 9)],
    }
    assert list(topic.contents.tail_dead) == [(13, 13), (17, 17)]


@pytest.mark.parametrize(
    ("before", "match"), [(10, None), (None, A), (None, A_ALL), (15, A_ALL), (100, None), (1, None), (0, None)]
)
def test_replay_gives_the_same_marks_and_floors(
    desk: Desk, topic: Topic, before: int | None, match: TagMatch | None
) -> None:
    """Of the log's words, to a topic as recovery finds it."""
    desk.wal.log = b""
    twin_marks = {first: ranges.copy() for first, ranges in topic.contents.marks.items()}
    delete(desk, topic, before, match)
    [body] = [body for kind, body in desk.wal.frames() if kind is FrameType.DELETE]
    after = (
        {first: list(ranges) for first, ranges in topic.contents.marks.items()},
        list(topic.contents.tail_dead),
        topic.floors.delete_below,
    )
    topic.contents.marks, topic.contents.tail_dead = twin_marks, Ranges()
    topic.floors.delete_below, topic.floors.earliest = 0, 1
    desk.parts.deletion.replay(topic, body)
    assert after == (
        {first: list(ranges) for first, ranges in topic.contents.marks.items()},
        list(topic.contents.tail_dead),
        topic.floors.delete_below,
    )


# ---- retain: acked ----


def acked_topic(desk: Desk) -> Topic:
    topic = desk.topic("queue", durability="memory", retain="acked")
    desk.write(topic, [b"x"] * 5)
    return topic


def test_what_every_consumer_has_acknowledged_goes(desk: Desk) -> None:
    topic, line = acked_topic(desk), desk.line()
    for name in ("a", "b"):
        line.ask(Op.CONSUMER_OPEN, topic="queue", name=name)
    line.ask(Op.CONSUMER_ACK, topic="queue", name="a", seq=4)
    assert left(desk, topic) == [1, 2, 3, 4, 5]
    line.ask(Op.CONSUMER_ACK, topic="queue", name="b", seq=2)
    assert left(desk, topic) == [3, 4, 5]
    desk.settle()
    bodies = [body for kind, body in desk.wal.frames() if kind is FrameType.DELETE]
    assert bodies == [{"before": 3, "match": None, "bound": 2}]


def test_a_topic_that_nobody_consumes_by_name_keeps_everything(desk: Desk) -> None:
    topic = acked_topic(desk)
    desk.parts.deletion.free_acked(topic)
    assert left(desk, topic) == [1, 2, 3, 4, 5]


def test_otherwise_acknowledgements_take_nothing(desk: Desk) -> None:
    topic, line = desk.topic(durability="memory"), desk.line()
    desk.write(topic, [b"x"])
    line.ask(Op.CONSUMER_OPEN, topic="orders", name="a")
    line.ask(Op.CONSUMER_ACK, topic="orders", name="a", seq=1)
    assert left(desk, topic) == [1]


# ---- the arithmetic ----


@pytest.mark.parametrize(
    ("known", "seqs", "ranges"),
    [
        (None, [], []),
        (None, [3], [(3, 3)]),
        (None, [1, 2, 3, 7, 8, 10], [(1, 3), (7, 8), (10, 10)]),
        (Ranges([(2, 2), (8, 9)]), [1, 2, 3, 7, 8, 10], [(1, 1), (3, 3), (7, 7), (10, 10)]),
        (Ranges([(1, 10)]), [1, 2, 10], []),
    ],
)
def test_seqs_become_ranges_without_what_is_known(
    known: Ranges | None, seqs: list[int], ranges: list[tuple[int, int]]
) -> None:
    assert _not_in(known, seqs) == ranges


def test_an_ephemeral_topic_gives_its_memory_back_at_once() -> None:
    rooms, topic = Rooms(), make_topic(durability="ephemeral")
    publish(topic, [bytes(20_000)])
    publish(topic, [bytes(20_000)])
    rooms.deletion.delete(topic, 2, None, lambda body, error: None)
    assert (len(topic.contents.tail), topic.seqs.stored, topic.contents.count) == (1, 1, 1)
