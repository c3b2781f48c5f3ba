"""Many topics and growth: does an append or a fetch cost the same when much is stored?

An operation does the same work at every size: a fetch finds FETCH_LIMIT records, the topics are known to the client,
and what the server had to do for earlier operations is over when the clock starts.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import partial

from benchmarks import procs
from benchmarks.peers.base import Cursor, Driver, Peer, Session
from topicd.bench.load import Figures, Load
from topicd.bench.work import batches, payloads, timed

FETCH_LIMIT = 100
LOAD_BATCH = 1000
OPERATIONS = 5_000  # that differ; then they begin anew
APPEND_SHARE = 0.7  # of the time: more than a second in a full run, so that the server's work behind appends counts too
SETTLE_S = 1.5  # longer than anybody waits before he begins to write what he has gathered
QUIET_S = 0.5
QUIET_CPU = 0.1
QUIET_WITHIN_S = 60.0


def many_topics(load: Load) -> dict[str, Driver]:
    """One variant for each number of topics; a server of its own holds each."""
    return {f"{n:,} topics": partial(_many_topics, n) for n in load.steps}


def growth(load: Load) -> dict[str, Driver]:
    """One variant for each number of records stored in one topic; a server of its own holds each."""
    return {f"{n:,} records": partial(_growth, n) for n in load.steps}


def _many_topics(count: int, peer: Peer, load: Load) -> Figures:
    server = peer.sibling(f"topics-{count}")
    places = server.kept("places", lambda: _settled(server, _fill_topics(server, count, load)))
    return _probe(server, places, load)


def _growth(records: int, peer: Peer, load: Load) -> Figures:
    server = peer.sibling(f"growth-{records}")
    places = server.kept("places", lambda: _settled(server, _fill_one(server, records, load)))
    return _probe(server, places, load)


Places = list[tuple[str, Cursor]]


def _fill_topics(server: Peer, count: int, load: Load) -> Places:
    names = [f"many.{i}" for i in range(count)]
    server.make_topics(names, load.durable)
    batch = payloads(load.size, load.records)
    with server.connect(load.durable) as session:
        for name in names:
            session.append_many(name, batch)
    return [(name, None) for name in names]


def _fill_one(server: Peer, records: int, load: Load) -> Places:
    """Fill one topic and remember positions all over it."""
    server.make_topics(["growth.0"], load.durable)
    places: Places = [("growth.0", None)]
    with server.connect(load.durable) as session:
        for number, batch in enumerate(batches(payloads(load.size), LOAD_BATCH, records)):
            cursor = session.append_many("growth.0", batch)
            if number % max(1, records // LOAD_BATCH // 1000) == 0 and (number + 1) * LOAD_BATCH < records:
                places.append(("growth.0", cursor))
    return places


def _settled(server: Peer, places: Places) -> Places:
    """What loading left to do in the background is not what is measured."""
    time.sleep(SETTLE_S)
    deadline = time.monotonic() + QUIET_WITHIN_S
    before = procs.cpu_seconds(server.pids())
    while time.monotonic() < deadline:
        time.sleep(QUIET_S)
        used, before = procs.cpu_seconds(server.pids()) - before, procs.cpu_seconds(server.pids())
        if used < QUIET_CPU * QUIET_S:
            break
    os.sync()
    return places


def _probe(server: Peer, places: Places, load: Load) -> Figures:
    """Fetches and appends at random places, one at a time; fetches first, for appends leave the server work to do."""
    records = payloads(load.size)
    chosen = random.Random(1).choices(places, k=OPERATIONS)
    with server.connect(load.durable) as session:
        for topic in {topic for topic, _ in chosen}:
            session.fetch(topic, None, 1)
        fetches = timed(_fetcher(session, chosen), records, load.seconds * (1 - APPEND_SHARE))
        appends = timed(_appender(session, chosen), records, load.seconds * APPEND_SHARE)
    return {
        "appends": appends["rate"],
        "fetches": fetches["rate"],
        "append_p99": appends["p99"],
        "fetch_p99": fetches["p99"],
    }


def _appender(session: Session, places: Places) -> Callable[[bytes], object]:
    turn = iter(range(10**9))
    return lambda data: session.append(places[next(turn) % len(places)][0], data)


def _fetcher(session: Session, places: Places) -> Callable[[bytes], object]:
    turn = iter(range(10**9))

    def fetch(_: bytes) -> None:
        topic, cursor = places[next(turn) % len(places)]
        found = len(session.fetch(topic, cursor, FETCH_LIMIT)[0])
        if found != FETCH_LIMIT:
            raise RuntimeError(f"{found} records in {topic} behind {cursor}, {FETCH_LIMIT} are stored there")

    return fetch
