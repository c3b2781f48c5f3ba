"""Broadcast: from the call of publish to the message in the hands of each of many connected members, and the same for
watchers of a plain topic.

    python -m benchmarks.channels --members 1000 --messages 40

A message goes out when every member has the one before. The members of a channel are tasks of one process, as in the
test `fanout`, so their own time counts as well. Two channels are two such processes and two publishers, in two shards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import topicd
import topicd.aio
from topicd.bench.work import age_ns, stamped
from topicd.channel import channel_topic
from topicd.client.core.channels import ChannelMessage
from topicd.placement import delivery_shard

SIZE = 100
WARM_UP = 3


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


def together(socket: str, names: list[str], count: int, messages: int) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    threads = [
        threading.Thread(target=lambda name=name: found.append(measure(socket, name, count, messages, plain=False)))
        for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def in_two_shards() -> list[str]:
    names = [f"bench/{n}" for n in range(50)]
    return [next(name for name in names if delivery_shard(channel_topic(name), 2) == shard) for shard in (0, 1)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.channels")
    parser.add_argument("--members", type=int, default=1_000)
    parser.add_argument("--messages", type=int, default=40)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        command = [sys.executable, "-m", "topicd", f"--data-dir={root}/data", f"--run-dir={root}/run"]
        daemon = subprocess.Popen([*command, "--delivery-shards=2", "--wal-shards=1"], stdout=subprocess.DEVNULL)
        socket = str(Path(root) / "run" / "topicd.sock")
        try:
            with topicd.connect(socket, wait=30) as client:
                client.configure("plain", durability="disk")
            for name, count, messages, plain, persist in (
                ("plain", given.members, given.messages, True, False),
                ("bench/live", given.members, given.messages, False, False),
                ("bench/kept", given.members, given.messages, False, True),
            ):
                if not plain:
                    prepare(socket, name, count, persist=persist)
                print(name, json.dumps(measure(socket, name, count, messages, plain=plain)), flush=True)
            names = in_two_shards()
            for name in names:
                prepare(socket, name, given.members // 2, persist=False)
            one = together(socket, names[:1], given.members // 2, given.messages)
            print("one channel, half the members", json.dumps(one), flush=True)
            print("two channels, half each", json.dumps(together(socket, names, given.members // 2, given.messages)))
        finally:
            daemon.terminate()
            daemon.wait(30)
    return 0


if __name__ == "__main__":
    sys.exit(main())
