"""A and C: appends one at a time, and batches, through a blocking session."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.peers.base import Peer
from topicd.bench.load import Figures, Load
from topicd.bench.stats import throughput
from topicd.bench.work import check, clock_ns, payloads, timed

MIN_BATCHES = 2


def single(peer: Peer, load: Load) -> Figures:
    """A: the next append starts when the last one is acknowledged."""
    records = payloads(load.size)
    with peer.topics(1, load.durable) as [topic], peer.connect(load.durable) as session:
        session.append(topic, records[0])
        return timed(lambda data: session.append(topic, data), records, load.seconds)


def batched(peer: Peer, load: Load) -> Figures:
    """C: lists of bytes, each acknowledged before the next is sent; nothing may be missing afterwards."""
    with peer.topics(1, load.durable) as [topic], peer.connect(load.durable) as session:
        sent, seconds = repeat(lambda batch: session.append_many(topic, batch), load)
        check(peer.name, session.count(topic), sent)
    return throughput(sent, seconds, load.size)


def repeat(send: Callable[[list[bytes]], object], load: Load) -> tuple[int, float]:
    """Send batches until the time is up: records and seconds, without the first batch, which warms up."""
    batch = payloads(load.size, load.batch)
    send(batch)
    count = 0
    start = now = clock_ns()
    end = start + int(load.seconds * 1e9)
    while now < end or count < MIN_BATCHES:
        send(batch)
        now = clock_ns()
        count += 1
    return count * load.batch, (now - start) / 1e9
