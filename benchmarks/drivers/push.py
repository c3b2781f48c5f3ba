"""E and fan-out: from the call of publish in one process to the record in the hands of another."""

from __future__ import annotations

import time
from functools import partial
from multiprocessing.connection import Connection

from benchmarks.peers.base import Address, Driver, Peer
from topicd.bench.load import Figures, Load
from topicd.bench.stats import latency
from topicd.bench.work import age_ns, payloads, run, stamped
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
    """A record goes out when every subscriber has the one before: its age at each of them and at the last."""
    messages = max(5, min(load.records, load.records * 20 // subscribers))
    with peer.topics(1, load.durable) as [topic]:
        with peer.connect(load.durable) as session:
            session.append(topic, payloads(load.size, 1)[0])
            with Worker(_subscribe_many, peer.address(load.durable), topic, subscribers, messages) as worker:
                worker.wait_ready()
                for data in payloads(load.size, messages):
                    session.append(topic, stamped(data))
                    worker.receive()
                everyone, last = worker.result()
    return {**latency(everyone), "last_p50": latency(last)["p50"]}


def _subscribe_many(
    link: Connection, address: Address, topic: str, subscribers: int, messages: int
) -> tuple[list[int], list[int]]:
    everyone: list[int] = []
    last: list[int] = []
    final = (messages - 1) * subscribers

    def receive(payload: bytes) -> bool:
        age = age_ns(payload)
        everyone.append(age)
        if len(everyone) % subscribers == 0:
            last.append(age)
            link.send(len(everyone))
        # Everybody has all but the last record before the first one gets it.
        return len(everyone) <= final

    run(address.fan(topic, subscribers, lambda: link.send(READY), receive))
    return everyone, last
