"""A chat process: opens its store, applies what the log has more, serves, and on stop drains. Promise: it serves only
when its store is what the log says; after a kill at any moment the next start makes it so. Where that cannot be, for
example because the log has a hole, the store is closed: every request is refused with the reason, until somebody has
it mended, and the rest of the daemon serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import uvloop

from topicd import child
from topicd.child import Process
from topicd.clock import Clock, SystemClock
from topicd.config import Settings
from topicd.errors import Conflict, FormatError, NotReady, StorageCorrupt, TopicdError
from topicd.ipc.protocol.chat import Rebuild
from topicd.paths import DataDir
from topicd.shards.chat import checking, retention
from topicd.shards.chat.door import Door
from topicd.shards.chat.guests import Guests
from topicd.shards.chat.log import OperationLog, Place
from topicd.shards.chat.operations import Retain
from topicd.shards.chat.ops import admin, live, members, messages, sync
from topicd.shards.chat.service import Service
from topicd.shards.chat.session import base_hello
from topicd.shards.chat.store import RocksStore, Tuning
from topicd.shards.chat.view import View, unreadable_of

log = logging.getLogger(__name__)

OPS = (admin, live, members, messages, sync)  # they declare their operations when they are imported
DRAIN_S = 5.0
_CHORES_S = 2.0  # between two looks at the log's size and the cutoff
_AGAIN_S = 5.0  # a store that is closed for a passing reason is opened again after so long


class SkewedClock:
    """Ahead of the wall clock, for tests."""

    def __init__(self, skew_ms: int) -> None:
        self._clock = SystemClock()
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._skew_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()


def make_clock(settings: Settings) -> Clock:
    return SkewedClock(settings.chat_skew_ms) if settings.chat_skew_ms else SystemClock()


def serve(process: Process) -> None:
    # Each message makes some objects and hardly ever a circle; looking for those a hundred times a second, in all the
    # chats that are kept, took a tenth of the time.
    gc.set_threshold(50_000, 20, 50)
    uvloop.run(ChatShard(process).run())


class ChatShard:
    def __init__(self, process: Process) -> None:
        self._process = process
        self._index = int(process.info.extras["index"])
        self._stop = asyncio.Event()
        self._start = asyncio.Event()
        self._where = DataDir(Path(process.settings.data_dir)).chat(self._index)
        self._service: Service | None = None
        self._guests: Guests | None = None
        self._shut = False  # the store could not be opened
        self._opening = asyncio.Lock()  # held by whoever opens or mends the store
        self._flushed = 0  # seq up to which a flush was asked for while nothing happened
        self._seen = 0

    async def run(self) -> None:
        process = self._process
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        loop.add_reader(process.channel.fileno(), self._take_messages)
        self._take_messages()
        heart = loop.create_task(self._heartbeat())
        try:
            if await self._until_start():
                await self._serve()
        finally:
            heart.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await heart

    async def _until_start(self) -> bool:
        """The delivery shards serve; False: the daemon stops instead."""
        waits = [asyncio.ensure_future(event.wait()) for event in (self._start, self._stop)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()
        return not self._stop.is_set()

    async def _serve(self) -> None:
        extras = self._process.info.extras
        run = self._process.run
        shards = [str(run.delivery_socket(shard)) for shard in range(int(extras["delivery_shards"]))]
        hello = base_hello(shards, self._process.info.instance, int(extras["wal_shards"]), self._index)
        guests = self._guests = Guests(self._process.settings, hello, self._mend)
        await self._open()
        door = Door(guests)
        await door.listen(int(extras["listen_fd"]))
        self._process.serving()
        if self._shut:
            self._process.progress(100, guests.closed.message)  # `topicctl status` shows it
        chores = asyncio.get_running_loop().create_task(self._chores())
        await self._stop.wait()
        chores.cancel()
        async with self._opening:
            await self._drain(door, guests)

    # ---- start ----

    async def _open(self) -> None:
        """The store serves then, or is closed for a reason that everybody is told."""
        assert self._guests is not None
        async with self._opening:
            if self._service is None and not self._stop.is_set():
                try:
                    self._opened(await self._recovered())
                except Exception as exc:
                    why = _reason(exc)
                    if not self._shut or _shape(why) != _shape(self._guests.closed):
                        log.error("the chat store is closed, the rest of the daemon serves", extra={"why": why.message})
                    self._shut, self._guests.closed = True, why

    def _opened(self, service: Service) -> None:
        assert self._guests is not None
        service.writer.start()
        self._shut = False
        self._service = self._guests.service = service

    async def _mend(self, want: Rebuild) -> dict[str, Any]:
        """Of a store that is closed: made anew from base and log, or gone on with over what the log has no more."""
        async with self._opening:
            if self._service is not None:
                raise Conflict("the store serves again")
            if self._stop.is_set():
                raise NotReady("the chat process stops")
            service = await self._mended(over_holes=want.over_holes)
            self._opened(service)
        self._process.progress(100, "")
        log.info("the chat store serves again", extra={"seq": service.view.applied})
        return {"seq": service.view.applied, "rows": await admin.rows_of(service.store)}

    async def _mended(self, *, over_holes: bool) -> Service:
        if over_holes:
            # What the store has may be in the log no more: it is made anew only where it cannot be opened.
            with contextlib.suppress(FormatError):
                return await self._recovered(over_holes=True)
        await self._remade(over_holes=over_holes)
        return await self._recovered(over_holes=over_holes)

    async def _remade(self, *, over_holes: bool) -> None:
        """What is in the place of the store goes only when another one is there."""
        oplog, work = self._oplog(), self._where / "rebuilt"
        try:
            place = await oplog.open()
            self._check_owner(place)
            made = await checking.replayed(oplog, self._where, work, place.head_seq, over_holes=over_holes)
            made.close()
        finally:
            await oplog.close()
        store = RocksStore(self._where / "rocks")
        store.replace(work)
        store.close()

    def _check_owner(self, place: Place) -> None:
        """A store that another log has made is not thrown away: this log does not have what is in it."""
        if (self._where / "rocks").exists():
            try:
                store = RocksStore(self._where / "rocks").open()
            except FormatError:
                return  # nobody can tell
            try:
                checking.check_owner(View(store), place)
            finally:
                store.close()

    def _oplog(self) -> OperationLog:
        count = int(self._process.info.extras["delivery_shards"])
        return OperationLog(self._process.run, count, self._index, self._process.settings.chat_durability)

    async def _recovered(self, *, over_holes: bool = False) -> Service:
        where = self._where
        where.mkdir(parents=True, exist_ok=True)
        for scratch in ("verify", "verify.store", "rebuilt", "base.new", "rocks.flush", "rocks.old"):
            shutil.rmtree(where / scratch, ignore_errors=True)
        for unfinished in where.glob("*.tmp"):  # a copy that the engine was making
            shutil.rmtree(unfinished, ignore_errors=True)
        async with contextlib.AsyncExitStack() as undo:
            oplog = self._oplog()
            undo.push_async_callback(oplog.close)
            place = await oplog.open()
            if not (where / "rocks").exists():
                checking.begin_from_base(where, where / "rocks")
            store = RocksStore(where / "rocks", tuning_of(self._process.settings)).open()
            undo.callback(store.close)
            service = await self._brought_up(oplog, place, store, over_holes)
            undo.pop_all()
        return service

    async def _brought_up(self, oplog: OperationLog, place: Place, store: RocksStore, over_holes: bool) -> Service:
        where = self._where
        service = Service(self._process.settings, self._process.clock, store, oplog, where)
        view = service.view
        checking.check_owner(view, place)
        view.topic_id = place.topic_id
        if view.applied > place.head_seq:
            await self._made_anew(service, place, over_holes)
        await self._replay(service, place, over_holes)
        if over_holes:
            # The log alone does not make this store any more.
            await store.settle()
            checking.put_base(store, where, view.applied)
        service.digests.cut(view.cutoff_ms)
        await service.see_clock()
        return service

    async def _made_anew(self, service: Service, place: Place, over_holes: bool) -> None:
        """A loss of power took entries of a log of class `disk` that the store had flushed."""
        facts = {"applied": service.view.applied, "log": place.head_seq}
        log.warning("the chat store is ahead of its log and made anew from it", extra=facts)
        work = self._where / "rebuilt"
        made = await checking.replayed(service.log, self._where, work, place.head_seq, over_holes=over_holes)
        made.close()
        service.view.applied = 0
        service.replace_store(work)

    async def _replay(self, service: Service, place: Place, over_holes: bool) -> None:
        first, last = service.view.applied, place.head_seq
        async for entries in service.log.read(first, last, over_holes=over_holes):
            service.view.apply(entries)
            self._process.progress(100 * (service.view.applied - first) / (last - first), "applying the chat log")
            await asyncio.sleep(0)
        if last > first:
            log.info("chat log applied", extra={"entries": last - first, "seq": last})

    # ---- life ----

    def _take_messages(self) -> None:
        for message in child.messages(self._process.channel):
            event = message.get("event")
            if event == "stop":
                self._stop.set()
                asyncio.get_running_loop().remove_reader(self._process.channel.fileno())
            elif event == "start":
                self._start.set()
            elif event == "reload":
                self._reload(Settings.from_wire(message["settings"]))

    def _reload(self, settings: Settings) -> None:
        self._process.settings = settings
        if self._service is not None:
            self._service.settings = settings
        if self._guests is not None:
            self._guests.settings = settings
            try:
                self._guests.load_tokens()
            except FormatError as exc:
                log.error("tokens not reloaded, the old ones stay", extra={"error": str(exc)})
        logging.getLogger().setLevel(settings.log_level.upper())

    async def _heartbeat(self) -> None:
        while True:
            self._process.stats.publish(self._figures())
            if self._service is not None and self._service.writer.failure is not None:
                # What is in the log cannot be applied: begin anew from what is durable.
                raise SystemExit(1)
            await asyncio.sleep(child.HEARTBEAT_S)

    def _figures(self) -> dict[str, Any]:
        service = self._service
        if service is None:
            return {"closed": int(self._shut)}
        writer = service.writer
        return {
            **service.counts,
            "closed": 0,
            "applied_seq": service.view.applied,
            "unreadable": unreadable_of(service.store)[0],
            "operations": writer.operations,
            "waiting": writer.waiting,
            "throttled": writer.throttled,
            "listeners": service.live.count,
            "sessions": len(self._guests.open) if self._guests else 0,
            **service.store.figures(),
        }

    async def _chores(self) -> None:
        assert self._guests is not None
        while True:
            service = self._service
            if service is None:
                await asyncio.sleep(_AGAIN_S)
                if self._guests.closed.retriable:
                    await self._open()
                    if not self._shut:
                        self._process.progress(100, "")
                        log.info("the chat store serves again")
                continue
            await asyncio.sleep(_CHORES_S)
            try:
                await self._keep_short(service)
                await self._forget_old(service)
                await self._flush_when_quiet(service)
            except (TopicdError, OSError) as exc:
                log.warning("a chore of the chat store failed and is tried again", extra={"error": exc})

    async def _flush_when_quiet(self, service: Service) -> None:
        """So that a kill leaves little to be applied again; the engine flushes by itself under load."""
        applied = service.view.applied
        if applied == self._seen and applied > self._flushed and not service.writer.waiting:
            async with service.checking:  # whoever replaces the store waits
                await service.store.settle()
            self._flushed = applied
        self._seen = applied

    async def _forget_old(self, service: Service) -> None:
        if keep_ms := service.settings.chat_retention_ms:
            cutoff_ms = service.wall.now_ms() - keep_ms
            # Not at every look: each is an entry of the log.
            if cutoff_ms > service.view.cutoff_ms + keep_ms // 100:
                await service.writer.one(Retain(cutoff_ms))
        if retention.is_cleaning(service.store):
            await admin.clean_all(service)

    async def _keep_short(self, service: Service) -> None:
        """What the log has beyond its limit is kept as the base instead."""
        limit = service.settings.chat_log_bytes
        if not limit or (await service.log.place()).bytes <= limit:
            return
        async with service.checking:
            seq = await checking.rebase(service.log, service.store, service.view, service.writer.still, self._where)
        log.info("chat log shortened", extra={"seq": seq})

    # ---- stop ----

    async def _drain(self, door: Door, guests: Guests) -> None:
        """Take nothing new, let what is under way end, make everything durable."""
        self._process.stats.state = "draining"
        door.close()
        service = self._service
        if service is None:
            guests.close()
            return
        service.writer.draining = True
        await service.writer.quiet(DRAIN_S)
        await asyncio.sleep(0)
        guests.close()
        await service.writer.close()
        await service.log.close()
        service.store.close()


def _reason(exc: Exception) -> TopicdError:
    """Why the store is closed; retriable: it may pass by itself."""
    if isinstance(exc, FormatError | StorageCorrupt):
        how = "see docs/chat.md, When the store is closed"
        found: TopicdError = StorageCorrupt(f"the chat store is closed: {exc.message} ({how})")
    elif isinstance(exc, TopicdError):
        found = NotReady(f"the chat store is closed: {exc.message}")
    else:
        log.error("the chat store cannot be opened", exc_info=exc)
        found = NotReady(f"the chat store is closed: {exc}")
    return found


def _shape(error: TopicdError) -> str:
    """The same for each further attempt, whatever numbers the engine gives its files."""
    return re.sub(r"\d+", "", error.message)


def tuning_of(settings: Settings) -> Tuning:
    return Tuning(
        cache_bytes=settings.chat_cache_bytes,
        memtable_bytes=settings.chat_memtable_bytes,
        threads=settings.chat_threads,
    )
