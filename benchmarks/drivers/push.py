"""E and fan-out: from the call of publish in one process to the record in the hands of another."""

from __future__ import annotations

import time
from functools import partial
from multiprocessing.connection import Connection

from benchmarks.peers.base import Address, Driver, Peer
from topicd.bench.fan import fan_out as fan_out_to
from topicd.bench.load import Figures, Load
from topicd.bench.stats import latency
from topicd.bench.work import age_ns, payloads, stamped
from topicd.bench.worker import READY, Worker

PACE_S = 0.002
WARM_UP = 10


def push(peer: Peer, load: Load) -> Figures:
    """E: one producer, one subscriber, one record every 2 ms: latency without any queueing."""
    with peer.topics(1, load.durable) as [topic]:
        address = peer.address(load.durable)
        # An empty topic is a special case for some subscribers, and not what is measured.
        with peer.connect(load.durable) as session:
            session.append(topic, payloads(load.size, 1)[0])
            with Worker(_subscribe, address, topic, load.records + WARM_UP) as worker:
                worker.wait_ready()
                for data in payloads(load.size, load.records + WARM_UP):
                    session.append(topic, stamped(data))
                    time.sleep(PACE_S)
                samples: list[int] = worker.result()
    return latency(samples[WARM_UP:])


def _subscribe(link: Connection, address: Address, topic: str, count: int) -> list[int]:
    samples: list[int] = []

    def receive(payload: bytes) -> bool:
        samples.append(age_ns(payload))
        return len(samples) < count

    session = address.session()
    session.tail(topic, lambda: link.send(READY), receive)
    session.close()
    return samples


def fan_out(load: Load) -> dict[str, Driver]:
    """One variant for each number of subscribers."""
    return {f"{n:,} subscribers": partial(_fan_out, n) for n in load.steps}


def _fan_out(subscribers: int, peer: Peer, load: Load) -> Figures:
    with peer.topics(1, load.durable) as [topic], peer.connect(load.durable) as session:
        session.append(topic, payloads(load.size, 1)[0])
        return fan_out_to(
            lambda data: session.append(topic, data), peer.address(load.durable).fan, topic, subscribers, load
        )
