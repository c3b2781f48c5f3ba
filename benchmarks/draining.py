"""How much a delivery shard pushes: receivers that only count, publishers that hardly wait, each a process of its own.

A receiver is one connection with all watches of a channel. It takes bytes from the socket and counts a mark that is in
every message, which is one search through memory, so nearly all that is measured is the shard.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import NamedTuple

import topicd.aio
from topicd.channel import channel_topic
from topicd.client.blocking.connection import dial
from topicd.client.core.requests import of_topic
from topicd.frames import core
from topicd.ipc.protocol.messages import WatchChannel
from topicd.ipc.protocol.wire import FETCHED, HEADER

MARK = b"benchmark of channels: a message"
SIZE = 100
CREDIT = 1 << 30  # of each watch: more than a measurement sends
PUBLISHES = 8  # under way at once
ROUND = 500  # messages before the publisher waits for the receiver: fewer than a channel that keeps nothing remembers
RECEIVED = 1 << 20
PUSH_HEAD = HEADER.size + FETCHED.size  # bytes of a push beside its frames


class Channel(NamedTuple):
    name: str
    shard: str  # its socket
    daemon: str


def receive(link: Connection, round_over: Connection, channel: Channel, members: int, messages: int) -> None:
    """Says "ready", then the CPU seconds that it took until all have all, and how many pushes and reads that were."""
    connection = dial(channel.shard, 60)
    for number in range(members):
        watch = WatchChannel(channel=channel.name, user=f"user-{number}", credit=CREDIT)
        connection.ask(of_topic(watch, channel_topic(channel.name), lambda answer: answer))
    link.send("ready")
    used, found, rest, taken, reads = time.process_time(), 0, b"", 0, 0
    wanted = ROUND * members
    room = bytearray(RECEIVED)
    view = memoryview(room)
    while found < members * messages:
        size = connection.sock.recv_into(room)
        if not size:
            raise SystemExit(f"the daemon has hung up after {found} messages")
        taken += size
        reads += 1
        piece = rest + view[:size]
        found += piece.count(MARK)
        rest = piece[1 - len(MARK) :]  # a mark that is cut in two
        if found >= wanted:
            round_over.send_bytes(b".")
            wanted += ROUND * members
    frame = len(core.encode_batch([bytes(SIZE)], None, b"user-0", None))
    link.send((time.process_time() - used, (taken - found * frame) / PUSH_HEAD, reads))
    connection.close()


def publish(link: Connection, round_over: Connection, channel: Channel, members: int, messages: int) -> None:
    asyncio.run(_publish(link, round_over, channel, messages))


async def _publish(link: Connection, round_over: Connection, channel: Channel, messages: int) -> None:
    data = MARK + os.urandom(SIZE - len(MARK))
    async with topicd.aio.connect(channel.daemon, timeout=120) as client:
        await client.channels.members(channel.name)  # it is connected
        link.send("ready")
        link.recv()
        used = time.process_time()
        for _ in range(messages // ROUND):
            left = iter(range(ROUND))

            async def run(left: Iterator[int] = left) -> None:
                for _ in left:
                    await client.channels.publish(channel.name, data, user="user-0")

            await asyncio.gather(*(run() for _ in range(PUBLISHES)))
            round_over.recv_bytes()
        link.send(time.process_time() - used)


class Drained(NamedTuple):
    deliveries_per_s: float
    of_a_push: float  # deliveries
    of_a_read: float
    publishers_s: float  # CPU
    receivers_s: float


def drain(channels: list[Channel], members: int, messages: int, begins: Callable[[], None]) -> Drained:
    """Every member of every channel gets all messages, whole rounds of them; begins: when everybody is ready."""
    context = get_context("spawn")
    links: list[list[Connection]] = [[], []]
    processes = []
    for channel in channels:
        rounds = context.Pipe()
        for links_of, function, over in zip(links, (receive, publish), rounds, strict=True):
            ours, theirs = context.Pipe()
            links_of.append(ours)
            processes.append(context.Process(target=function, args=(theirs, over, channel, members, messages)))
            processes[-1].start()
    receivers, publishers = links
    for link in (*receivers, *publishers):
        assert link.recv() == "ready"
    begins()
    began = time.perf_counter()
    for link in publishers:
        link.send("go")
    told = [link.recv() for link in receivers]
    took = time.perf_counter() - began
    published = sum(link.recv() for link in publishers)
    for process in processes:
        process.join()
    deliveries = len(channels) * members * messages
    received, pushes, reads = (sum(column) for column in zip(*told, strict=True))
    return Drained(deliveries / took, deliveries / pushes, deliveries / reads, published, received)
