"""The process of one delivery shard: recover, listen, turn, and on stop drain, checkpoint and leave."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import uvloop

from topicd import _native, child
from topicd.clock import Clock, ManualClock, SystemClock
from topicd.config import Settings
from topicd.errors import FormatError
from topicd.ipc.protocol import unixsock
from topicd.ipc.ring import RingProducer
from topicd.ipc.shardboot import WAL
from topicd.ipc.walstate import read_states
from topicd.paths import ring_shm
from topicd.shards.delivery.parts import Parts
from topicd.shards.delivery.sessions.descriptors import DescriptorServer
from topicd.shards.delivery.sessions.door import Door, listen
from topicd.shards.delivery.sessions.session import Session
from topicd.shards.delivery.writing.outlet import Outlet
from topicd.shards.process import runtime
from topicd.shards.process.runtime import Shard
from topicd.shards.process.threads import CountedThreads
from topicd.tokens import TokenFile

log = logging.getLogger(__name__)

_BACKLOG = 512
_DRAIN_S = 5.0
_CHANNEL_THREADS = 4  # saves of different channels wait for the disk together
_PROGRESS_S = 0.1
# Writes under way are many and short-lived, and hold no cycles: look for cycles rarely. The second figure bounds the
# look at what is young, 0.15 us for each object of at most four times 20,000; it was 50 ms and more with 20.
_GC_THRESHOLD = (20_000, 3, 700)


def make_clock(settings: Settings) -> Clock:
    return ManualClock(SystemClock().now_ms()) if settings.test_clock else SystemClock()


def serve(shard: Shard) -> None:
    uvloop.run(DeliveryShard(shard).run())


class DeliveryShard:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._progress_due = 0.0
        self._parent = os.getppid()
        self._doors: list[Door] = []
        self._stop = asyncio.Event()
        self._wal_ready = asyncio.Event()

    async def run(self) -> None:
        shard, info = self._shard, self._shard.boot
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        outlets = [
            Outlet(
                wal,
                RingProducer.attach(ring_shm(info.instance, wal, info.index), info.instance),
                self._bell(wal),
            )
            for wal in range(info.wal_shards)
        ]
        channel_threads = ThreadPoolExecutor(_CHANNEL_THREADS, "channels")
        self._parts = Parts(shard, loop, outlets, CountedThreads(2, "checkpoint"), channel_threads)
        self._parts.ids.add(info.first_id, info.end_id)
        loop.add_reader(shard.channel.fileno(), self._take_messages)
        self._take_messages()  # some may have come with the boot message
        await self._either(self._wal_ready, self._stop)
        if self._stop.is_set():
            return
        self._parts.routing.prepare()
        await self._recover()
        self._parts.tell_tally()
        await self._listen()
        self._serve_bell()
        self._parts.channels.open()
        self._parts.relay.own_session = self._own_session
        self._parts.routing.open()
        heart = asyncio.create_task(self._heartbeat())
        shard.serving()
        await self._stop.wait()
        await self._drain()
        heart.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await heart

    def _bell(self, wal: int) -> Any:
        return self._shard.bell_of(WAL, wal)

    @staticmethod
    async def _either(*events: asyncio.Event) -> None:
        tasks = [asyncio.ensure_future(event.wait()) for event in events]
        _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()

    # ---- start ----

    async def _recover(self) -> None:
        """Not even history is absorbed until the first checkpoint: WAL shards keep every file meanwhile."""
        parts, shard = self._parts, self._shard
        for outlet in parts.outlets:
            outlet.set_absorbed(None)
            outlet.open()
        await self._wait_until_written()
        shard.stats.state = "recovering"
        shard.stats.publish({"recovery_percent": 0})
        # Nobody looks for cycles in what is made here, now or later: see start_collector.
        result = parts.recovery().run(self._progress, self._live_ends())
        skipped = parts.channels.restore(parts.pulse.show)
        parts.counters.damage = [*result.damage, *skipped]
        if result.topics or result.damage:
            log.info(
                "recovered",
                extra={"topics": result.topics, "records": result.replayed, "damage": len(result.damage)},
            )
        parts.rounds.open()
        parts.queues.start()
        gc.set_threshold(*_GC_THRESHOLD)

    async def _wait_until_written(self) -> None:
        """A predecessor's bytes may still be in the rings: they belong to the log that is about to be read."""
        while any(not outlet.everything_written for outlet in self._parts.outlets):
            await asyncio.sleep(0.002)

    def _live_ends(self) -> dict[int, int]:
        info = self._shard.boot
        return {wal: state.lsn for wal, state in read_states(info.instance, info.wal_shards).items()}

    def _progress(self, percent: float, what: str) -> None:
        """Also the heartbeat while recovery runs; asked for often, told seldom."""
        now = SystemClock().monotonic()  # a heartbeat, so no test's clock
        if now < self._progress_due and percent < 100:
            return
        self._progress_due = now + _PROGRESS_S
        self._shard.progress(percent, what)
        self._shard.stats.publish({"recovery_percent": round(percent, 1)})

    async def _listen(self) -> None:
        parts, shard = self._parts, self._shard
        sock = unixsock.inherited(shard.boot.listen_fd)
        self._server = await parts.loop.create_unix_server(self._session, sock=sock, backlog=_BACKLOG)
        if shard.settings.listen_tcp:
            self._listen_tcp()
        self._descriptors = DescriptorServer(parts.place, parts.loop, parts.catalog, parts.reader, parts.retention)
        self._descriptors.open(
            unixsock.listen(shard.run.history_socket(shard.boot.index), shard.settings.mode, _BACKLOG)
        )

    def _session(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, Session(self._parts))

    def _own_session(self) -> asyncio.BaseProtocol:
        session = Session(self._parts)
        session.trusted = True
        return cast(asyncio.BaseProtocol, session)

    def _listen_tcp(self) -> None:
        """For other machines: the same protocol, a token in HELLO, TLS."""
        parts, settings = self._parts, self._shard.settings
        host, port = settings.tcp_host_port
        parts.connections.tokens = TokenFile.load(Path(settings.tokens_file))
        parts.connections.tcp_ports = [port + i for i in range(parts.place.delivery_shards)]
        context = None
        if settings.tls_cert:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            try:
                context.load_cert_chain(settings.tls_cert, settings.tls_key)
            except (OSError, ssl.SSLError) as exc:
                raise FormatError(f"tls_cert {settings.tls_cert} and tls_key cannot be used: {exc}") from None
        try:
            listeners = listen(host, port + parts.place.index, _BACKLOG)
        except OSError as exc:
            raise FormatError(f"listen_tcp: cannot listen on {host}:{port + parts.place.index}: {exc}") from None
        strangers = parts.connections.strangers
        for listener in listeners:
            door = Door(parts.loop, listener, strangers, lambda guest: Session(parts, guest), context)
            door.open()
            self._doors.append(door)
            log.info("listening on TCP", extra={"address": str(listener.getsockname()[:2]), "tls": context is not None})

    def _serve_bell(self) -> None:
        turn = self._parts.turn
        self._parts.loop.add_reader(self._shard.bell.fd, turn.doorbell)
        turn.doorbell()
        if not _native.is_native:
            self._poll_bell()

    def _poll_bell(self) -> None:
        self._parts.turn.doorbell()
        self._parts.loop.call_later(runtime.PURE_POLL_S, self._poll_bell)

    # ---- life ----

    def _take_messages(self) -> None:
        for message in child.messages(self._shard.channel):
            event = message.get("event")
            if event == "stop":
                self._stop.set()
                self._parts.loop.remove_reader(self._shard.channel.fileno())
            elif event == "start":
                self._wal_ready.set()
            elif event == "ids":
                self._parts.ids.add(int(message["start"]), int(message["end"]))
            elif event == "reload":
                self._reload(message["settings"])

    def _reload(self, wire: dict[str, Any]) -> None:
        settings = Settings.from_wire(wire)
        self._shard.settings = settings
        self._parts.place.settings = settings
        if settings.listen_tcp and self._doors:
            try:
                self._parts.connections.tokens = TokenFile.load(Path(settings.tokens_file))
                self._parts.connections.end_revoked()
            except FormatError as exc:
                log.error("tokens not reloaded, the old ones stay", extra={"error": str(exc)})
        logging.getLogger().setLevel(settings.log_level.upper())

    async def _heartbeat(self) -> None:
        parts = self._parts
        while True:
            due = parts.loop.time() + child.HEARTBEAT_S
            parts.pulse.publish()
            parts.tell_tally()
            await asyncio.sleep(child.HEARTBEAT_S)
            parts.counters.loop_lag_ms = round((parts.loop.time() - due) * 1000, 3)
            parts.tick()

    # ---- stop ----

    async def _drain(self) -> None:
        """Take nothing new, let what is under way end, make everything durable."""
        parts = self._parts
        self._shard.stats.state = "draining"
        parts.backup_hold.close()
        parts.compaction.close()
        parts.channels.draining = True
        parts.admission.draining = parts.wal_sync.draining = parts.queues.tools.draining = True
        self._server.close()
        for door in self._doors:
            door.close()
        self._descriptors.close()
        parts.routing.close()
        deadline = parts.loop.time() + _DRAIN_S
        while self._under_way and not self._wal_is_away and parts.loop.time() < deadline:
            await asyncio.sleep(0.005)
        parts.wal_sync.wal_is_away = self._wal_is_away or not all(outlet.idle for outlet in parts.outlets)
        for topic in parts.catalog.by_name.values():
            if not topic.policy.logged:
                topic.seqs.reserved = topic.seqs.visible  # nothing more is given out, and the last snapshot says so
        parts.tiering.close()
        await parts.rounds.close()
        parts.connections.close()
        await asyncio.sleep(0)
        # The other one belongs to the supervisor, which may start a successor on it.
        unixsock.remove(self._shard.run.history_socket(self._shard.boot.index))

    @property
    def _wal_is_away(self) -> bool:
        """Has a WAL shard left that nobody will replace? The next start waits for us: rings and log hold everything."""
        return os.getppid() != self._parent and any(outlet.wal_has_left for outlet in self._parts.outlets)

    @property
    def _under_way(self) -> bool:
        parts = self._parts
        if parts.direct.bytes or parts.agenda.gathering:
            return True
        return not (parts.channels.idle and all(outlet.idle for outlet in parts.outlets))
