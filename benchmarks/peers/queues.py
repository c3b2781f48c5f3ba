"""Embedded queues of Python: ours and the libraries that people use today, each as its documentation advises.

None of them has a server. `durable` means that a message is on the disk when put() returns, where the library can do
that; those that cannot are left out of these cases.
"""

from __future__ import annotations

import importlib.util
import os
import sqlite3
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.drivers import filechannel
from benchmarks.drivers.filechannel import Queue
from benchmarks.model import CHANNEL
from benchmarks.peers.base import Address, Driver, Peer
from topicd.bench.load import Load


class LibraryPeer(Peer):
    is_server = False
    has_sessions = False
    package: ClassVar[str]
    distribution: ClassVar[str]
    settings: ClassVar[str]
    many: ClassVar[bool] = False
    preload: ClassVar[int] = 1
    can_sync: ClassVar[bool] = True

    @classmethod
    def missing(cls) -> str | None:
        return None if importlib.util.find_spec(cls.package) else f"{cls.distribution} is not installed"

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        if test != filechannel.TEST or (load.durable and not self.can_sync):
            return {}
        return filechannel.drivers(self, load)

    def queue(self, directory: Path, durable: bool) -> Queue:
        raise NotImplementedError

    def facts(self) -> dict[str, str]:
        return {"version": f"{self.distribution} {version(self.distribution)}", "settings": self.settings}

    def address(self, durable: bool) -> Address:
        raise NotImplementedError("a library has no server")


class ChannelQueue:
    def __init__(self, directory: Path, durable: bool) -> None:
        from topicd.filechannel import FileChannel

        self._channel = FileChannel(directory, durability="fsync" if durable else "os")
        self._receiver = self._channel.receiver("reader", auto_ack=True)
        sender = self._channel.sender()
        self.put, self.put_many = sender.send, sender.send_many
        self.get = self._receiver.recv

    def get_many(self, limit: int) -> int:
        return len(self._receiver.recv_many(limit))

    def close(self) -> None:
        self._channel.close()


class Channel(LibraryPeer):
    name = CHANNEL
    package, distribution = "topicd", "topicd"
    settings = "durability fsync (durable) or os (relaxed), acknowledged one by one"
    many, preload = True, 20

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        if test == filechannel.TEST and load.steps[0] == filechannel.Work.WAKE:
            return {filechannel.WAKE: filechannel.wake}
        return super().drivers(test, load)

    def queue(self, directory: Path, durable: bool) -> Queue:
        return ChannelQueue(directory, durable)


class OneByOne:
    """What a library without calls for many offers."""

    def put_many(self, batch: list[bytes]) -> object:
        raise NotImplementedError

    def get_many(self, limit: int) -> int:
        raise NotImplementedError


class PersistFileQueue(OneByOne):
    def __init__(self, directory: Path) -> None:
        from persistqueue import Queue as FileQueue

        self._queue: Any = FileQueue(str(directory), autosave=True)
        self.put = self._queue.put

    def get(self) -> object:
        found = self._queue.get()
        self._queue.task_done()
        return found

    def close(self) -> None:
        self._queue.headf.close()


class PersistFile(LibraryPeer):
    name = "persist-file"
    package, distribution = "persistqueue", "persist-queue"
    settings = "Queue, autosave"
    can_sync = False

    def queue(self, directory: Path, durable: bool) -> Queue:
        return PersistFileQueue(directory)


class PersistDefaultQueue(OneByOne):
    def __init__(self, directory: Path) -> None:
        from persistqueue import SQLiteQueue

        self._queue: Any = SQLiteQueue(str(directory))
        self.put, self.get = self._queue.put, self._queue.get

    def close(self) -> None:
        self._queue.close()


class PersistDefault(LibraryPeer):
    """As its documentation begins with it, no option given: each put and each get is a transaction that is synced."""

    name = "persist-default"
    package, distribution = "persistqueue", "persist-queue"
    settings = "SQLiteQueue without options: auto_commit, SQLite's default of synchronous (FULL)"

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        # With syncs it is what persist-sqlite is.
        return {} if load.durable else super().drivers(test, load)

    def queue(self, directory: Path, durable: bool) -> Queue:
        return PersistDefaultQueue(directory)


class PersistSqliteQueue(OneByOne):
    def __init__(self, directory: Path, durable: bool) -> None:
        from persistqueue import SQLiteAckQueue

        self._queue: Any = SQLiteAckQueue(str(directory))
        connections: tuple[Any, ...] = (self._queue._conn, self._queue._putter)
        for connection in connections:
            connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self.put = self._queue.put

    def get(self) -> object:
        found = self._queue.get()
        self._queue.ack(found)
        return found

    def close(self) -> None:
        self._queue.close()


class PersistSqlite(LibraryPeer):
    name = "persist-sqlite"
    package, distribution = "persistqueue", "persist-queue"
    settings = "SQLiteAckQueue, synchronous FULL (durable) or NORMAL"

    def queue(self, directory: Path, durable: bool) -> Queue:
        return PersistSqliteQueue(directory, durable)


class LiteQueue(OneByOne):
    def __init__(self, directory: Path, durable: bool) -> None:
        from litequeue import LiteQueue as Library

        self._queue = Library(str(directory / "queue.db"))
        self._queue.conn.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self.put = self._queue.put

    def get(self) -> object:
        found = self._queue.pop()
        return self._queue.done(found.message_id)

    def close(self) -> None:
        self._queue.close()


class Lite(LibraryPeer):
    name = "litequeue"
    package, distribution = "litequeue", "litequeue"
    settings = "WAL, synchronous FULL (durable) or NORMAL; pop and done"

    def queue(self, directory: Path, durable: bool) -> Queue:
        return LiteQueue(directory, durable)


class DequeQueue(OneByOne):
    def __init__(self, directory: Path, durable: bool) -> None:
        from diskcache import Cache, Deque

        cache = Cache(str(directory), eviction_policy="none", sqlite_synchronous=2 if durable else 1)
        self._deque: Any = Deque.fromcache(cache)
        self.put, self.get = self._deque.append, self._deque.popleft

    def close(self) -> None:
        self._deque.cache.close()


class Diskcache(LibraryPeer):
    name = "diskcache"
    package, distribution = "diskcache", "diskcache"
    settings = "Deque, sqlite_synchronous 2 (durable) or 1"

    def queue(self, directory: Path, durable: bool) -> Queue:
        return DequeQueue(directory, durable)


class PlainQueue:
    """One table, one statement for each message: the least that SQLite can do for a queue."""

    def __init__(self, directory: Path, durable: bool) -> None:
        self._database = sqlite3.connect(directory / "queue.db", isolation_level=None)
        self._run = self._database.execute
        self._run("PRAGMA journal_mode=WAL")
        self._run(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self._run("CREATE TABLE queue (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")

    def put(self, data: bytes) -> object:
        return self._run("INSERT INTO queue (data) VALUES (?)", (data,))

    def put_many(self, batch: list[bytes]) -> object:
        self._run("BEGIN IMMEDIATE")
        self._database.executemany("INSERT INTO queue (data) VALUES (?)", [(data,) for data in batch])
        return self._run("COMMIT")

    def get(self) -> object:
        taken = "DELETE FROM queue WHERE id = (SELECT min(id) FROM queue) RETURNING data"
        return self._run(taken).fetchone()

    def get_many(self, limit: int) -> int:
        taken = "DELETE FROM queue WHERE id IN (SELECT id FROM queue ORDER BY id LIMIT ?) RETURNING data"
        return len(self._run(taken, (limit,)).fetchall())

    def close(self) -> None:
        self._database.close()


class PlainSqlite(LibraryPeer):
    name = "sqlite-queue"
    package, distribution = "sqlite3", "sqlite3"
    settings = "WAL, synchronous FULL (durable) or NORMAL, one statement for each message"
    many = True

    def queue(self, directory: Path, durable: bool) -> Queue:
        return PlainQueue(directory, durable)

    def facts(self) -> dict[str, str]:
        return {"version": f"SQLite {sqlite3.sqlite_version}", "settings": self.settings}

    def pids(self) -> list[int]:
        return [os.getpid()]
