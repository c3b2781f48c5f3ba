"""Broadcast: from the call of publish to the message in the hands of each of many connected members, and the same for
watchers of a plain topic.

    make bench ONLY=channels
    python -m benchmarks.channels --members 1000 --messages 40

A message goes out when every member has the one before. The members of a channel are tasks of one process, as in the
test `fanout`, so their own time counts as well.

Whether two channels in two shards are quicker than one is measured with receivers that only count
(benchmarks/draining.py), beside what a delivery costs each process: on few cores these are in each other's way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import topicd
import topicd.aio
from benchmarks.draining import Channel, drain
from topicd.bench.work import age_ns, stamped
from topicd.channel import channel_topic
from topicd.client.core.channels import ChannelMessage
from topicd.paths import RunDir
from topicd.placement import delivery_shard

SIZE = 100
WARM_UP = 3
SHARDS = 2
DRAINED = 100  # times as many messages where nobody waits for each


def members(link: Connection, socket: str, name: str, count: int, messages: int, plain: bool) -> None:
    """In a process of its own: everybody receives every message, and the ages are told at the end."""
    asyncio.run(_members(link, socket, name, count, messages, plain))


async def _members(link: Connection, socket: str, name: str, count: int, messages: int, plain: bool) -> None:
    ages: list[list[int]] = [[] for _ in range(messages)]

    async def follow(items: AsyncIterator[Any]) -> None:
        for mine in ages:
            item = await anext(items)
            assert isinstance(item, topicd.Record | ChannelMessage)
            mine.append(age_ns(item.data))
            if len(mine) == count:
                link.send("next")

    async with topicd.aio.connect(socket) as client:
        watches: list[Any] = []
        for number in range(count):
            if plain:
                watches.append(await client.watch(name, "latest"))
            else:
                watches.append(await client.channels.watch(name, user=f"user-{number}"))
        link.send("ready")
        await asyncio.gather(*(follow(watch) for watch in watches))
        link.send(ages[WARM_UP:])
        for watch in watches:
            await watch.close()


def measure(socket: str, name: str, count: int, messages: int, *, plain: bool) -> dict[str, float]:
    """Milliseconds: over all members, and until the last one has it."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=members, args=(theirs, socket, name, count, messages, plain))
    process.start()
    with topicd.connect(socket) as client:
        publish: Callable[[bytes], object]
        if plain:
            publish = lambda data: client.publish(name, data)  # noqa: E731
        else:
            publish = lambda data: client.channels.publish(name, data, user="user-0")  # noqa: E731
        assert ours.recv() == "ready"
        began = time.perf_counter()
        for _ in range(messages):
            publish(stamped(bytes(SIZE)))
            assert ours.recv() == "next"
        took = time.perf_counter() - began
        ages = ours.recv()
    process.join()
    everyone = sorted(age / 1e6 for mine in ages for age in mine)
    last = sorted(max(mine) / 1e6 for mine in ages)
    return {
        "p50": round(statistics.median(everyone), 2),
        "p99": round(everyone[int(len(everyone) * 0.99)], 2),
        "last_p50": round(statistics.median(last), 2),
        "deliveries_per_s": round(count * messages / took),
    }


def prepare(socket: str, name: str, count: int, *, persist: bool) -> None:
    with topicd.connect(socket) as client:
        for number in range(count):
            client.channels.join(name, user=f"user-{number}")
        if persist:
            client.channels.set_config(name, persist=True)


def shards_cpu(socket: str) -> dict[str, float]:
    with topicd.connect(socket) as client:
        return {row["name"]: row["cpu_s"] for row in client.status()["processes"] if row["name"] != "supervisor"}


def drained(run: RunDir, names: list[str], count: int, messages: int) -> dict[str, float]:
    """With the CPU time of one delivery, in microseconds, of each process."""
    socket, before = str(run.socket), {}
    shards = [str(run.delivery_socket(delivery_shard(channel_topic(name), SHARDS))) for name in names]
    channels = [Channel(name, shard, socket) for name, shard in zip(names, shards, strict=True)]
    found = drain(channels, count, messages, lambda: before.update(shards_cpu(socket)))
    cost = {name: spent - before[name] for name, spent in shards_cpu(socket).items()}
    cost |= {"publishers": found.publishers_s, "receivers": found.receivers_s}
    deliveries = len(names) * count * messages
    told = {f"{name}_us": round(spent / deliveries * 1e6, 2) for name, spent in cost.items()}
    together = {"of_a_push": round(found.of_a_push, 1), "of_a_read": round(found.of_a_read, 1)}
    return {"deliveries_per_s": round(found.deliveries_per_s), **together, **told}


def in_two_shards() -> list[str]:
    names = [f"bench/{n}" for n in range(50)]
    return [next(name for name in names if delivery_shard(channel_topic(name), SHARDS) == shard) for shard in (0, 1)]


def bench(work_dir: Path, *, quick: bool) -> int:
    return run(work_dir, *((100, 10) if quick else (1_000, 40)))


def run(root: Path, count: int, messages: int, *, only_drained: bool = False) -> int:
    with tempfile.TemporaryDirectory(prefix="topicd-channels-") as run_dir:
        command = [sys.executable, "-m", "topicd", f"--data-dir={root}/data", f"--run-dir={run_dir}"]
        daemon = subprocess.Popen(
            [*command, f"--delivery-shards={SHARDS}", "--wal-shards=1"], stdout=subprocess.DEVNULL
        )
        try:
            place = RunDir(Path(run_dir))
            if not only_drained:
                _measure_members(str(place.socket), count, messages)
            _measure_two(place, count, messages)
        finally:
            daemon.terminate()
            daemon.wait(30)
    return 0


def _measure_members(socket: str, count: int, messages: int) -> None:
    with topicd.connect(socket, wait=30) as client:
        client.configure("plain", durability="disk")
    plain = measure(socket, "plain", count, messages, plain=True)
    print(f"{count} watchers of a plain topic", json.dumps(plain), flush=True)
    for name, persist in (("bench/live", False), ("bench/kept", True)):
        prepare(socket, name, count, persist=persist)
        found = measure(socket, name, count, messages, plain=False)
        share = round(found["p50"] / plain["p50"], 2)
        what = "persistent" if persist else "live"
        print(f"{count} members of a {what} channel", json.dumps({**found, "p50_of_plain": share}), flush=True)


def _measure_two(run: RunDir, count: int, messages: int) -> None:
    socket, names = str(run.socket), in_two_shards()
    with topicd.connect(socket, wait=30):
        pass
    for name in names:
        prepare(socket, name, count // 2, persist=False)
    for many in (names[:1], names[1:], names):
        found = drained(run, many, count // 2, messages * DRAINED)
        print(f"{len(many)} of two channels in two shards, half the members each", json.dumps(found), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.channels")
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=40)
    parser.add_argument("--drained", action="store_true", help="only two channels in two shards")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        return run(Path(root), given.members, given.messages, only_drained=given.drained)


if __name__ == "__main__":
    sys.exit(main())
