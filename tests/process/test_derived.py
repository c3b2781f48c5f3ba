"""Destinations whose copies no log has, through a real daemon: what they cost, what ends it, what a crash leaves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.process.test_routers import named
from tests.support.daemon import LIVELY, Daemon, wait_until
from topicd.client.blocking.client import Client
from topicd.disk.datadir import open_format
from topicd.disk.fs import RealFs
from topicd.frames import FrameType
from topicd.shards.storage.walfile import LogReader, scan_group

SHARDS = 2


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("derived"), delivery_shards=SHARDS, wal_shards=1, **LIVELY) as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Client:
    return daemon.client()


def crash(daemon: Daemon) -> None:
    """All of it at once."""
    daemon.kill_all(Random(7))
    daemon.restart()


def kind(client: Client, router: str) -> tuple[str | None, str | None]:
    info = client.routers.get(router)
    return info.kind, info.why


def frames(daemon: Daemon) -> tuple[Counter[tuple[int, int]], int]:
    """(how many there are by type and topic, their bytes) of all files of the log."""
    found, size = Counter[tuple[int, int]](), 0
    reader = LogReader(RealFs(), daemon.data.wal_shard(0), open_format(RealFs(), daemon.data).wal_seed)
    for chunk in reader.chunks():
        for group in chunk.groups:
            size += group.end - group.start
            for run in scan_group(chunk.view, group).runs:
                found[run.type, run.topic_id] += run.count
    return found, size


def test_a_record_costs_one_frame_however_many_copies_it_has(tmp_path: Path) -> None:
    with Daemon(tmp_path / "d", delivery_shards=SHARDS, wal_shards=1, snapshot_ms=600_000) as daemon:
        client = daemon.client()
        source = named("one.a", 0)
        dests = [f"one.dest{n}" for n in range(10)]
        client.publish(source, b"before")
        for dest in dests:
            client.routers.create(dest, source, dest)
        assert [kind(client, dest) for dest in dests] == 10 * [("derived", None)]
        before, size = frames(daemon)
        for n in range(100):
            client.publish(source, b"%03d" % n + bytes(1_000))
        for dest in dests:
            assert client.state(dest).head_seq == 100
        stored = daemon.data.topic(client.state(dests[0]).topic_id)
        wait_until(lambda: sum(file.stat().st_size for file in stored.glob("seg-*.data")) > 100_000, "segments")
        after, size_after = frames(daemon)
        found = after - before
        source_id = client.state(source).topic_id
        assert found[FrameType.APPEND, source_id] == 100
        assert sum(count for (kind, topic), count in found.items() if kind == FrameType.APPEND) == 100
        own = sum(count for (_, topic), count in found.items() if topic not in (source_id, 0))
        assert own <= 20, found
        assert size_after - size <= 1.01 * 100 * (1_003 + 46 + 46 + 28) + 2_000


def test_what_was_seen_keeps_its_seq_when_shards_die(daemon: Daemon, client: Client) -> None:
    source, dest = named("seen.a", 0), named("seen.b", 1)
    client.routers.create("seen", source, dest)
    assert kind(client, "seen") == ("derived", None)
    for n in range(30):
        client.publish_many(source, [b"%d-%d" % (n, i) for i in range(20)])
        if n % 10 == 9:
            seen = {record.seq: (record.data, record.ts) for record in client.read(dest)}
            assert len(seen) == 20 * (n + 1)
            daemon.kill("dlv-01" if n < 20 else "dlv-00")
            again = {record.seq: (record.data, record.ts) for record in client.read(dest)}
            assert again == seen
    assert kind(client, "seen") == ("derived", None)


def test_a_copy_has_the_time_of_its_record(client: Client) -> None:
    source, dest = named("time.a", 0), named("time.b", 1)
    client.routers.create("time", source, dest)
    for n in range(5):
        client.publish(source, b"%d" % n)
    assert [record.ts for record in client.read(dest)] == [record.ts for record in client.read(source)]


@pytest.mark.parametrize("dest_shard", [0, 1])
def test_the_first_direct_write_makes_it_a_logged_one(daemon: Daemon, client: Client, dest_shard: int) -> None:
    router, source, dest = (
        f"flip{dest_shard}",
        named(f"flip{dest_shard}.a", 0),
        named(f"flip{dest_shard}.b", dest_shard),
    )
    client.routers.create(router, source, dest)
    client.publish_many(source, [b"1", b"2"])
    assert client.state(dest).head_seq == 2
    assert client.publish(dest, b"direct") == 3
    client.publish(source, b"3")
    assert kind(client, router) == ("logged", "others write to it")
    daemon.kill(f"dlv-0{dest_shard}")
    assert [record.data for record in client.read(dest)] == [b"1", b"2", b"direct", b"3"]
    assert kind(client, router) == ("logged", "others write to it")


def test_deletes_at_the_source_leave_copies_also_after_a_crash(daemon: Daemon, client: Client) -> None:
    source, dest = named("gone.a", 0), named("gone.b", 1)
    client.routers.create("gone", source, dest)
    client.publish_many(source, [b"1", b"2"], tag="x")
    client.publish(source, b"3")
    assert client.state(dest).head_seq == 3
    client.delete(source, match="x")
    assert kind(client, "gone") == ("logged", "records of its source were deleted")
    crash(daemon)
    assert [(record.seq, record.data) for record in client.read(dest)] == [(1, b"1"), (2, b"2"), (3, b"3")]


def test_evicted_copies_that_are_made_again_are_not_counted_again(tmp_path: Path) -> None:
    """A snapshot knows the floor, no segment has the copies: all of them are made again, and only five are there."""
    source, dest = named("capped.a", 0), named("capped.b", 1)
    often = {"checkpoint_ms": 86_400_000, "snapshot_ms": 100}
    with Daemon(tmp_path, delivery_shards=SHARDS, wal_shards=1, **often) as daemon, daemon.client() as client:
        client.configure(dest, cap_records=5)
        client.routers.create("capped", source, dest)
        client.publish_many(source, [b"%d" % n for n in range(1, 21)])
        assert kind(client, "capped") == ("derived", None)
        wait_until(lambda: client.state(dest).count == 5, "the cap to have done its work")
        size = client.state(dest).bytes
        for _ in range(2):  # the first may have begun before the cap had done its work
            taken = daemon.stats("dlv-01")["snapshots"]
            client.publish(named("other", 1), b"so that there is something to take")
            wait_until(lambda: daemon.stats("dlv-01")["snapshots"] > taken, "a snapshot")  # noqa: B023
        daemon.kill("dlv-01")
        state = client.state(dest)
        assert (state.count, state.bytes, state.evict_floor, state.head_seq) == (5, size, 16, 20)
        assert [record.seq for record in client.read(dest)] == [16, 17, 18, 19, 20]


def test_copies_outlive_their_router_and_their_source(daemon: Daemon, client: Client) -> None:
    source, dest, other = named("end.a", 0), named("end.b", 1), named("end.c", 1)
    client.routers.create("end1", source, dest)
    client.routers.create("end2", source, other)
    client.publish_many(source, [b"1", b"2"])
    assert client.state(dest).head_seq == client.state(other).head_seq == 2
    client.routers.delete("end1")
    client.delete_topic(source)
    crash(daemon)
    for topic in (dest, other):
        assert [record.data for record in client.read(topic)] == [b"1", b"2"]


@pytest.mark.parametrize(
    ("name", "source", "dest", "why"),
    [
        ("ttl", {"ttl_ms": 10_000_000}, {}, "its source has a TTL"),
        ("cap", {"cap_records": 100}, {}, "its source has a cap"),
        ("memory", {"durability": "memory"}, {"durability": "memory"}, "its source is of class memory"),
        ("ephemeral", {"durability": "ephemeral"}, {}, "its source is of class ephemeral"),
        ("acked", {"retain": "acked"}, {}, "its source keeps records only until"),
        ("queue", {"type": "queue"}, {}, "its source is a queue"),
        ("class", {}, {"durability": "fsync"}, "its class fsync promises more than its source's, disk"),
        ("into queue", {}, {"type": "queue"}, "it is a queue"),
        ("into ephemeral", {}, {"durability": "ephemeral"}, "it is ephemeral"),
    ],
)
def test_what_could_not_be_made_again_is_logged_from_the_start(
    client: Client, name: str, source: dict[str, object], dest: dict[str, object], why: str
) -> None:
    a, b, router = (f"why.{name.replace(' ', '-')}.{end}" for end in "abr")
    client.configure(a, **source)
    client.configure(b, **dest)
    client.routers.create(router, a, b)
    client.publish(a, b"x")
    assert client.state(b).head_seq == 1
    told = kind(client, router)
    assert told[0] == "logged"
    assert str(told[1]).startswith(why)


def test_a_copy_of_a_copy_is_logged_and_a_second_router_ends_it(client: Client) -> None:
    client.routers.create("chain1", "chain.a", "chain.b")
    client.publish("chain.a", b"0")
    assert kind(client, "chain1") == ("derived", None)
    client.routers.create("chain2", "chain.b", "chain.c")
    client.publish("chain.a", b"1")
    wait_until(lambda: client.state("chain.c").head_seq == 1, "two hops")
    assert kind(client, "chain2") == ("logged", "its source is derived itself")
    assert kind(client, "chain1") == ("derived", None)
    client.routers.create("chain3", "chain.a", "chain.b", filter="x")
    assert kind(client, "chain1") == ("logged", "another router leads to it")


def test_what_routers_have_not_copied_is_not_freed(daemon: Daemon, client: Client) -> None:
    for shard in (0, 1):
        source, dest = named(f"ack{shard}.a", 0), named(f"ack{shard}.b", shard)
        client.configure(source, retain="acked")
        client.configure(dest, cap_records=3, discard="reject")
        client.routers.create(f"ack{shard}", source, dest)
        client.open_consumer(source, "worker")
        client.publish_many(source, [b"%d" % n for n in range(10)])
        wait_until(lambda shard=shard: client.routers.get(f"ack{shard}").waiting, "a full destination")
        client.ack_consumer(source, "worker", 10)
        wait_until(lambda source=source: client.state(source).earliest_seq == 4, "the rest is kept for the router")
        client.configure(dest, cap_records=0)
        wait_until(lambda dest=dest: client.state(dest).head_seq == 10, "the rest is copied")
        assert [record.data for record in client.read(dest)] == [b"%d" % n for n in range(10)]
        wait_until(lambda source=source: client.state(source).count == 0, "and freed")
