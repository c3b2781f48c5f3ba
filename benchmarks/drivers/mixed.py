"""Mixed load: a producer, tailing consumers and a reader that catches up, each in its own process."""

from __future__ import annotations

from multiprocessing.connection import Connection

from benchmarks.peers.base import Address, Peer
from topicd.bench.load import Figures, Load
from topicd.bench.stats import latency
from topicd.bench.work import age_ns, clock_ns, payloads, stamped, touch
from topicd.bench.worker import READY, Worker

BATCH = 10
END = b"end-of-test-"


def mixed(peer: Peer, load: Load) -> Figures:
    """One producer (this process, durable batches of 10), two tails, one catch-up reader."""
    history = peer.dataset(load.size, load.records)
    # First, for with some peers the class asked for last is that of the whole server.
    history_address = peer.address(False)
    with peer.topics(1, load.durable) as [topic], peer.connect(load.durable) as session:
        session.append(topic, payloads(load.size, 1)[0])
        address = peer.address(load.durable)
        with (
            Worker(_tail, address, topic) as first,
            Worker(_tail, address, topic) as second,
            Worker(_catch_up, history_address, history, load) as reader,
        ):
            for worker in (first, second, reader):
                worker.wait_ready()
            reader.go()
            rest = payloads(load.size, BATCH)
            sent = 0
            start = now = clock_ns()
            while now < start + int(load.seconds * 1e9):
                session.append_many(topic, [stamped(data) for data in rest])
                sent += BATCH
                now = clock_ns()
            session.append(topic, END + rest[0])
            samples = first.result() + second.result()
            caught_up: float = reader.result()
    if len(samples) != 2 * sent:
        raise RuntimeError(f"{peer.name} pushed {len(samples)} of {2 * sent} records")
    return {**latency(samples), "rate": sent / ((now - start) / 1e9), "catch_up": caught_up}


def _tail(link: Connection, address: Address, topic: str) -> list[int]:
    samples: list[int] = []

    def receive(payload: bytes) -> bool:
        if payload.startswith(END):
            return False
        samples.append(age_ns(payload))
        return True

    session = address.session()
    session.tail(topic, lambda: link.send(READY), receive)
    session.close()
    return samples


def _catch_up(link: Connection, address: Address, topic: str, load: Load) -> float:
    """Records per second, read from the start again and again until the time is up."""
    session = address.session()
    link.send(READY)
    link.recv()
    seen = 0
    cursor = None
    start = now = clock_ns()
    while now < start + int(load.seconds * 1e9):
        found, cursor = session.fetch(topic, cursor, load.batch)
        seen += touch(found)
        if len(found) < load.batch:
            cursor = None
        now = clock_ns()
    session.close()
    return seen / ((now - start) / 1e9)
