"""Routers through a real daemon, whose topics live in two shards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.process.cli_kit import run_ctl
from tests.process.wire import Wire, owner
from tests.support.daemon import LIVELY, Daemon, wait_until
from topicd import aio
from topicd.cli.exits import Exit
from topicd.client.blocking.client import Client
from topicd.client.core.records import Gap
from topicd.errors import Incompatible, RouterCycle, RouterNotFound, Throttled, TopicNotFound
from topicd.ipc.protocol.messages import Op
from topicd.limits import ROUTERS
from topicd.placement import delivery_shard

SHARDS = 2
OWNER = delivery_shard(ROUTERS, SHARDS)


def named(prefix: str, shard: int) -> str:
    """A topic name that belongs to that shard."""
    return next(name for n in range(100) if delivery_shard(name := f"{prefix}{n}", SHARDS) == shard)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("routers"), delivery_shards=SHARDS, wal_shards=1, **LIVELY) as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    yield (made := daemon.client())
    for router in list(made.routers.list()):
        made.routers.delete(router.router)


def datas(client: Client, topic: str) -> list[bytes]:
    return [record.data for record in client.read(topic)]


@pytest.mark.parametrize("dest_shard", [0, 1])
@pytest.mark.parametrize("source_shard", [0, 1])
def test_a_copy_is_there_when_its_record_is_acknowledged(client: Client, source_shard: int, dest_shard: int) -> None:
    source, dest = (
        named(f"ryw{source_shard}{dest_shard}.a", source_shard),
        named("ryw.b", dest_shard) + str(source_shard),
    )
    client.routers.create(f"{source}->{dest}", source, dest)
    for n in range(20):
        client.publish(source, b"%d" % n, tag="t", node="n", meta={"m": n})
        if n % 3 == 0:
            assert client.state(dest).head_seq == n + 1
        elif n % 3 == 1:
            assert client.routers.get(f"{source}->{dest}").forwarded_total == n + 1
        else:
            assert len(datas(client, dest)) == n + 1
    (first, *_) = client.read(dest)
    assert (first.tag, first.node, first.meta) == ("t", "n", {"m": 0})


@pytest.mark.parametrize("dest_shard", [0, 1])
@pytest.mark.parametrize("source_shard", [0, 1])
def test_a_subscription_begins_behind_what_its_sources_had_acknowledged(
    daemon: Daemon, client: Client, source_shard: int, dest_shard: int
) -> None:
    source = named(f"sub{source_shard}{dest_shard}.a", source_shard)
    dest = named(f"sub{source_shard}{dest_shard}.b", dest_shard)
    client.routers.create(source, source, dest)
    link = Wire(owner(daemon.run.root, dest, SHARDS))
    for n in range(10):
        client.publish(source, b"before %d" % n)
        subscription = link.subscribe([{"topic": dest, "tail": True}])
        client.publish(source, b"behind %d" % n)
        assert link.pushed(subscription).datas == [b"behind %d" % n]
        link.ask(Op.UNSUBSCRIBE, {"subscription": subscription})


def test_a_filter_that_nothing_passes_keeps_no_reader_waiting(client: Client) -> None:
    source, dest = named("none.a", 0), named("none.b", 1)
    client.routers.create("none", source, dest, filter="eu:*")
    for _ in range(5):
        client.publish(source, b"x", tag="us:1")
        assert client.state(dest).head_seq == 0
    info = client.routers.get("none")
    assert (info.forwarded_total, info.cursor, info.lag, info.waiting) == (0, 5, 0, None)


def test_checks_refuse_and_leave_nothing_behind(client: Client) -> None:
    client.routers.create("ab", "chk.a", "chk.b")
    client.routers.create("bc", "chk.b", "chk.c")
    with pytest.raises(Incompatible) as fan_in:
        client.routers.create("xb", "chk.x", "chk.b")
    assert fan_in.value.detail["reason"] == "router_dest_fan_in"
    with pytest.raises(Incompatible) as repoint:
        client.routers.create("ab", "chk.a", "chk.z")
    assert repoint.value.detail["reason"] == "router_repoint_forbidden"
    with pytest.raises(RouterCycle) as cycle:
        client.routers.create("ca", "chk.c", "chk.a")
    assert cycle.value.detail["cycle"] == ["chk.c", "chk.a", "chk.b", "chk.c"]
    with pytest.raises(TopicNotFound):
        client.routers.create("ay", "chk.a", "chk.y", create_dest=False)
    with pytest.raises(RouterNotFound):
        client.routers.get("nobody")
    assert {topic.topic for topic in client.topics("chk.")} == {"chk.a", "chk.b", "chk.c"}
    again = client.routers.create("ab", "chk.a", "chk.b")
    assert (again.created, again.changed) == (False, False)
    again = client.routers.create("ab", "chk.a", "chk.b", sample=2)
    assert (again.created, again.changed, again.router.sample) == (False, True, 2)
    assert client.routers.create("ab", "chk.a", "chk.b").changed


def test_creators_at_the_same_time_make_one(daemon: Daemon) -> None:
    async def race() -> list[bool]:
        async with aio.connect(daemon.run.root) as client:
            made = await asyncio.gather(*(client.routers.create("race", "race.a", "race.b") for _ in range(20)))
            await client.routers.delete("race")
            return [one.created for one in made]

    assert sorted(asyncio.run(race())) == [False] * 19 + [True]


def test_a_topic_goes_with_its_routers(client: Client) -> None:
    for n in range(3):
        client.routers.create(f"cas{n}", "cas.a", f"cas.d{n}")
    client.routers.create("casb", "cas.b", "cas.a")
    assert client.routers.of("cas.a").leaving == ["cas0", "cas1", "cas2"]
    assert client.routers.of("cas.a").reaching == ["casb"]
    client.delete_topic("cas.a")
    assert list(client.routers.list("cas")) == []
    client.publish("cas.a", b"another topic of that name")
    assert client.state("cas.d0").head_seq == 0


def test_whoever_deletes_a_topic_in_the_shell_is_told_which_routers_go_with_it(daemon: Daemon, client: Client) -> None:
    for n in range(7):
        client.routers.create(f"gone{n}", "gone.a", f"gone.d{n}")
    said = run_ctl(daemon, "topic", "delete", "gone.d1", "--yes").stdout
    assert said == "deleted gone.d1 and 0 records and 1 router (gone1)\n"
    said = run_ctl(daemon, "topic", "delete", "gone.a", "--yes").stdout
    assert said == "deleted gone.a and 0 records and 6 routers (gone0, gone2, gone3, gone4, gone5, …)\n"
    client.publish("gone.a", b"x")
    told = json.loads(run_ctl(daemon, "topic", "delete", "gone.a", "--yes", "--json").stdout)
    assert (told["count"], told["routers"]) == (1, [])


def test_a_stalled_destination_stops_its_own_router_only(client: Client) -> None:
    source, full, other = named("stall.a", 0), named("stall.full", 1), named("stall.b", 1)
    client.configure(full, cap_records=10, discard="reject")
    client.routers.create("stuck", source, full)
    client.routers.create("fine", source, other)
    client.publish_many(source, [b"%d" % n for n in range(25)])
    assert len(datas(client, other)) == 25
    assert datas(client, full) == [b"%d" % n for n in range(10)]
    stuck = wait_until(lambda: (one := client.routers.get("stuck")).waiting and one, "the router says why it waits")
    assert (stuck.waiting, stuck.lag, stuck.forwarded_total) == ("its destination is full", 15, 10)
    client.delete(full, before_seq=10**6)
    wait_until(lambda: client.state(full).head_seq == 20, "it goes on when there is room")
    assert datas(client, full) == [b"%d" % n for n in range(10, 20)]
    client.configure(full, cap_records=0)
    wait_until(lambda: client.state(full).head_seq == 25, "and to the end")


def test_a_circle_ends_after_eight_hops(client: Client) -> None:
    a, b = named("circle.a", 0), named("circle.b", 1)
    client.routers.create("a-b", a, b)
    client.routers.create("b-a", b, a, allow_cycle=True)
    client.publish(a, b"x", node="A")
    wait_until(lambda: (client.state(a).head_seq, client.state(b).head_seq) == (5, 4), "8 hops, and no more")
    assert list(client.read(a, exclude_nodes="A")) == list(client.read(b, exclude_nodes="A")) == []
    client.publish(b, b"y", node="B")
    wait_until(lambda: (client.state(a).head_seq, client.state(b).head_seq) == (9, 9), "the other way round, too")


def test_two_masters_see_each_others_records_once(client: Client) -> None:
    a, b = named("mm.a", 0), named("mm.b", 1)
    client.routers.create("mm.a-b", a, b, filter="A:*")
    client.routers.create("mm.b-a", b, a, filter="B:*", allow_cycle=True)
    for n in range(50):
        client.publish(a, b"a%d" % n, node="A", tag=f"A:{n}")
        client.publish(b, b"b%d" % n, node="B", tag=f"B:{n}")
    assert [record.data for record in client.read(a, exclude_nodes="A")] == [b"b%d" % n for n in range(50)]
    assert [record.data for record in client.read(b, exclude_nodes="B")] == [b"a%d" % n for n in range(50)]
    assert client.state(a).head_seq == client.state(b).head_seq == 100


def test_a_claim_finds_the_jobs_that_a_router_brings(client: Client) -> None:
    source, queue = named("job.a", 0), named("job.q", 1)
    client.configure(queue, type="queue")
    client.routers.create("jobs", source, queue)
    client.publish_many(source, [b"%d" % n for n in range(5)])
    assert [job.data for job in client.queue(queue).claim(10)] == [b"%d" % n for n in range(5)]


def test_the_asyncio_face_has_the_same(daemon: Daemon) -> None:
    async def go() -> tuple[Any, ...]:
        async with aio.connect(daemon.run.root) as client:
            created = await client.routers.create("aio", "aio.a", "aio.b", sample=1, exactly_once=True)
            await client.publish("aio.a", b"x")
            info = await client.routers.get("aio")
            listed = [one.router async for one in client.routers.list("aio")]
            of = await client.routers.of("aio.a")
            gone = await client.routers.delete("aio")
            return created.created, info.forwarded_total, listed, of.leaving, gone

    assert asyncio.run(go()) == (True, 1, ["aio"], ["aio"], True)


def test_the_number_of_routers_is_limited(tmp_path: Path) -> None:
    with Daemon(tmp_path / "d", delivery_shards=1, wal_shards=1, max_routers=1) as daemon:
        client = daemon.client()
        client.routers.create("one", "a", "b")
        with pytest.raises(Throttled) as refused:
            daemon.client(timeout=0.5).routers.create("two", "a", "c")
        assert refused.value.detail["limit"] == "max_routers"
        client.routers.create("one", "a", "b", preserve_tag=False)
        assert "c" not in [topic.topic for topic in client.topics()]


def test_holes_of_a_trimmed_source_survive_a_crash(tmp_path: Path) -> None:
    source, dest = named("trim.a", 0), named("trim.b", 1)
    with Daemon(tmp_path / "d", delivery_shards=SHARDS, wal_shards=1, **LIVELY) as daemon:
        client = daemon.client()
        client.configure(source, cap_records=5)
        client.configure(dest, cap_records=2, discard="reject")
        client.routers.create("trim", source, dest)
        client.publish_many(source, [b"a", b"b"])
        assert datas(client, dest) == [b"a", b"b"]
        for n in range(40):  # more than the window between the shards holds
            client.publish(source, b"%d" % n + bytes(100_000))
        client.configure(dest, cap_records=0)
        wait_until(lambda: client.state(dest).head_seq == 42, "a hole and what is left")
        before = (client.state(dest).count, client.routers.get("trim").forwarded_total)
        assert before[1] == 42
        daemon.kill("dlv-00")
        daemon.kill("dlv-01")
        client.publish(source, b"after")
        assert client.state(dest).head_seq == 43
        assert client.state(dest).count == before[0] + 1
        gaps = [batch.tombstone for batch in client.history(dest) if batch.tombstone is not None]
        assert [gap.reason for gap in gaps] == ["source_trim"]


@pytest.mark.parametrize("dest_shard", [0, 1])
def test_records_of_a_source_that_rots_are_given_up_by_an_operator_only(tmp_path: Path, dest_shard: int) -> None:
    source, dest = named("rot.a", 0), named("rot.b", dest_shard)
    with Daemon(tmp_path / "d", delivery_shards=SHARDS, wal_shards=1, **LIVELY) as daemon:
        client = daemon.client()
        client.configure(dest, cap_records=10, discard="reject")
        client.routers.create("rot", source, dest)
        client.publish_many(source, [b"record %d" % n for n in range(1, 1201)])
        folder = daemon.data.topic(client.state(source).topic_id)
        wait_until(lambda: list(folder.glob("*.tags")), "a sealed segment")
        data = min(folder.glob("*.tags")).with_suffix(".data")
        daemon.stop()
        content = bytearray(data.read_bytes())
        content[len(content) // 2] ^= 0xFF
        data.write_bytes(content)
        daemon.start().wait_ready()
        client.configure(dest, cap_records=0)
        wait_until(lambda: client.routers.get("rot").unreadable is not None, "the router to stand")
        info = client.routers.get("rot")
        assert info.unreadable is not None and info.cursor == info.unreadable[0] - 1 and info.lag == 1200 - info.cursor
        first, last = info.unreadable
        shown = run_ctl(daemon, "router", "show", "rot").stdout
        assert f"seqs {first} to {last} of {source}" in shown and "router skip" in shown
        assert "--yes" in run_ctl(daemon, "router", "skip", "rot", code=Exit.USAGE).stderr
        assert client.state(dest).head_seq == info.cursor
        (given_up,) = json.loads(run_ctl(daemon, "router", "skip", "rot", "--all", "--yes", "--json").stdout)
        assert given_up == {"skipped": [first, last], "hole": [first, last]}
        wait_until(lambda: client.state(dest).head_seq == 1200, "the rest")
        daemon.kill_all(Random(3))
        daemon.restart()
        missing = [seq for seq in range(1, 1201) if not first <= seq <= last]
        gaps: list[Gap] = []
        found = [(one.seq, one.data) for one in client.read(dest, on_gap=gaps.append)]
        assert found == [(seq, b"record %d" % seq) for seq in missing]
        told = [gap.tombstone for gap in gaps]
        assert [(one.reason, one.gap_from, one.gap_to) for one in told] == [("source_trim", first, last)]
        assert "does not stand" in run_ctl(daemon, "router", "skip", "rot", "--yes", code=Exit.REFUSED).stderr
        assert "has given up records that cannot be read" in daemon.log_path.read_text()
