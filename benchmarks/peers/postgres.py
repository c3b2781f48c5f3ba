"""PostgreSQL as a queue: FOR UPDATE SKIP LOCKED, over its Unix socket, psycopg 3 with prepared statements."""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import shutil
import stat
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import procs
from benchmarks.drivers import queue
from benchmarks.peers.base import Address, Driver, Peer, socket_dir, until_up
from topicd.bench.load import Figures, Load

USER = "postgres"
WAIT_S = 30.0


def programs() -> Path | None:
    """The newest installation's folder: Debian puts none of it into PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


class PostgresSession:
    """A claim marks the row, finishing deletes it: each is a commit of its own."""

    def __init__(self, where: str, table: str, durable: bool) -> None:
        self._link: Any = psycopg.connect(where, autocommit=True)
        self._link.prepare_threshold = 0
        self._cursor = self._link.cursor(binary=True)
        self._run = self._cursor.execute
        self._run(f"SET synchronous_commit = {'on' if durable else 'off'}")
        self._table = table
        self._take = (
            f"DELETE FROM {table} WHERE id IN (SELECT id FROM {table} ORDER BY id FOR UPDATE SKIP LOCKED LIMIT %s) "
            "RETURNING data"
        )
        self._claim = (
            f"UPDATE {table} SET held = clock_timestamp() + interval '30 s' WHERE id IN (SELECT id FROM {table} "
            "WHERE held IS NULL ORDER BY id FOR UPDATE SKIP LOCKED LIMIT %s) RETURNING id, data"
        )
        self._finish = f"DELETE FROM {table} WHERE id = ANY(%s)"
        self._listening = False
        self._held: list[int] = []

    def put(self, data: bytes) -> object:
        self._run(f"INSERT INTO {self._table} (data) VALUES (%s)", (data,))
        return self._run(f"NOTIFY {self._table}")

    def put_many(self, batch: list[bytes]) -> object:
        return self._run(f"INSERT INTO {self._table} (data) SELECT unnest(%s::bytea[])", (batch,))

    def one(self) -> bytes | None:
        found = self.some(1)
        return found[0] if found else None

    def some(self, limit: int) -> list[bytes]:
        found = self._run(self._claim, (limit,)).fetchall()
        if found:
            self._run(self._finish, ([row[0] for row in found],))
        return [bytes(row[1]) for row in found]

    def wait(self) -> bytes:
        if self._held:
            self._run(self._finish, (self._held,))
            self._held = []
        if not self._listening:
            self._run(f"LISTEN {self._table}")
            self._listening = True
        while not (found := self._run(self._claim, (1,)).fetchall()):
            select.select([self._link.fileno()], [], [], WAIT_S)
            self._link.pgconn.consume_input()
            while self._link.pgconn.notifies():
                pass
        self._held = [found[0][0]]
        return bytes(found[0][1])

    def close(self) -> None:
        self._link.close()


class OneStep(PostgresSession):
    """Deleted when it is claimed; the transaction stays open until the job is done. One commit instead of two."""

    def some(self, limit: int) -> list[bytes]:
        with self._link.transaction():
            return [bytes(row[0]) for row in self._run(self._take, (limit,)).fetchall()]


@dataclass(frozen=True)
class Table:
    where: str
    name: str
    durable: bool
    one_step: bool = False

    def open(self) -> PostgresSession:
        return (OneStep if self.one_step else PostgresSession)(self.where, self.name, self.durable)


class Postgres(Peer):
    name = "postgres"
    has_sessions = False

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._run = socket_dir()
        self._server: subprocess.Popen[bytes] | None = None
        self._tables = 0

    @classmethod
    def missing(cls) -> str | None:
        if programs() is None:
            return "PostgreSQL not installed"
        if os.getuid() == 0:
            try:
                pwd.getpwnam(USER)
            except KeyError:
                return "PostgreSQL does not run as root, and there is no user postgres"
        return None

    @property
    def _where(self) -> str:
        return f"host={self._run} dbname=postgres user={USER}"

    def _as_user(self) -> list[str]:
        return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups"] if os.getuid() == 0 else []

    def start(self) -> None:
        bin_dir, data = programs(), self.root / "data"
        assert bin_dir is not None
        if os.getuid() == 0:
            for place in (self.root, self._run):
                shutil.chown(place, USER, USER)
            # Whether others may pass is for the owner of those directories to say, not for a benchmark.
            if closed := [parent for parent in self.root.parents if not parent.stat().st_mode & stat.S_IXOTH]:
                raise RuntimeError(f"user {USER} cannot enter {closed[0]}; choose another place with --dir")
        if not data.exists():
            made = [*self._as_user(), str(bin_dir / "initdb"), "-D", str(data), "-U", USER, "-A", "trust", "--no-sync"]
            subprocess.run(made, check=True, stdout=subprocess.DEVNULL, cwd="/")
        options = [
            "-k",
            str(self._run),
            "-c",
            "listen_addresses=",
            "-c",
            "shared_buffers=256MB",
            "-c",
            "max_wal_size=2GB",
        ]
        argv = [*self._as_user(), str(bin_dir / "postgres"), "-D", str(data), *options]
        self._server = server = procs.start_server(argv, self.root.with_suffix(".log"))
        until_up(lambda: psycopg.connect(self._where).close(), "postgres", lambda: server.poll() is None, 0.05)

    def stop(self) -> None:
        if self._server:
            procs.stop(self._server)
            self._server = None

    def close(self) -> None:
        super().close()
        shutil.rmtree(self._run, ignore_errors=True)

    def pids(self) -> list[int]:
        return procs.tree(self._server.pid) if self._server else []

    def address(self, durable: bool) -> Address:
        raise NotImplementedError("PostgreSQL is measured as a queue only")

    @contextlib.contextmanager
    def queue(self, durable: bool, one_step: bool = False) -> Iterator[Table]:
        self._tables += 1
        name = f"jobs{self._tables}"
        with psycopg.connect(self._where, autocommit=True) as link:
            link.execute(f"CREATE TABLE {name} (id bigserial PRIMARY KEY, data bytea NOT NULL, held timestamptz)")
            link.execute(f"ALTER TABLE {name} SET (autovacuum_vacuum_scale_factor = 0.01, fillfactor = 50)")
        try:
            yield Table(self._where, name, durable, one_step)
        finally:
            with psycopg.connect(self._where, autocommit=True) as link:
                link.execute(f"DROP TABLE {name}")

    def facts(self) -> dict[str, str]:
        with psycopg.connect(self._where) as link:
            version = link.execute("SHOW server_version").fetchone()
        return {
            "version": f"PostgreSQL {version[0] if version else '?'}",
            "settings": "synchronous_commit on (durable) or off (relaxed); FOR UPDATE SKIP LOCKED, claim and delete",
        }

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        if test != "F":
            return {}
        in_one = queue.drivers(load, "in a transaction", "100 in a transaction")
        return {
            **queue.drivers(load, "claim, delete", "claim, delete 100", "LISTEN"),
            **{name: partial(_in_one_step, driver) for name, driver in in_one.items()},
        }


class _OneStepQueues:
    """The same server with the other kind of session."""

    def __init__(self, peer: Postgres) -> None:
        self.queue = partial(peer.queue, one_step=True)


def _in_one_step(driver: Driver, peer: Postgres, load: Load) -> Figures:
    return driver(_OneStepQueues(peer), load)
