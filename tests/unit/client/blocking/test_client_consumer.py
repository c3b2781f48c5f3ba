from __future__ import annotations

from itertools import islice

import pytest

import topicd
from tests.support.fakeserver import FakeServer
from topicd.errors import ConsumerNotFound, InvalidRequest


def numbers(*span: int) -> list[bytes]:
    return [b"%d" % n for n in range(*span)]


def take(consumer: topicd.Consumer, count: int) -> list[bytes]:
    return [event.data for event in islice(consumer, count) if isinstance(event, topicd.Record)]


def test_a_consumer_goes_on_where_it_has_acknowledged(client: topicd.Client) -> None:
    client.publish_many("t", numbers(10))
    with client.consumer("t", "c", auto_ack=False) as consumer:
        assert take(consumer, 6) == numbers(6)
        assert consumer.unacked == 6
        assert consumer.ack(4) == 4
        assert consumer.unacked == 2
        assert consumer.lag() == 6
    with client.consumer("t", "c", auto_ack=False) as consumer:
        assert take(consumer, 6) == numbers(4, 10)
        assert consumer.ack_to(8) == 8
        assert consumer.unacked == 2


def test_more_than_was_delivered_cannot_be_acknowledged(client: topicd.Client) -> None:
    client.publish_many("t", numbers(3))
    with client.consumer("t", "c", auto_ack=False) as consumer:
        take(consumer, 2)
        with pytest.raises(InvalidRequest, match="2 are outstanding"):
            consumer.ack(3)
        assert consumer.ack(0) == 0
        assert consumer.ack(2) == 2


def test_auto_ack_counts_a_record_when_the_next_is_asked_for(client: topicd.Client, server: FakeServer) -> None:
    client.publish_many("t", numbers(5))
    consumer = client.consumer("t", "c")
    assert take(consumer, 3) == numbers(3)
    assert server.topics["t"].consumers["c"] <= 2
    consumer.close()
    assert server.topics["t"].consumers["c"] == 3


def test_auto_ack_repeats_the_record_whose_processing_failed(client: topicd.Client) -> None:
    client.publish_many("t", numbers(5))

    def process() -> None:
        with client.consumer("t", "c") as consumer:
            for record in consumer:
                if isinstance(record, topicd.Record) and record.data == b"2":
                    raise RuntimeError("cannot do it")

    with pytest.raises(RuntimeError):
        process()
    with client.consumer("t", "c") as consumer:
        assert take(consumer, 3) == numbers(2, 5)


def test_auto_ack_does_not_wait_for_ever_to_acknowledge(client: topicd.Client, server: FakeServer) -> None:
    client.publish_many("t", numbers(3))
    with client.consumer("t", "c") as consumer:
        assert take(consumer, 3) == numbers(3)
        client.publish("t", b"3")
        assert take(consumer, 1) == [b"3"]
        assert server.topics["t"].consumers["c"] == 3


def test_start_counts_only_for_a_new_consumer(client: topicd.Client) -> None:
    client.publish_many("t", numbers(5))
    with client.consumer("t", "late", start="latest") as consumer:
        client.publish("t", b"5")
        assert take(consumer, 1) == [b"5"]
    with client.consumer("t", "late", start="earliest") as consumer:
        client.publish("t", b"6")
        assert take(consumer, 1) == [b"6"]
    with client.consumer("t", "third", start=3) as consumer:
        assert take(consumer, 2) == numbers(3, 5)


def test_a_consumer_may_come_before_its_topic(client: topicd.Client) -> None:
    with client.consumer("soon", "c") as consumer:
        client.publish("soon", b"x")
        assert take(consumer, 1) == [b"x"]


def test_consumers_are_listed_reset_and_removed(client: topicd.Client) -> None:
    client.publish_many("t", numbers(5))
    for name in ("b", "a"):
        with client.consumer("t", name) as consumer:
            take(consumer, 2)
    assert [(c.name, c.acked_seq, c.lag) for c in client.consumers("t")] == [("a", 2, 3), ("b", 2, 3)]
    assert client.reset_consumer("t", "a", "latest") == 5
    client.remove_consumer("t", "b")
    with pytest.raises(ConsumerNotFound):
        client.remove_consumer("t", "b")
    assert [c.name for c in client.consumers("t")] == ["a"]


def test_restarts_repeat_nothing_and_skip_nothing(client: topicd.Client, server: FakeServer) -> None:
    found: list[bytes] = []
    with client.consumer("t", "c", auto_ack=False) as consumer:
        for round_ in range(6):
            client.publish_many("t", numbers(round_ * 20, round_ * 20 + 20))
            found += take(consumer, 15)
            consumer.ack(10)
            server.restart(shards=1 + round_ % 3)
        found += take(consumer, 30)
    assert found == numbers(120)


def test_gaps_are_events_and_need_no_acknowledgement(client: topicd.Client) -> None:
    client.configure("t", cap_records=2)
    client.publish("t", b"0")
    with client.consumer("t", "c", auto_ack=False) as consumer:
        take(consumer, 1)
        consumer.ack()
    client.publish_many("t", numbers(1, 6))
    with client.consumer("t", "c", auto_ack=False, gaps=True) as consumer:
        gap = next(consumer)
        assert isinstance(gap, topicd.Gap)
        assert (gap.first_seq, gap.last_seq) == (2, 4)
        assert consumer.unacked == 0
        assert take(consumer, 2) == numbers(4, 6)
