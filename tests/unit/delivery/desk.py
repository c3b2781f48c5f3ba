"""The real parts of one delivery shard on a disk in memory. Promise: nothing happens unless the test says so: its WAL
shard writes and syncs when told to, and its loop runs in settle() only.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.faults.machine import SMALL, Inline
from tests.support.faultfs import FaultFs
from tests.support.served import run_routers
from tests.unit.delivery.kit import ROOT, TS, make_disk, make_outlet
from topicd import paths
from topicd.clock import ManualClock
from topicd.config import Settings
from topicd.errors import TopicdError, from_wire
from topicd.frames import core
from topicd.ipc import doorbell, pressure
from topicd.ipc.control import BootInfo, process_name
from topicd.ipc.doorbell import Doorbell
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import (
    APPEND,
    FETCHED,
    FLAG_KEY,
    PROTOCOL_VERSION,
    MessageReader,
    map_message,
    message,
    unpack_map,
)
from topicd.ipc.shardboot import DELIVERY, WAL, ShardBoot
from topicd.model import TopicConfig
from topicd.paths import DataDir, RunDir
from topicd.shards.delivery.parts import Parts
from topicd.shards.delivery.sessions.session import Session
from topicd.shards.delivery.topic.flight import InFlight, Waiter
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.process.runtime import Shard

_TURNS = 200  # more than anything takes
_AT_REST = 3  # quiet rounds of the loop in a row


class Outcome(NamedTuple):
    """Of an append."""

    how: str  # appended, deduped or the code of an error
    request_id: int
    first_seq: int = 0
    records: int = 0


class Writer:
    """Waits for appends, and writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Outcome] = []

    def appended(self, waiter: Waiter, head: int, entry: InFlight) -> None:
        self.told.append(Outcome("appended", waiter.request_id, waiter.first_seq, waiter.records))

    def run_appended(self, request_ids: bytes, first_seq: int, head: int) -> None:
        for n, request_id in enumerate(memoryview(request_ids).cast("I")):
            self.told.append(Outcome("appended", request_id, first_seq + n, 1))

    def deduped(self, waiter: Waiter, head: int) -> None:
        self.told.append(Outcome("deduped", waiter.request_id, waiter.first_seq, waiter.records))

    def append_refused(self, request_id: int, error: TopicdError) -> None:
        self.told.append(Outcome(error.code, request_id))


class Desk:
    def __init__(self, instance: str, *, shards: int = 1, wals: int = 1, **settings: Any) -> None:
        self.disk = make_disk()
        self.fs = FaultFs(self.disk)  # fails when it is told to
        self.clock = ManualClock(TS)
        self.loop = asyncio.new_event_loop()
        self.pages: list[dict[str, Any]] = []  # of the stats page
        self.sent: list[dict[str, Any]] = []  # to the supervisor
        self.lines: list[Line] = []
        given = {**SMALL, "linger_us": 0, "data_dir": ROOT, "run_dir": Path("/run"), **settings}
        self._bells = [doorbell.create_fd() for _ in range(wals + 1)]
        names = [*(process_name(WAL, index) for index in range(wals)), process_name(DELIVERY, 0)]
        doorbell.create_words(paths.bells_shm(instance), len(names), instance).close()
        pressure.create(instance, shards).close()
        boot = ShardBoot(
            kind=DELIVERY,
            index=0,
            instance=instance,
            run=1,
            wal_shards=wals,
            delivery_shards=shards,
            bell_fds=dict(zip(names, self._bells, strict=True)),
            wal_seed=1,
        )
        channel: Any = SimpleNamespace(send=self.sent.append)
        stats: Any = SimpleNamespace(publish=self.pages.append)
        self.shard = Shard(
            info=BootInfo(DELIVERY, 0, instance, 1, {}, boot.extras()),
            channel=channel,
            settings=Settings(**given),
            stats=stats,
            clock=self.clock,
            fs=self.fs,
            data=DataDir(ROOT),
            run=RunDir(Path("/run")),
        )
        self.bell, self.wal_bell = self.shard.bell, self.shard.bell_of(WAL, 0)
        ends = [make_outlet(instance, self.wal_bell, given["ring_bytes"], index) for index in range(wals)]
        self.wals = [wal for _, wal in ends]
        self.wal = self.wals[0]
        self.parts = Parts(self.shard, self.loop, [outlet for outlet, _ in ends], Inline())
        self.parts.ids.add(1, 1_000)

    def close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        for line in self.lines:
            line.close()
        self.shard.bells.close()
        self.shard.board.close()
        for fd in self._bells:
            os.close(fd)

    # ---- time ----

    def turn(self) -> None:
        """The loop, once: what was put off is done; no WAL shard does anything."""
        self.loop.run_until_complete(asyncio.sleep(0))

    def store(self) -> bool:
        """The WAL shards write and sync what they were given, and ring; was there anything?"""
        moved = any(wal.pending or wal.ring.synced_pos < wal.written for wal in self.wals)
        for wal in self.wals:
            wal.write()
            wal.sync()
        self.parts.turn.doorbell()
        return moved

    def settle(self) -> None:
        """Until nobody has anything to do any more."""
        quiet = 0
        for _ in range(_TURNS):
            moved = self.store()
            self.turn()
            busy = moved or self.parts.agenda.scheduled or asyncio.all_tasks(self.loop)
            quiet = 0 if busy else quiet + 1
            if quiet == _AT_REST:
                return
        raise AssertionError("the desk never comes to rest")

    def fail_wal(self, code: int) -> None:
        """Nothing that was not written yet ever will be."""
        self.wal.fail(self.wal.written, code)
        self.parts.turn.doorbell()
        self.wal.resume()

    def fail_disk(self, only: Callable[[str, Path], bool] = lambda name, path: True, code: int = errno.EIO) -> None:
        """The next call of this kind fails, and all that follow."""
        self.fs.calls.clear()
        self.fs.only, self.fs.fail_at, self.fs.always, self.fs.errno = only, 1, True, code

    def mend_disk(self) -> None:
        self.fs.fail_at = None

    def serve(self) -> Desk:
        """As after a recovery: checkpoints and snapshots happen."""
        self.parts.rounds.open()
        self.settle()
        return self

    def checkpoint(self) -> None:
        self.parts.rounds.checkpoint_now()
        self.settle()

    def snapshot(self) -> None:
        self.parts.snapshots.start()
        self.settle()

    # ---- topics and records ----

    def topic(self, name: str = "orders", **config: Any) -> Topic:
        made: list[Topic | None] = []
        self.parts.catalog.create(name, TopicConfig.from_fields(config), lambda topic, error: made.append(topic))
        self.settle()
        assert made[0] is not None
        return made[0]

    def append(
        self,
        topic: Topic,
        datas: Sequence[bytes],
        *,
        writer: Writer | None = None,
        request_id: int = 1,
        producer: int = 0,
        number: int = 0,
        flags: int = 0,
        key: bytes = b"",
        tags: Any = None,
    ) -> Writer:
        """Handed over, not stored: see settle()."""
        writer = writer or Writer()
        body = append_body(topic.id, datas, producer=producer, number=number, key=key, tags=tags)
        self.parts.appender.append(writer, request_id, flags | (FLAG_KEY if key else 0), memoryview(body))
        return writer

    def write(self, topic: Topic, datas: Sequence[bytes], **more: Any) -> list[Outcome]:
        """Appended and settled: what the writer was told."""
        writer = self.append(topic, datas, **more)
        self.parts.turn.end()
        self.settle()
        return writer.told

    def route(self) -> Desk:
        """Routers run, and the shard may ask itself."""
        run_routers(self.parts)
        return self

    def line(self, *, hello: bool = True) -> Line:
        made = Line(self)
        self.lines.append(made)
        if hello:
            made.ask(Op.HELLO, version=PROTOCOL_VERSION)
        return made


def append_body(
    topic_id: int, datas: Sequence[bytes], *, producer: int = 0, number: int = 0, key: bytes = b"", tags: Any = None
) -> bytes:
    prefix = len(key).to_bytes(2, "little") + key if key else b""
    return APPEND.pack(topic_id, producer, number, len(datas)) + prefix + core.encode_batch(datas, tags, None, None)


class Answer(NamedTuple):
    op: int
    flags: int
    request_id: int
    body: bytes

    def map(self) -> dict[str, Any]:
        return unpack_map(self.body)

    def datas(self) -> list[bytes]:
        """Of a fetch or a push."""
        frames = self.body[FETCHED.size + FETCHED.unpack_from(self.body)[5] :]
        return [bytes(row[5]) for row in core.decode_frames(frames, 0, len(frames))]


class Line(asyncio.Transport):
    """A connection without a socket's delays: bytes go straight into a session, answers stay here."""

    def __init__(self, desk: Desk) -> None:
        self._pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        super().__init__({"socket": self._pair[0]})
        self._desk = desk
        self._reader = MessageReader()
        self._next = 0
        self._unread = b""
        self.answers: list[Answer] = []
        self.reading = True
        self.closing = False
        self.session = Session(desk.parts)
        self.session.connection_made(self)

    def send(self, op: int, body: bytes | dict[str, Any], flags: int = 0) -> int:
        self._next += 1
        made = map_message if isinstance(body, dict) else message
        self.feed(made(op, self._next, body, flags))  # type: ignore[operator]
        return self._next

    def feed(self, data: bytes) -> None:
        """What is not read now is read when the session goes on reading."""
        self._unread += data
        while self._unread and self.reading and not self.closing:
            buffer = self.session.get_buffer(len(self._unread))
            size = min(len(self._unread), len(buffer))
            buffer[:size] = self._unread[:size]
            self._unread = self._unread[size:]
            self.session.buffer_updated(size)

    def ask(self, op: int, **body: Any) -> dict[str, Any]:
        """The answer; raises the error that came instead."""
        return self.result(self.send(op, body)).map()

    def result(self, request_id: int) -> Answer:
        self._desk.settle()
        found = next(answer for answer in self.answers if answer.request_id == request_id)
        self.answers.remove(found)
        if found.op == Op.ERROR:
            raise from_wire(found.map())
        return found

    def take(self, op: int) -> list[Answer]:
        """Those of one op that came since the last time."""
        self._desk.settle()
        found = [answer for answer in self.answers if answer.op == op]
        self.answers = [answer for answer in self.answers if answer.op != op]
        return found

    # ---- asyncio.Transport ----

    def write(self, data: Any) -> None:
        for found in self._reader.feed(bytes(data)):
            self.answers.append(Answer(found.op, found.flags, found.request_id, bytes(found.body)))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(bytes(data) for data in list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True
        if self._unread:
            self._desk.loop.call_soon(self.feed, b"")

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True
        for end in self._pair:
            end.close()


def rings(bell: Doorbell) -> bool:
    """Was it rung?"""
    poll = select.poll()  # select takes no descriptor above 1023
    poll.register(bell.fd, select.POLLIN)
    return bool(poll.poll(0))
