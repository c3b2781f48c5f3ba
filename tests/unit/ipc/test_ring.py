"""The byte ring: order, wrap, full, failure, successors."""

from __future__ import annotations

import random

import pytest

from topicd import paths
from topicd.ipc import ring, shm
from topicd.ipc.ring import RingConsumer, RingProducer

CAPACITY = 1000


@pytest.fixture
def ends(instance: str) -> tuple[RingProducer, RingConsumer]:
    name = paths.ring_shm(instance, 0, 0)
    ring.create(name, CAPACITY, instance).close()
    return RingProducer.attach(name, instance), RingConsumer.attach(name, instance)


def attach_producer(instance: str) -> RingProducer:
    return RingProducer(shm.attach(paths.ring_shm(instance, 0, 0), shm.RegionKind.RING, instance))


def put(producer: RingProducer, *parts: bytes | bytearray | memoryview) -> int | None:
    return producer.try_write(parts, sum(len(part) for part in parts))


def taken(consumer: RingConsumer, start: int, end: int) -> bytes:
    return b"".join(bytes(view) for view in consumer.views(start, end))


def test_a_new_ring_is_empty_and_has_its_capacity(ends: tuple[RingProducer, RingConsumer]) -> None:
    producer, consumer = ends
    assert (consumer.head, consumer.written_pos, consumer.synced_pos, consumer.used) == (0, 0, 0, 0)
    assert producer.capacity == consumer.capacity == CAPACITY
    assert producer.has_room(CAPACITY)
    assert not producer.has_room(CAPACITY + 1)
    assert consumer.views(0, 0) == []


def test_written_parts_are_visible_together(ends: tuple[RingProducer, RingConsumer]) -> None:
    producer, consumer = ends
    assert put(producer, b"ab", bytearray(b"cde"), memoryview(b"f")) == 6
    assert consumer.head == 6
    assert taken(consumer, 0, 6) == b"abcdef"


def test_full_is_an_answer_and_changes_nothing(ends: tuple[RingProducer, RingConsumer]) -> None:
    producer, consumer = ends
    assert put(producer, b"x" * CAPACITY) == CAPACITY
    assert not producer.has_room(1)
    assert put(producer, b"y") is None
    assert consumer.head == CAPACITY
    assert taken(consumer, 0, CAPACITY) == b"x" * CAPACITY
    consumer.set_written(1)
    assert put(producer, b"y") == CAPACITY + 1
    assert taken(consumer, 1, CAPACITY + 1) == b"x" * (CAPACITY - 1) + b"y"


def test_a_batch_larger_than_the_ring_never_fits(ends: tuple[RingProducer, RingConsumer]) -> None:
    assert put(ends[0], b"x" * (CAPACITY + 1)) is None


def test_a_blob_across_the_end_comes_back_in_two_views(ends: tuple[RingProducer, RingConsumer]) -> None:
    producer, consumer = ends
    put(producer, b"-" * 900)
    consumer.set_written(900)
    blob = bytes(range(200))
    assert put(producer, blob) == 1100
    assert [len(view) for view in consumer.views(900, 1100)] == [100, 100]
    assert taken(consumer, 900, 1100) == blob


def test_a_blob_up_to_the_end_is_one_view(ends: tuple[RingProducer, RingConsumer]) -> None:
    producer, consumer = ends
    put(producer, b"a" * CAPACITY)
    assert [len(view) for view in consumer.views(0, CAPACITY)] == [CAPACITY]


def test_a_random_stream_arrives_as_it_was_sent(ends: tuple[RingProducer, RingConsumer]) -> None:
    producer, consumer = ends
    chance = random.Random(7)
    sent, received = bytearray(), bytearray()
    for _ in range(5_000):
        blob = chance.randbytes(chance.randrange(1, 400))
        if put(producer, blob[:50], blob[50:]) is not None:
            sent += blob
        else:
            assert len(blob) > CAPACITY - producer.used
        if chance.random() < 0.6:
            start = consumer.written_pos
            end = chance.randint(start, consumer.head)
            received += taken(consumer, start, end)
            consumer.set_written(end)
    received += taken(consumer, consumer.written_pos, consumer.head)
    assert received == sent


def test_successor_of_the_producer_goes_on_at_the_head(ends: tuple[RingProducer, RingConsumer], instance: str) -> None:
    producer, consumer = ends
    put(producer, b"before")
    successor = attach_producer(instance)
    assert put(successor, b" after") == 12
    assert taken(consumer, 0, 12) == b"before after"


def test_counters_are_seen_by_the_other_end(ends: tuple[RingProducer, RingConsumer]) -> None:
    producer, consumer = ends
    put(producer, b"x" * 10)
    producer.want_sync(10)
    producer.wish_sync(9)
    producer.want_write(7)
    producer.set_absorbed(4)
    assert (consumer.sync_wanted_pos, consumer.write_wanted_pos, consumer.absorbed_pos) == (10, 7, 4)
    assert consumer.sync_wished_pos == 9
    producer.set_absorbed(None)
    assert consumer.absorbed_pos is None
    consumer.set_written(10)
    consumer.set_synced(9)
    consumer.set_read_only(28)
    assert (producer.written_pos, producer.synced_pos, producer.read_only_errno) == (10, 9, 28)
    assert producer.used == 0


def test_failure_is_answered_with_its_epoch_and_the_place_to_go_on(
    ends: tuple[RingProducer, RingConsumer],
) -> None:
    producer, consumer = ends
    put(producer, b"x" * 30)
    epoch = consumer.fail(10, 5)
    assert producer.failed_epoch == epoch == 1
    assert producer.failure == (10, 5)
    producer.answer_failure(epoch)
    assert consumer.resync == (1, 30)
    assert consumer.fail(30, 28) == 2
