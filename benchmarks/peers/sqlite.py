"""SQLite in WAL mode, inside the client process: one database file for each topic."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.base import Cursor, Driver, Handler, Peer, Session
from topicd.bench.load import Load

POLL_S = 0.001
SCHEMA = "CREATE TABLE IF NOT EXISTS log (seq INTEGER PRIMARY KEY, data BLOB NOT NULL)"
INSERT = "INSERT INTO log (data) VALUES (?)"
SELECT = "SELECT seq, data FROM log WHERE seq > ? ORDER BY seq LIMIT ?"


class SqliteSession:
    def __init__(self, root: Path, durable: bool) -> None:
        self._root = root
        self._synchronous = "FULL" if durable else "NORMAL"
        self._open: dict[str, sqlite3.Connection] = {}

    def database(self, topic: str) -> sqlite3.Connection:
        found = self._open.get(topic)
        if found is None:
            found = sqlite3.connect(self._root / f"{topic}.db", isolation_level=None, timeout=30)
            found.execute("PRAGMA journal_mode=WAL")
            found.execute(f"PRAGMA synchronous={self._synchronous}")
            found.execute(SCHEMA)
            self._open[topic] = found
        return found

    def append(self, topic: str, data: bytes) -> object:
        return self.database(topic).execute(INSERT, (data,))

    def append_many(self, topic: str, batch: list[bytes]) -> Cursor:
        database = self.database(topic)
        database.execute("BEGIN IMMEDIATE")
        database.executemany(INSERT, [(data,) for data in batch])
        database.execute("COMMIT")
        return database.execute("SELECT last_insert_rowid()").fetchone()[0]

    def fetch(self, topic: str, after: Cursor, limit: int) -> tuple[Sequence[bytes], Cursor]:
        found = self.database(topic).execute(SELECT, (after or 0, limit)).fetchall()
        return [data for _, data in found], found[-1][0] if found else after

    def count(self, topic: str) -> int:
        return int(self.database(topic).execute("SELECT count(*) FROM log").fetchone()[0])

    def tail(self, topic: str, ready: Callable[[], None], handler: Handler) -> None:
        cursor = self.database(topic).execute("SELECT coalesce(max(seq), 0) FROM log").fetchone()[0]
        ready()
        while True:
            found, cursor = self.fetch(topic, cursor, 1000)
            for data in found:
                if not handler(data):
                    return
            if not found:
                time.sleep(POLL_S)

    def close(self) -> None:
        for database in self._open.values():
            database.close()
        self._open.clear()


@dataclass(frozen=True)
class SqliteAddress:
    root: Path
    durable: bool

    def session(self) -> Session:
        return SqliteSession(self.root, self.durable)

    async def fan(self, topic: str, subscribers: int, ready: Callable[[], None], handler: Handler) -> None:
        raise NotImplementedError("SQLite has no push")


class Sqlite(Peer):
    name = "sqlite"
    is_server = False

    @classmethod
    def missing(cls) -> str | None:
        return None

    def pids(self) -> list[int]:
        """The caller itself: the library syncs in the process that appends."""
        return [os.getpid()]

    def address(self, durable: bool) -> SqliteAddress:
        return SqliteAddress(self.root, durable)

    def make_topics(self, names: Sequence[str], durable: bool) -> None:
        with self.connect(durable) as session:
            for name in names:
                session.count(name)

    def drop_topics(self, names: Sequence[str]) -> None:
        for name in names:
            for suffix in ("", "-wal", "-shm"):
                (self.root / f"{name}.db{suffix}").unlink(missing_ok=True)

    def facts(self) -> dict[str, str]:
        return {
            "version": f"SQLite {sqlite3.sqlite_version}",
            "settings": "journal_mode WAL, synchronous FULL (durable) or NORMAL (relaxed), in process",
        }

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        from benchmarks.drivers import sqlite as drivers

        return drivers.drivers(test, load)
