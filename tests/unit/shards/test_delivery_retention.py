"""What caps and TTL remove: the arithmetic of floors, counts and bytes over records in memory."""

from __future__ import annotations

import pytest

from tests.unit.shards.delivery_kit import TS, FakeActor, make_topic, publish
from topicd.frames import FrameType, control_body, parse_header
from topicd.shards.delivery.removing.retention import EPHEMERAL_BYTES
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges


@pytest.fixture
def actor() -> FakeActor:
    return FakeActor()


def numbers(topic: Topic) -> tuple[int, int, int, int]:
    return topic.earliest, topic.evict_floor, topic.count, topic.bytes


def kill(topic: Topic, *seqs: int) -> None:
    """Delete records of ten bytes in the tail, as Deletion does."""
    for seq in seqs:
        topic.tail_dead.add(seq)
    topic.count -= len(seqs)
    topic.bytes -= 10 * len(seqs)


# ---- caps ----


def test_below_its_caps_a_topic_loses_nothing(actor: FakeActor) -> None:
    topic = make_topic(cap_records=10, cap_bytes=100)
    publish(topic, [bytes(10)] * 10)
    actor.retention.enforce(topic)
    assert numbers(topic) == (1, 1, 10, 100)
    assert actor.logged == []


def test_the_oldest_records_beyond_the_cap_go(actor: FakeActor) -> None:
    topic = make_topic(cap_records=4)
    publish(topic, [bytes(10)] * 7)
    publish(topic, [bytes(10)] * 3)
    actor.retention.enforce(topic)
    assert numbers(topic) == (7, 7, 4, 40)
    assert actor.evicted_total == 6
    assert topic.tombstone(0).reason == "cap"  # type: ignore[union-attr]


def test_as_few_records_go_as_bytes_demand(actor: FakeActor) -> None:
    topic = make_topic(cap_bytes=100)
    for size in (10, 50, 30, 40):
        publish(topic, [bytes(size)])
    actor.retention.enforce(topic)
    assert numbers(topic) == (3, 3, 2, 70)


@pytest.mark.parametrize(("cap", "left"), [(100, 10), (95, 9), (91, 9), (90, 9), (89, 8), (10, 1), (1, 0)])
def test_the_byte_cap_is_never_exceeded_and_used_as_far_as_possible(actor: FakeActor, cap: int, left: int) -> None:
    topic = make_topic(cap_bytes=cap)
    publish(topic, [bytes(10)] * 10)
    actor.retention.enforce(topic)
    assert (topic.count, topic.bytes) == (left, 10 * left)


def test_both_caps_hold(actor: FakeActor) -> None:
    topic = make_topic(cap_records=8, cap_bytes=50)
    publish(topic, [bytes(10)] * 10)
    actor.retention.enforce(topic)
    assert numbers(topic) == (6, 6, 5, 50)


def test_records_that_were_deleted_do_not_count_against_the_cap(actor: FakeActor) -> None:
    topic = make_topic(cap_records=3)
    publish(topic, [bytes(10)] * 6)
    kill(topic, 2, 4)
    actor.retention.enforce(topic)
    assert numbers(topic) == (3, 2, 3, 30)
    assert actor.evicted_total == 1


def test_earliest_skips_deleted_records_behind_the_floor(actor: FakeActor) -> None:
    """evict_floor <= earliest, and a reader at the floor has missed nothing by eviction."""
    topic = make_topic(cap_records=2)
    publish(topic, [bytes(10)] * 6)
    kill(topic, 3, 4)
    actor.retention.enforce(topic)
    assert (topic.evict_floor, topic.earliest, topic.count) == (3, 5, 2)


def test_a_full_topic_that_rejects_evicts_nothing(actor: FakeActor) -> None:
    topic = make_topic(cap_records=2, discard="reject")
    publish(topic, [bytes(10)] * 5)
    actor.retention.enforce(topic)
    assert topic.count == 5


def test_the_new_floor_goes_to_the_log_with_its_reason(actor: FakeActor) -> None:
    topic = make_topic(cap_records=1)
    publish(topic, [b"x"] * 3)
    actor.retention.enforce(topic)
    [frame] = actor.logged
    assert parse_header(frame, 0).type == FrameType.EVICT_WATERMARK
    assert control_body(frame, 0, len(frame)) == {"evict_floor": 3, "losses": [[3, "cap", 2]]}
    assert actor.reclaimable == ["orders"]


def test_an_ephemeral_topic_is_bounded_without_a_cap_of_its_own(actor: FakeActor) -> None:
    topic = make_topic(durability="ephemeral")
    for _ in range(40):
        publish(topic, [bytes(1 << 20)])
        actor.retention.enforce(topic)
    assert topic.bytes <= EPHEMERAL_BYTES
    assert topic.tail.bytes <= EPHEMERAL_BYTES + (1 << 20)
    assert topic.earliest == 41 - topic.count
    assert actor.logged == []


# ---- TTL ----


def test_a_record_is_expired_when_it_is_older_than_the_ttl(actor: FakeActor) -> None:
    topic = make_topic(ttl_ms=1000)
    publish(topic, [b"a"], TS)
    publish(topic, [b"b"], TS + 1)
    actor.clock.set_wall(TS + 1000)
    actor.retention.expire(topic)
    assert topic.earliest == 1
    actor.clock.set_wall(TS + 1001)
    actor.retention.expire(topic)
    assert numbers(topic) == (2, 2, 1, 1)
    assert topic.tombstone(0).reason == "ttl"  # type: ignore[union-attr]


def test_everything_may_expire(actor: FakeActor) -> None:
    topic = make_topic(ttl_ms=10)
    publish(topic, [b"a"] * 5, TS)
    actor.clock.advance(1000)
    actor.retention.expire(topic)
    assert numbers(topic) == (6, 6, 0, 0)
    actor.retention.expire(topic)
    assert actor.evicted_total == 5


def test_without_a_ttl_nothing_expires(actor: FakeActor) -> None:
    topic = make_topic()
    publish(topic, [b"a"], TS - 10**9)
    actor.retention.expire(topic)
    assert topic.count == 1


def test_a_clock_that_goes_back_brings_nothing_back(actor: FakeActor) -> None:
    topic = make_topic(ttl_ms=10)
    publish(topic, [b"a"], TS)
    publish(topic, [b"b"], TS + 100)
    actor.clock.set_wall(TS + 50)
    actor.retention.expire(topic)
    actor.clock.set_wall(TS)
    actor.retention.expire(topic)
    assert numbers(topic) == (2, 2, 1, 1)


# ---- counting ----


def test_live_records_are_counted_around_deleted_ones(actor: FakeActor) -> None:
    topic = make_topic()
    publish(topic, [bytes(10)] * 10)
    topic.tail_dead = Ranges([(3, 4), (8, 8)])
    assert actor.retention.live_within(topic, 1, 10) == (7, 70)
    assert actor.retention.live_within(topic, 4, 8) == (3, 30)
    assert actor.retention.live_within(topic, 3, 4) == (0, 0)
    assert actor.retention.live_within(topic, 5, 4) == (0, 0)


@pytest.mark.parametrize(("seq", "found"), [(1, 1), (3, 5), (4, 5), (8, 9), (10, 10), (11, 11)])
def test_the_first_live_record_is_found(actor: FakeActor, seq: int, found: int) -> None:
    topic = make_topic()
    publish(topic, [bytes(10)] * 10)
    topic.tail_dead = Ranges([(3, 4), (8, 8)])
    assert actor.retention.first_live(topic, seq) == found


def test_tags_and_nodes_count_as_content(actor: FakeActor) -> None:
    topic = make_topic()
    publish(topic, [b"12345"], tags=b"abc", nodes=b"n1")
    assert actor.retention.live_within(topic, 1, 1) == (1, 10)
