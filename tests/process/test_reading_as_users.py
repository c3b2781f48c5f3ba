"""Reading as people do it: to the end, over gaps, with a timeout, decoded, one reader for each consumer."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import topicd
import topicd.aio
from tests.support.daemon import Daemon
from topicd.client.blocking.client import Client
from topicd.errors import ConsumerHeld, FormatError, InvalidRequest, TopicNotFound

SETTINGS = {"segment_max_records": 500, "checkpoint_ms": 50}


@pytest.fixture
def client(module_daemon: Daemon) -> Iterator[Client]:
    with module_daemon.client() as made:
        yield made


def trimmed(client: Client, topic: str) -> None:
    """Seqs 8 to 10 are left of 10."""
    client.configure(topic, cap_records=3)
    for number in range(10):
        client.publish(topic, b"%d" % number)


# ---- read and fetch ----


def test_read_goes_to_the_end_and_fetch_is_one_page(client: Client, topic: str) -> None:
    client.publish_many(topic, [b"%d" % n for n in range(3_000)])
    assert [record.seq for record in client.read(topic)] == list(range(1, 3_001))
    assert [record.seq for record in client.read(topic, 2_990)] == list(range(2_991, 3_001))
    assert [record.seq for record in client.read(topic, to_seq=700, limit=900)] == list(range(1, 701))
    assert [record.seq for record in client.read(topic, 5, limit=600)] == list(range(6, 606))
    assert len(client.fetch(topic)) == 256


def test_read_ends_where_the_topic_ended_when_it_began(client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 300)
    found = []
    for record in client.read(topic):
        found.append(record.seq)
        if len(found) < 400:
            client.publish(topic, b"more")
    assert found == list(range(1, 301))


def test_read_chooses_by_tag_origin_and_time(client: Client, topic: str) -> None:
    for number in range(600):
        client.publish(topic, b"%d" % number, tag="even" if number % 2 == 0 else "odd", node=f"n{number % 3}")
    assert [r.seq for r in client.read(topic, match="even")] == list(range(1, 601, 2))
    assert all(r.node != "n1" for r in client.read(topic, exclude_nodes="n1"))
    assert sum(1 for _ in client.read(topic, exclude_nodes=["n0", "n1"])) == 200
    third = client.fetch(topic, 2, limit=1)[0]
    assert next(iter(client.read(topic, third.time))).ts >= third.ts
    assert {r.data for r in client.read(topic, metadata_only=True)} == {b""}


def test_the_old_name_of_exclude_nodes_warns(client: Client, topic: str) -> None:
    client.publish(topic, b"x", node="me")
    with pytest.warns(DeprecationWarning, match="exclude_nodes"):
        assert len(client.fetch(topic, nodes="me")) == 0
    with pytest.warns(DeprecationWarning, match="exclude_nodes"), client.watch(topic, "earliest", nodes="me") as watch:
        assert watch.poll(0) is None


def test_what_cannot_be_read_is_said_before_anything_is(client: Client, topic: str) -> None:
    for wrong in ({"start": "latest"}, {"start": "sometime"}, {"limit": -1}, {"decode": "yaml"}, {"on_gap": "ignore"}):
        with pytest.raises(InvalidRequest):
            client.read(topic, **wrong)  # type: ignore[call-overload]
    with pytest.raises(TopicNotFound):
        list(client.read("nowhere"))


# ---- gaps ----


def test_iterating_gives_records_and_gaps_only_as_asked_for(client: Client, topic: str) -> None:
    trimmed(client, topic)
    told: list[topicd.Gap] = []
    assert [record.seq for record in client.read(topic)] == [8, 9, 10]
    with pytest.raises(topicd.RecordsMissed, match="3 to 7"):
        list(client.read(topic, 2))
    assert [record.seq for record in client.read(topic, 2, on_gap=told.append)] == [8, 9, 10]
    kinds = [type(event).__name__ for event in client.read(topic, 2, gaps=True)]
    assert kinds == ["Gap", "Record", "Record", "Record"]
    with client.watch(topic, 2, on_gap=told.append) as watch:
        assert [next(watch).seq for _ in range(3)] == [8, 9, 10]
    assert [(gap.first_seq, gap.last_seq) for gap in told] == [(3, 7)] * 2


@pytest.mark.parametrize("auto_ack", [True, False])
def test_a_consumer_that_was_told_of_a_gap_is_not_told_again(client: Client, topic: str, auto_ack: bool) -> None:
    client.publish(topic, b"first")
    with client.consumer(topic, "c") as consumer:
        assert next(consumer).seq == 1
    trimmed(client, topic)
    with pytest.raises(topicd.RecordsMissed), client.consumer(topic, "c", auto_ack=auto_ack) as consumer:
        next(consumer)
    with client.consumer(topic, "c") as consumer:  # as the next start of the program does
        assert next(consumer).seq == 9


# ---- watching ----


def test_watching_creates_no_topic_and_misses_nothing_of_it(client: Client, topic: str) -> None:
    with client.watch([topic, topic + "b"], "latest") as watch:
        assert watch.poll(0.05) is None
        assert list(client.topics(topic)) == []
        client.publish_many(topic, [b"a", b"b"])
        assert [next(watch).data for _ in range(2)] == [b"a", b"b"]
        assert [info.topic for info in client.topics(topic)] == [topic]


def test_a_topic_that_is_made_while_the_watch_is_away_is_read_from_its_start(client: Client, topic: str) -> None:
    with client.watch(topic) as watch:
        feed = next(iter(watch._watching.feeds.values()))
        assert feed.connection is not None
        feed.connection.close()  # the connection breaks
        client.publish(topic, b"meanwhile")
        assert next(watch).data == b"meanwhile"


@pytest.mark.parametrize(("pattern", "meant"), [("a.*.z", [b"1"]), ("a.>", [b"1", b"2"]), ("a.*", [b"1", b"2", b"3"])])
def test_patterns(client: Client, topic: str, pattern: str, meant: list[bytes]) -> None:
    root = topic.rsplit(".", 1)[1]
    pattern = root + pattern if pattern.endswith("*") and pattern.count("*") == 1 else f"{root}{pattern}"
    for name, data in (("a.b.z", b"1"), ("a.c", b"2"), ("a.", b"3")):
        client.publish(root + name, data)
    found = []
    with client.watch(pattern, "earliest") as watch:
        while (record := watch.poll(1.0 if len(found) < len(meant) else 0.1)) is not None:
            found.append(record.data)
    assert sorted(found) == meant


def test_poll_waits_so_long_and_no_longer(client: Client, topic: str) -> None:
    client.publish(topic, b"there")
    with client.watch(topic, "earliest") as watch:
        assert (found := watch.poll(5)) is not None and found.data == b"there"
        assert watch.poll() is None
        assert watch.poll(0.05) is None
        client.publish(topic, b"later")
        assert (found := watch.poll(5)) is not None and found.data == b"later"


def test_asyncio_polls_and_connects_alike(module_daemon: Daemon, topic: str) -> None:
    async def work() -> None:
        async with topicd.aio.connect(module_daemon.run.socket) as client:
            await client.publish(topic, b"there")
            async with await client.watch(topic, "earliest") as watch:
                assert (found := await watch.poll(5)) is not None and found.data == b"there"
                assert await watch.poll() is None
                assert await watch.poll(0.05) is None
                await client.publish(topic, b"later")
                assert (found := await watch.poll(5)) is not None and found.data == b"later"
            async with await client.consumer(topic, "c") as consumer:
                assert (one := await consumer.poll(5)) is not None and one.seq == 1
                assert (two := await consumer.poll(5)) is not None and two.seq == 2
                assert await consumer.poll() is None
                assert consumer.acked_seq == 2
            assert [record.data async for record in client.read(topic)] == [b"there", b"later"]
        waiting = topicd.aio.connect(module_daemon.run.socket)
        await (await waiting).close()

    asyncio.run(work())


# ---- one reader for each consumer ----


def test_a_second_reader_of_a_consumer_is_refused_or_takes_over(
    client: Client, module_daemon: Daemon, topic: str
) -> None:
    client.publish_many(topic, [b"1", b"2", b"3"])
    with client.consumer(topic, "c", auto_ack=False) as first, module_daemon.client() as other:
        assert next(first).seq == 1
        with pytest.raises(ConsumerHeld, match=r"read by process \d+"):
            other.consumer(topic, "c")
        assert client.consumers(topic)[0].holder.startswith("process ")
        first.ack()
        with other.consumer(topic, "c", takeover=True) as second:
            assert next(second).seq == 2
            with pytest.raises(ConsumerHeld, match="taken over"):
                while True:
                    next(first)
            with pytest.raises(StopIteration):
                next(first)
    with client.consumer(topic, "c") as third:  # free again
        assert next(third).seq == 3


def test_who_was_replaced_hears_so_before_it_moves_the_place(client: Client, module_daemon: Daemon, topic: str) -> None:
    """Records that it has received already are no reason to go on: what it acknowledges would skip the other's."""
    client.publish_many(topic, [b"x"] * 5_000)
    with module_daemon.client() as other, pytest.raises(ConsumerHeld, match="taken over"):
        with client.consumer(topic, "c") as first:
            assert next(first).seq == 1
            with other.consumer(topic, "c", takeover=True, auto_ack=False) as second:
                assert next(second).seq == 1
                seen = 1
                with pytest.raises(ConsumerHeld, match="taken over"):
                    while first.poll(5.0) is not None:
                        seen += 1
                assert seen <= 1_001 and client.consumers(topic)[0].acked_seq == 0
                assert first.poll(0.0) is None
                with pytest.raises(ConsumerHeld, match="taken over"):
                    first.ack_to(1)
                assert second.ack() == 1
            raise ConsumerHeld("taken over")  # what left the loop; the end adds nothing to it
    assert client.consumers(topic)[0].acked_seq == 1


def test_asyncio_watches_and_consumers_are_entered_or_awaited(
    client: Client, module_daemon: Daemon, topic: str
) -> None:
    client.publish_many(topic, [b"1", b"2"])

    async def work() -> None:
        async with topicd.aio.connect(module_daemon.run.socket) as aio:
            async with aio.watch(topic, "earliest") as watch:
                assert (await anext(watch)).seq == 1
            assert watch.closed
            async with aio.consumer(topic, "c") as consumer:
                assert (await anext(consumer)).seq == 1
            awaited = await aio.consumer(topic, "c")
            assert (await awaited.poll(5.0)).seq == 2  # type: ignore[union-attr]
            with pytest.raises(ConsumerHeld):
                async with aio.consumer(topic, "c"):
                    raise AssertionError("somebody reads already")
            with pytest.raises(ZeroDivisionError):
                async with aio.consumer(topic, "d") as failing:
                    await anext(failing)
                    raise ZeroDivisionError
            await awaited.close()
            made = await asyncio.create_task(aio.watch(topic))
            await made.close()

    asyncio.run(work())
    acked = {row.name: row.acked_seq for row in client.consumers(topic)}
    assert acked == {"c": 2, "d": 0}  # the record that failed comes again


def test_a_consumer_that_connects_anew_is_the_same_one(client: Client, topic: str) -> None:
    client.publish(topic, b"1")
    with client.consumer(topic, "c") as consumer:
        assert next(consumer).seq == 1
        feed = next(iter(consumer._watch._watching.feeds.values()))
        assert feed.connection is not None
        feed.connection.sock.shutdown(2)
        client.publish(topic, b"2")
        assert next(consumer).seq == 2


# ---- values ----


@dataclasses.dataclass
class Order:
    id: int
    item: str


class OrderStruct(msgspec.Struct):
    id: int
    item: str


class OrderModel:
    """As pydantic's models look from outside."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    @classmethod
    def model_validate_json(cls, text: bytes) -> OrderModel:
        if b"id" not in text:
            raise ValueError("id is missing")
        return cls(text)


def test_values_are_decoded_for_every_reader(client: Client, topic: str) -> None:
    client.publish(topic, {"id": 7, "item": "tea"})
    plain = next(iter(client.read(topic)))
    with pytest.raises(InvalidRequest, match="decode"):
        _ = plain.value
    for decode, wanted in (
        ("json", {"id": 7, "item": "tea"}),
        ("text", '{"id":7,"item":"tea"}'),
        (Order, Order(7, "tea")),
        (OrderStruct, OrderStruct(7, "tea")),
        (len, 21),
    ):
        decoding: Any = decode
        assert [record.value for record in client.read(topic, decode=decoding)] == [wanted]
        with client.watch(topic, "earliest", decode=decoding) as watch:
            assert next(watch).value == wanted
    with client.consumer(topic, "c", decode=OrderModel) as consumer:
        assert next(consumer).value.text == plain.data


def test_what_cannot_be_decoded_is_told_with_its_place_and_ends_no_loop(client: Client, topic: str) -> None:
    client.publish_many(topic, [b'{"id": 1, "item": "tea"}', b"nonsense", b'{"id": 3, "item": "milk"}'])
    good, bad = [], []
    for record in client.read(topic, decode=Order):
        try:
            good.append(record.value.id)
        except FormatError as exc:
            bad.append((exc.detail["seq"], f"{topic}#2" in exc.message))
    assert (good, bad) == ([1, 3], [(2, True)])


# ---- connections ----


def test_a_lost_connection_and_its_return_are_told_once(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    events: list[Any] = []
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1) as daemon:
        with caplog.at_level(logging.INFO, "topicd.client"):
            with topicd.connect(daemon.run.socket, on_disconnect=events.append, on_reconnect=events.append) as client:
                client.publish("t", b"1")
                daemon.restart()
                client.publish("t", b"2")
                client.publish("t", b"3")
    kinds = [type(event).__name__ for event in events if event.shard == 0]
    assert kinds[:2] == ["Disconnected", "Reconnected"] and kinds.count("Disconnected") == kinds.count("Reconnected")
    assert any("is away" in record.message for record in caplog.records)
    assert any("is back after" in record.message for record in caplog.records)
