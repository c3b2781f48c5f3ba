"""What one run of the daemon holds: directories, lock, identity, shared memory, listening sockets.

open() takes them in an order in which a kill at any point leaves nothing that the next start cannot
handle: lock, format, identity (durable), then shared memory. close(clean) gives them back; rings that may
still hold data (clean is False) stay for the next start to drain.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import suppress
from pathlib import Path

from topicd.config import Settings
from topicd.disk import cold, datadir, layout
from topicd.disk.fs import RealFs
from topicd.disk.identity import ID_BLOCK, Identity
from topicd.errors import FormatError
from topicd.ipc.pressure import Board
from topicd.ipc.protocol import unixsock
from topicd.ipc.stats import StatsPage
from topicd.paths import DataDir, Instance, RunDir
from topicd.supervisor import memory
from topicd.supervisor.memory import Memory
from topicd.supervisor.notify import inherited_sockets

_BACKLOG = 512
# Beside one for each connection: segments, WAL files, bells, what libraries open.
_OTHER_DESCRIPTORS = 4096

log = logging.getLogger(__name__)


class Resources:
    def __init__(self, settings: Settings) -> None:
        self._fs = RealFs()
        self._settings = settings
        self._data = DataDir(settings.data_dir)
        self.run_dir = RunDir(settings.run_dir)
        self.lock_fd = -1
        self.wal_seed = 0
        self.identity = Identity(self._fs, self._data)
        self._memory = Memory("", 0, 0, 0)
        self._owns_run_dir = self._inherited = False
        self._first_ids = 0
        self._listeners: dict[str, socket.socket] = {}
        self.http_listeners: list[socket.socket] = []
        self.http_address = ""  # empty: no port is served

    def take_lock(self) -> None:
        """First of all; LockHeld if another daemon runs on the directory, FormatError if it is none."""
        layout.check(self._data)
        datadir.make_directory(self._fs, self._data.root)
        # Others must be able to reach the sockets; who may connect is decided by their mode and uid.
        self.run_dir.root.mkdir(0o755, parents=True, exist_ok=True)
        self.lock_fd = datadir.take_lock(self._data, self._settings.stop_timeout_s)

    def open(self, names: Sequence[str]) -> None:
        """names: of all processes to come."""
        kinds = 2 if self._settings.listen_tcp else 1
        _raise_descriptor_limit(kinds * self._settings.max_connections + _OTHER_DESCRIPTORS)
        wal, dlv = self._settings.wal_shards, self._settings.delivery_shards
        self.wal_seed = datadir.upgrade(self._fs, self._data, datadir.open_format(self._fs, self._data)).wal_seed
        self._adopt_cold_dir()
        self.identity.open()
        self.identity.begin_run(wal, dlv, dlv, memory.has_rings)
        self._first_ids = self.identity.record.next_id - dlv * ID_BLOCK
        self._sweep()
        self._memory = Memory(self.identity.instance, wal, dlv, self._settings.ring_bytes, names)
        self._memory.create(self.old_instance)

    def _adopt_cold_dir(self) -> None:
        """The first start with one marks it; later ones find out about its disk when they use it."""
        if not self._settings.cold_dir:
            return
        try:
            cold.adopt(self._fs, self._data, Path(self._settings.cold_dir), f"{self.wal_seed:016x}")
        except OSError as exc:
            raise FormatError(f"cold_dir {self._settings.cold_dir}: {exc.strerror or exc}") from None

    def listen(self, environ: MutableMapping[str, str], sockets: Mapping[str, Path]) -> socket.socket:
        """The socket systemd handed over, or our own. Those of processes are made here as well: clients of one that
        recovers or is started anew wait in its queue and need not look for it again and again."""
        all_given = inherited_sockets(environ)
        given = [sock for sock in all_given if sock.family == socket.AF_UNIX]
        web = [sock for sock in all_given if sock.family != socket.AF_UNIX]
        for extra in (*given[1:], *(web[1:] if self._settings.http else web)):
            extra.close()
        listener = given[0] if given else unixsock.listen(self.run_dir.socket, self._settings.mode, _BACKLOG)
        # Whoever listens on the main socket owns the directory; processes of an earlier run are gone.
        self._owns_run_dir, self._inherited = True, bool(given)
        self._remove_process_sockets()
        if self._settings.http:
            self.listen_http(web[0] if web else None)
        for name, path in sockets.items():
            self._listeners[name] = unixsock.listen(path, self._settings.mode, _BACKLOG)
        return listener

    def listen_http(self, given: socket.socket | None = None) -> None:
        """On its socket, and on the port that systemd handed over, or its own if that is free: somebody else's is said,
        and no reason to stop."""
        run, settings = self.run_dir, self._settings
        self.http_listeners = [unixsock.listen(run.http_socket, settings.mode, _BACKLOG)]
        run.http_port.unlink(missing_ok=True)
        if given is not None:
            host, port = given.getsockname()[:2]
            settings.check_http_place(host, f"the port that systemd handed over, {host}:{port},")
        listener = given or self._http_listener()
        if listener is None:
            return
        listener.setblocking(False)
        self.http_listeners.append(listener)
        host, port = listener.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.http_address = f"{'https' if settings.http_tls else 'http'}://{shown}:{port}"
        run.http_port.write_text(f"{port}\n")

    def _http_listener(self) -> socket.socket | None:
        settings = self._settings
        if not settings.http_listen:
            return None
        host, port = settings.http_host_port
        try:
            family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
        except OSError as exc:
            place = self.run_dir.http_socket
            facts = {"address": settings.http_listen, "error": exc.strerror or exc, "socket": place}
            log.error("HTTP is served on its socket only", extra=facts)
            return None

    def listen_fd(self, process: str) -> int:
        """What it inherits."""
        return self._listeners[process].fileno()

    def stop_listening(self) -> None:
        """Nobody is started any more: who connects is refused once the process itself has closed its socket."""
        for listener in (*self._listeners.values(), *self.http_listeners):
            listener.close()

    @property
    def bells(self) -> dict[str, int]:
        return self._memory.bells

    @property
    def board(self) -> Board:
        assert self._memory.board is not None, "asked for before open()"
        return self._memory.board

    def page(self, process: str) -> StatsPage:
        return self._memory.pages[process]

    def first_ids(self, shard: int) -> tuple[int, int]:
        """The block reserved for a delivery shard's first start."""
        start = self._first_ids + shard * ID_BLOCK
        return start, start + ID_BLOCK

    @property
    def old_instance(self) -> Instance | None:
        """Whose rings are to be drained before anything is served."""
        return self.identity.record.undrained

    def forget_old_instance(self) -> None:
        """Every WAL shard has drained it."""
        if self.old_instance is not None:
            # On record as garbage before the first region goes: a half-unlinked instance is never drained.
            self.identity.mark_drained()
            self._sweep()

    def close(self, clean: bool) -> None:
        self.stop_listening()
        self._memory.close()
        if clean and self._memory.instance:
            with suppress(OSError):
                self.identity.mark_clean()
                memory.unlink_all(self._memory.instance)
        if self._owns_run_dir:
            if not self._inherited:
                unixsock.remove(self.run_dir.socket)
            if clean:
                self._remove_process_sockets()
                unixsock.remove(self.run_dir.http_socket)
                self.run_dir.http_port.unlink(missing_ok=True)
            self._owns_run_dir = False
        if self.lock_fd >= 0:
            os.close(self.lock_fd)
            self.lock_fd = -1

    def _remove_process_sockets(self) -> None:
        for path in self.run_dir.root.glob("*-[0-9][0-9]*.sock"):
            unixsock.remove(path)

    def _sweep(self) -> None:
        for instance in self.identity.record.garbage:
            memory.unlink_all(instance)
        self.identity.forget_garbage()


def _raise_descriptor_limit(wanted: int) -> None:
    """For the children, which inherit it: a shell's usual limit of 1024 is less than max_connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if goal < wanted:
        log.warning("fewer descriptors than connections allowed", extra={"limit": goal, "wanted": wanted})
    if soft != resource.RLIM_INFINITY and soft < goal:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
