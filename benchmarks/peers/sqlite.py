"""SQLite in WAL mode, inside the client process: one database file for each topic."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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


class SqliteWorker:
    """A table of jobs: a claim marks the row, finishing deletes it."""

    def __init__(self, path: Path, durable: bool) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, timeout=60)
        self._run = self._database.execute
        self._run("PRAGMA journal_mode=WAL")
        self._run(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self._run("CREATE TABLE IF NOT EXISTS jobs (id INTEGER PRIMARY KEY, data BLOB NOT NULL, held INTEGER)")
        self._run("CREATE INDEX IF NOT EXISTS free ON jobs (id) WHERE held IS NULL")
        self._held: list[tuple[int]] = []

    def put(self, data: bytes) -> object:
        return self._run("INSERT INTO jobs (data) VALUES (?)", (data,))

    def put_many(self, batch: list[bytes]) -> object:
        self._run("BEGIN IMMEDIATE")
        self._database.executemany("INSERT INTO jobs (data) VALUES (?)", [(data,) for data in batch])
        return self._run("COMMIT")

    def _claim(self, limit: int) -> list[tuple[int, bytes]]:
        return self._run(
            "UPDATE jobs SET held = unixepoch() + 30 WHERE id IN (SELECT id FROM jobs WHERE held IS NULL ORDER BY id "
            "LIMIT ?) RETURNING id, data",
            (limit,),
        ).fetchall()

    def _finish(self, ids: list[tuple[int]]) -> None:
        if len(ids) == 1:
            self._run("DELETE FROM jobs WHERE id = ?", ids[0])
        elif ids:
            self._run("BEGIN IMMEDIATE")
            self._database.executemany("DELETE FROM jobs WHERE id = ?", ids)
            self._run("COMMIT")

    def one(self) -> bytes | None:
        found = self.some(1)
        return found[0] if found else None

    def some(self, limit: int) -> list[bytes]:
        found = self._claim(limit)
        self._finish([(row[0],) for row in found])
        return [row[1] for row in found]

    def wait(self) -> bytes:
        self._finish(self._held)
        while not (found := self._claim(1)):
            time.sleep(POLL_S)
        self._held = [(found[0][0],)]
        return found[0][1]

    def close(self) -> None:
        self._database.close()


@dataclass(frozen=True)
class SqliteQueue:
    path: Path
    durable: bool

    def open(self) -> SqliteWorker:
        return SqliteWorker(self.path, self.durable)


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

    @contextlib.contextmanager
    def queue(self, durable: bool) -> Iterator[SqliteQueue]:
        with self.topics(1, durable) as [name]:
            found = SqliteQueue(self.root / f"{name}.jobs.db", durable)
            found.open().close()
            try:
                yield found
            finally:
                for path in self.root.glob(f"{name}.jobs.db*"):
                    path.unlink(missing_ok=True)

    def facts(self) -> dict[str, str]:
        return {
            "version": f"SQLite {sqlite3.sqlite_version}",
            "settings": "journal_mode WAL, synchronous FULL (durable) or NORMAL (relaxed), in process",
        }

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        from benchmarks.drivers import sqlite as drivers

        return drivers.drivers(test, load)
