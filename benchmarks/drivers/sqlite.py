"""SQLite at its best from Python: executemany in one transaction, one statement over the whole table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.drivers import append, consume, mixed, push, queue, scale
from benchmarks.peers.base import Driver
from benchmarks.peers.sqlite import Sqlite, SqliteSession
from topicd.bench.load import Figures, Load
from topicd.bench.work import clock_ns

CHUNK = 10_000


def drivers(test: str, load: Load) -> Mapping[str, Driver]:
    found: dict[str, Driver] = {}
    if test == "A":
        found = {"INSERT": append.single}
    elif test == "C":
        found = {"executemany": append.batched}
    elif test == "D":
        found = {"SELECT": select, "SELECT … LIMIT": consume.scan}
    elif test == "E":
        found = {"1 ms polling": push.push}
    elif test == "F":
        found = queue.drivers(load, "UPDATE, DELETE", "UPDATE, DELETE 100", "1 ms polling")
    elif test == "growth":
        found = scale.growth(load)
    elif test == "mixed":
        found = {"": mixed.mixed}
    return found


def select(peer: Sqlite, load: Load) -> Figures:
    """D: one cursor over the table."""
    topic = peer.dataset(load.size, load.records)
    session = SqliteSession(peer.root, False)
    try:
        return consume.touch_all(peer, load, _payloads(session, topic), clock_ns())
    finally:
        session.close()


def _payloads(session: SqliteSession, topic: str) -> Iterator[list[bytes]]:
    cursor = session.database(topic).execute("SELECT data FROM log ORDER BY seq")
    while rows := cursor.fetchmany(CHUNK):
        yield [data for (data,) in rows]
