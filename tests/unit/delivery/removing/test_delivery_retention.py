"""What caps and TTL remove: the arithmetic of floors, counts and bytes over records in memory."""

from __future__ import annotations

import pytest

from tests.unit.delivery.kit import TS, Rooms, make_topic, publish
from topicd.frames import FrameType
from topicd.shards.delivery.topic.policy import EPHEMERAL_BYTES
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges


@pytest.fixture
def rooms() -> Rooms:
    return Rooms()


def numbers(topic: Topic) -> tuple[int, int, int, int]:
    return topic.floors.earliest, topic.floors.evict_floor, topic.contents.count, topic.contents.bytes


def kill(topic: Topic, *seqs: int) -> None:
    """Delete records of ten bytes in the tail, as Deletion does."""
    for seq in seqs:
        topic.contents.tail_dead.add(seq)
    topic.contents.remove(len(seqs), 10 * len(seqs))


# ---- caps ----


def test_below_its_caps_a_topic_loses_nothing(rooms: Rooms) -> None:
    topic = make_topic(cap_records=10, cap_bytes=100)
    publish(topic, [bytes(10)] * 10)
    rooms.retention.enforce(topic)
    assert numbers(topic) == (1, 1, 10, 100)
    assert rooms.log.changes == []


def test_the_oldest_records_beyond_the_cap_go(rooms: Rooms) -> None:
    topic = make_topic(cap_records=4)
    publish(topic, [bytes(10)] * 7)
    publish(topic, [bytes(10)] * 3)
    rooms.retention.enforce(topic)
    assert numbers(topic) == (7, 7, 4, 40)
    assert rooms.counters.evicted == 6
    assert topic.floors.tombstone(0, topic.seqs.visible).reason == "cap"  # type: ignore[union-attr]


def test_as_few_records_go_as_bytes_demand(rooms: Rooms) -> None:
    topic = make_topic(cap_bytes=100)
    for size in (10, 50, 30, 40):
        publish(topic, [bytes(size)])
    rooms.retention.enforce(topic)
    assert numbers(topic) == (3, 3, 2, 70)


@pytest.mark.parametrize(("cap", "left"), [(100, 10), (95, 9), (91, 9), (90, 9), (89, 8), (10, 1), (1, 0)])
def test_the_byte_cap_is_never_exceeded_and_used_as_far_as_possible(rooms: Rooms, cap: int, left: int) -> None:
    topic = make_topic(cap_bytes=cap)
    publish(topic, [bytes(10)] * 10)
    rooms.retention.enforce(topic)
    assert (topic.contents.count, topic.contents.bytes) == (left, 10 * left)


def test_both_caps_hold(rooms: Rooms) -> None:
    topic = make_topic(cap_records=8, cap_bytes=50)
    publish(topic, [bytes(10)] * 10)
    rooms.retention.enforce(topic)
    assert numbers(topic) == (6, 6, 5, 50)


def test_records_that_were_deleted_do_not_count_against_the_cap(rooms: Rooms) -> None:
    topic = make_topic(cap_records=3)
    publish(topic, [bytes(10)] * 6)
    kill(topic, 2, 4)
    rooms.retention.enforce(topic)
    assert numbers(topic) == (3, 2, 3, 30)
    assert rooms.counters.evicted == 1


def test_earliest_skips_deleted_records_behind_the_floor(rooms: Rooms) -> None:
    """evict_floor <= earliest, and a reader at the floor has missed nothing by eviction."""
    topic = make_topic(cap_records=2)
    publish(topic, [bytes(10)] * 6)
    kill(topic, 3, 4)
    rooms.retention.enforce(topic)
    assert (topic.floors.evict_floor, topic.floors.earliest, topic.contents.count) == (3, 5, 2)


def test_a_full_topic_that_rejects_evicts_nothing(rooms: Rooms) -> None:
    topic = make_topic(cap_records=2, discard="reject")
    publish(topic, [bytes(10)] * 5)
    rooms.retention.enforce(topic)
    assert topic.contents.count == 5


def test_the_new_floor_goes_to_the_log_with_its_reason(rooms: Rooms) -> None:
    topic = make_topic(cap_records=1)
    publish(topic, [b"x"] * 3)
    rooms.retention.enforce(topic)
    [(kind, body, _, _)] = rooms.log.changes
    assert kind is FrameType.EVICT_WATERMARK
    assert body == {"evict_floor": 3, "losses": [[3, "cap", 2]]}
    assert list(rooms.backlog.reclaimable.values()) == [topic]


def test_an_ephemeral_topic_is_bounded_without_a_cap_of_its_own(rooms: Rooms) -> None:
    topic = make_topic(durability="ephemeral")
    for _ in range(40):
        publish(topic, [bytes(1 << 20)])
        rooms.retention.enforce(topic)
    assert topic.contents.bytes <= EPHEMERAL_BYTES
    assert topic.contents.tail.bytes <= EPHEMERAL_BYTES + (1 << 20)
    assert topic.floors.earliest == 41 - topic.contents.count
    assert rooms.log.changes == []


# ---- TTL ----


def test_a_record_is_expired_when_it_is_older_than_the_ttl(rooms: Rooms) -> None:
    topic = make_topic(ttl_ms=1000)
    publish(topic, [b"a"], TS)
    publish(topic, [b"b"], TS + 1)
    rooms.clock.set_wall(TS + 1000)
    rooms.retention.expire(topic)
    assert topic.floors.earliest == 1
    rooms.clock.set_wall(TS + 1001)
    rooms.retention.expire(topic)
    assert numbers(topic) == (2, 2, 1, 1)
    assert topic.floors.tombstone(0, topic.seqs.visible).reason == "ttl"  # type: ignore[union-attr]


def test_everything_may_expire(rooms: Rooms) -> None:
    topic = make_topic(ttl_ms=10)
    publish(topic, [b"a"] * 5, TS)
    rooms.clock.advance(1000)
    rooms.retention.expire(topic)
    assert numbers(topic) == (6, 6, 0, 0)
    rooms.retention.expire(topic)
    assert rooms.counters.evicted == 5


def test_without_a_ttl_nothing_expires(rooms: Rooms) -> None:
    topic = make_topic()
    publish(topic, [b"a"], TS - 10**9)
    rooms.retention.expire(topic)
    assert topic.contents.count == 1


def test_a_clock_that_goes_back_brings_nothing_back(rooms: Rooms) -> None:
    topic = make_topic(ttl_ms=10)
    publish(topic, [b"a"], TS)
    publish(topic, [b"b"], TS + 100)
    rooms.clock.set_wall(TS + 50)
    rooms.retention.expire(topic)
    rooms.clock.set_wall(TS)
    rooms.retention.expire(topic)
    assert numbers(topic) == (2, 2, 1, 1)


# ---- counting ----


def test_live_records_are_counted_around_deleted_ones(rooms: Rooms) -> None:
    topic = make_topic()
    publish(topic, [bytes(10)] * 10)
    topic.contents.tail_dead = Ranges([(3, 4), (8, 8)])
    assert rooms.live.within(topic, 1, 10) == (7, 70)
    assert rooms.live.within(topic, 4, 8) == (3, 30)
    assert rooms.live.within(topic, 3, 4) == (0, 0)
    assert rooms.live.within(topic, 5, 4) == (0, 0)


@pytest.mark.parametrize(("seq", "found"), [(1, 1), (3, 5), (4, 5), (8, 9), (10, 10), (11, 11)])
def test_the_first_live_record_is_found(rooms: Rooms, seq: int, found: int) -> None:
    topic = make_topic()
    publish(topic, [bytes(10)] * 10)
    topic.contents.tail_dead = Ranges([(3, 4), (8, 8)])
    assert rooms.live.first_from(topic, seq) == found


def test_tags_and_nodes_count_as_content(rooms: Rooms) -> None:
    topic = make_topic()
    publish(topic, [b"12345"], tags=b"abc", nodes=b"n1")
    assert rooms.live.within(topic, 1, 1) == (1, 10)
