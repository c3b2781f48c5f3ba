"""Seqs promised ahead: a synced mark above every seq that is acknowledged."""

from __future__ import annotations

import errno

import pytest

from tests.unit.delivery.desk import Desk
from topicd.frames import FrameType
from topicd.shards.delivery.topic.seqs import FIRST_BLOCK
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.reservation import reserve_seqs, return_seqs


def marks(desk: Desk) -> list[int]:
    return [body["reserved"] for kind, body in desk.wal.frames() if kind is FrameType.HEAD_WATERMARK]


def test_a_mark_counts_when_it_is_synced_and_not_before(desk: Desk) -> None:
    topic = desk.topic(durability="disk")
    topic.seqs.give_out(FIRST_BLOCK, 1)
    reserve_seqs(desk.parts.log, topic)
    desk.wal.write()
    desk.parts.turn.doorbell()
    assert topic.seqs.reserved == FIRST_BLOCK
    assert topic.need_for(FIRST_BLOCK + 1) is Need.SYNCED
    desk.settle()
    assert topic.seqs.reserved == marks(desk)[-1] > FIRST_BLOCK
    assert topic.need_for(FIRST_BLOCK + 1) is Need.WRITTEN


def test_while_the_mark_is_far_enough_ahead_none_is_written(desk: Desk) -> None:
    topic = desk.topic(durability="disk")
    for _ in range(3):
        desk.write(topic, [b"x"])
    assert marks(desk) == []


def test_no_acknowledged_seq_lies_above_a_synced_mark(desk: Desk) -> None:
    topic = desk.topic(durability="disk")
    for _ in range(40):
        told = desk.write(topic, [b"x"] * 100)
        assert told[0].first_seq + 99 <= topic.seqs.reserved
    assert marks(desk) == sorted(marks(desk))
    assert len(marks(desk)) < 10


def test_a_mark_that_failed_is_asked_for_again(desk: Desk) -> None:
    topic = desk.topic(durability="disk")
    topic.seqs.give_out(FIRST_BLOCK, 1)
    reserve_seqs(desk.parts.log, topic)
    desk.fail_wal(errno.EIO)
    assert topic.seqs.reserved == topic.seqs.reserving == FIRST_BLOCK
    reserve_seqs(desk.parts.log, topic)
    desk.settle()
    assert topic.seqs.reserved > FIRST_BLOCK


@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_a_class_that_keeps_its_seqs_otherwise_has_no_marks(desk: Desk, durability: str) -> None:
    topic = desk.topic(durability=durability)
    topic.seqs.give_out(10 * FIRST_BLOCK, 1)
    reserve_seqs(desk.parts.log, topic)
    desk.settle()
    assert marks(desk) == []


def test_the_mark_of_an_ephemeral_topic_is_not_waited_for(desk: Desk) -> None:
    topic = desk.topic(durability="ephemeral")
    reserve_seqs(desk.parts.log, topic)
    assert topic.seqs.reserved >= FIRST_BLOCK


# ---- at rest ----


def rested(desk: Desk, topic: Topic) -> bool:
    later = max(topic.last_write_ms, topic.created_ms) + 5_000
    found = return_seqs(desk.parts.log, topic, later)
    desk.settle()
    return found


def test_a_topic_at_rest_gives_back_what_it_does_not_use(desk: Desk) -> None:
    topic = desk.topic(durability="disk")
    desk.write(topic, [b"x"] * 2)
    assert not return_seqs(desk.parts.log, topic, topic.last_write_ms + 4_999)
    assert rested(desk, topic) and marks(desk) == [2] and topic.seqs.reserved == 2
    assert not rested(desk, topic), "there is nothing more to give back"
    assert topic.need_for(3) is Need.SYNCED
    desk.write(topic, [b"y"])
    assert marks(desk)[-1] >= 3 and topic.need_for(4) is Need.WRITTEN


def test_not_while_something_is_under_way(desk: Desk) -> None:
    topic = desk.topic(durability="disk")
    desk.write(topic, [b"x"])
    desk.append(topic, [b"y"])
    assert not return_seqs(desk.parts.log, topic, topic.last_write_ms + 60_000)
    desk.parts.appender.close_entry()
    desk.settle()
    assert rested(desk, topic) and marks(desk) == [2]


@pytest.mark.parametrize("durability", ["fsync", "memory", "ephemeral"])
def test_only_where_a_reservation_would_be_taken_for_a_loss(desk: Desk, durability: str) -> None:
    topic = desk.topic(durability=durability)
    desk.write(topic, [b"x"])
    assert not rested(desk, topic)
