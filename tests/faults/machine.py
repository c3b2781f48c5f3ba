"""The shards of a daemon inside one process, without its supervisor, on whatever filesystem a test gives them.
Promise: the code that runs is the shards' own (committer, log, adoption, outlets, turns, sessions, recovery,
checkpoints); order is decided by the test alone, for nothing runs unless settle() or a request makes it run.

    power loss:   abandon(), then Machine(disk.image(seed), previous=machine, power_lost=True)
    SIGKILL:      abandon(), then Machine(disk, previous=machine)   the rings are still there
"""

from __future__ import annotations

import asyncio
import secrets
import select
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.faultfs import Crashed
from tests.support.jobs import Job, ack_body, claim_body, parse_acked, parse_claimed, put_body
from tests.support.oracle import Seen
from topicd.clock import ManualClock
from topicd.config import Settings
from topicd.disk.fs import Fs
from topicd.errors import StorageCorrupt, from_wire
from topicd.frames import core
from topicd.ipc import shm
from topicd.ipc.control import BootInfo, ControlChannel
from topicd.ipc.doorbell import Doorbell
from topicd.ipc.pressure import Board
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import (
    ANSWER,
    APPEND,
    APPENDED,
    FETCH,
    FETCHED,
    FLAG_OPTIONS,
    PROTOCOL_VERSION,
    MessageReader,
    map_message,
    message,
    unpack_map,
)
from topicd.ipc.ring import RingProducer
from topicd.ipc.shardboot import DELIVERY, WAL, ShardBoot
from topicd.ipc.stats import StatsPage
from topicd.ipc.walstate import read_states
from topicd.paths import DataDir, Instance, RunDir, ring_shm
from topicd.placement import delivery_shard
from topicd.shards.delivery import slices
from topicd.shards.delivery.parts import Parts
from topicd.shards.delivery.sessions.session import Session
from topicd.shards.delivery.starting.recovery import Recovered
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.outlet import Outlet
from topicd.shards.process.runtime import Shard
from topicd.shards.wal.shard import WalShard
from topicd.supervisor.memory import Memory, unlink_all

ROOT = Path("/data")
SEED = 0x5EED
ID_BLOCK = 1024
KIB = 1024
DAY_MS = 86_400_000
TURNS = 200  # more than any operation takes
# One process plays all shards and nobody waits for a turn: the same calls in the same order, however busy the machine
# is. Pauses between slices would pass in real time, and a machine at rest has none.
slices.SLICE_S = 60.0
# Files so small that a few writes rotate them, and smaller than a step of the filler: it has nothing to do then.
SMALL: dict[str, Any] = {
    "ring_bytes": 16 * KIB,
    "wal_file_bytes": 48 * KIB,
    "checkpoint_bytes": 1 << 40,  # checkpoints and snapshots happen when the test says so
    "checkpoint_ms": DAY_MS,
    "snapshot_ms": DAY_MS,
    "segment_max_records": 8,
    "segment_max_bytes": 1 << 20,
    "segment_max_age_ms": DAY_MS,
    "map_cache_bytes": 0,
    "max_inflight_bytes": 1 << 30,
}


class Killed(BaseException):
    """One shard is dead. Not an Exception, so that no handler of the code under test mistakes it for an error."""


class ConnectionGone(Exception):
    """The shard died before it answered."""


class Appended(NamedTuple):
    first_seq: int
    deduped: bool


class Machine:
    def __init__(
        self,
        fs: Fs,
        *,
        wal_shards: int = 1,
        delivery_shards: int = 1,
        previous: Machine | None = None,
        undrained: Machine | None = None,
        power_lost: bool = False,
        clock: ManualClock | None = None,
        root: Path = ROOT,
        run: int | None = None,
        next_id: int | None = None,
        **settings: Any,
    ) -> None:
        self.fs = fs
        self.data = DataDir(root)
        self.clock = clock or (previous.clock if previous else ManualClock())
        self.wal_shards = wal_shards
        self.delivery_shards = delivery_shards
        self.run = run or (previous.run + 1 if previous else 1)
        self.instance = secrets.token_hex(8)
        self.next_id = next_id or (previous.next_id if previous else 1)
        # One that died before it drained its own predecessor never served: that one's rings count.
        self._previous = undrained or previous
        self._power_lost = power_lost
        self.settings = Settings(data_dir=root, run_dir=Path("/run"), **{**SMALL, **settings})
        self._memory = Memory(self.instance, wal_shards, delivery_shards, self.settings.ring_bytes)
        self.loop = _new_loop()
        self._channels: list[tuple[ControlChannel, socket.socket]] = []
        self._regions: list[shm.Region] = []
        self._boards: list[Board] = []
        self.wals: dict[int, WalShard] = {}
        self.deliveries: dict[int, Parts] = {}
        self.bells: dict[int, Doorbell] = {}
        self.pools: dict[int, Inline] = {}
        self.results: dict[int, Recovered] = {}
        self._wires: dict[int, Wire] = {}
        self.drained = False  # what was in the rings of the previous run is in the WAL
        self.wal_turning = False
        self.pulse: Callable[[], None] = lambda: None  # called whenever something may have died

    # ---- life ----

    def open(self) -> Machine:
        """Memory, WAL shards, delivery shards, in this order; everything serves afterwards."""
        self._memory.create()
        for index in range(self.wal_shards):
            self.start_wal(index)
        if self._previous is not None:
            unlink_all(self._previous.instance)
        self.drained = True
        for index in range(self.delivery_shards):
            self.start_delivery(index)
        self.settle()
        return self

    def open_when(self, disk: Any, room: int) -> Machine:
        """On a disk that has so much room, whatever is on it."""
        disk.capacity = sum(len(content) for content in disk.files().values()) + room
        return self.open()

    def start_wal(self, index: int) -> WalShard:
        """Also the successor of one that was killed."""
        wal = self.wals[index] = WalShard(self._shard(WAL, index))
        try:
            wal._committer = wal._open()
        except BaseException:
            _stop_filler(wal)
            raise
        return wal

    def start_delivery(self, index: int, *, absorb: bool = True) -> Parts:
        """absorb: what follows a recovery, the first checkpoint and snapshot, happens with the next settle()."""
        shard = self._shard(DELIVERY, index)
        self.bells[index] = shard.bell
        outlets = [
            Outlet(
                wal, RingProducer.attach(ring_shm(self.instance, wal, index), self.instance), shard.bell_of(WAL, wal)
            )
            for wal in range(self.wal_shards)
        ]
        self.pools[index] = Inline()
        parts = Parts(shard, self.loop, outlets, self.pools[index])
        parts.ids.add(self.next_id, self.next_id + ID_BLOCK)
        self.next_id += ID_BLOCK
        self.turn_wals()
        for outlet in outlets:
            outlet.set_absorbed(None)
            outlet.open()
        self.results[index] = parts.recovery().run(lambda percent, what: None, self._live_ends())
        parts.channels.restore()
        if absorb:
            parts.rounds.open()
        self.deliveries[index] = parts
        parts.channels.open()
        parts.turn.doorbell()
        self._wires.pop(index, None)
        return parts

    def replace_wal(self, index: int) -> None:
        """Its process was killed: nothing of it acts any more, and a successor takes over."""
        _stop_filler(self.wals[index])
        self.start_wal(index)

    def replace_delivery(self, index: int) -> None:
        """The same; all callbacks of the dead one go with the loop, so it must be the only delivery shard."""
        assert self.delivery_shards == 1
        self.loop.close()
        self.loop = _new_loop()
        wire = self._wires.pop(index, None)
        if wire is not None:
            wire.dead = True
        self.start_delivery(index)

    def _shard(self, kind: str, index: int) -> Shard:
        old = None
        if self._previous is not None and not self._power_lost:
            old = Instance(self._previous.instance, self._previous.wal_shards, self._previous.delivery_shards)
        boot = ShardBoot(
            kind=kind,
            index=index,
            instance=self.instance,
            run=self.run,
            wal_shards=self.wal_shards,
            delivery_shards=self.delivery_shards,
            bell_fds=self._memory.bells,
            wal_seed=SEED,
            old_instance=old if kind == WAL else None,
            power_lost=self._power_lost,
        )
        channel, peer = ControlChannel.pair()
        self._channels.append((channel, peer))
        shard = Shard(
            info=BootInfo(kind, index, self.instance, self.run, {}, boot.extras()),
            channel=channel,
            settings=self.settings,
            stats=StatsPage.attach(self.instance, boot.name),
            clock=self.clock,
            fs=self.fs,
            data=self.data,
            run=RunDir(Path("/run")),
        )
        self._regions.append(shard.bells)
        self._boards.append(shard.board)
        return shard

    def _live_ends(self) -> dict[int, int]:
        return {wal: state.lsn for wal, state in read_states(self.instance, self.wal_shards).items()}

    def stop(self) -> None:
        """As SIGTERM would: everything checkpointed, synced and attested."""
        self.settle()
        for parts in self.deliveries.values():
            self.loop.create_task(parts.rounds.close())
            self.settle()
        for wal in self.wals.values():
            wal._committer.finish()
        self.abandon()

    def abandon(self) -> None:
        """Nobody does anything any more; the rings stay until close() or the next machine has drained them."""
        for wal in self.wals.values():
            _stop_filler(wal)
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        with suppress(BaseException):
            self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()
        for wal in self.wals.values():
            for ring in wal._rings:
                ring.close()
            wal._state.close()
        for channel, peer in self._channels:
            channel.close()
            peer.close()
        for region in self._regions:
            region.close()
        for wire in self._wires.values():
            wire.close()
        for board in self._boards:
            board.close()
        self._channels, self._regions, self._boards = [], [], []

    def close(self) -> None:
        if not self.loop.is_closed():
            self.abandon()
        self._memory.close()
        unlink_all(self.instance)

    def __enter__(self) -> Machine:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- time ----

    def turn_wals(self) -> bool:
        """One turn of each, until none has anything to do."""
        moved = False
        for _ in range(TURNS):
            if not self._turn_wals():
                return moved
            moved = True
        raise AssertionError("the WAL shards never come to rest")

    def _turn_wals(self) -> bool:
        self.wal_turning = True
        try:
            return any([wal._committer.turn() for wal in list(self.wals.values())])  # noqa: C419 (each has its turn)
        except Killed:
            return True
        finally:
            self.wal_turning = False
            self.pulse()

    def turn_wals_only(self) -> None:
        """The delivery shards hand over what they have and then sleep while the WAL shards work."""
        self.wait(asyncio.sleep(0))
        self._turn_wals()

    def turn_delivery_only(self) -> None:
        """The delivery shards end their turn; nobody looks at the rings."""
        for _ in range(3):
            self.wait(asyncio.sleep(0))

    def settle(self) -> None:
        """Until nobody has anything to do any more."""
        for _ in range(TURNS):
            busy = self.turn_wals()
            for index, parts in list(self.deliveries.items()):
                # Only a bell wakes it: a lost wake-up is a request without an answer here too.
                if rung(self.bells[index].fd):
                    with suppress(Killed):
                        parts.turn.doorbell()
            self.pulse()
            self.wait(asyncio.sleep(0))
            self._notice_deaths()
            self.pulse()
            busy = busy or any(wal._committer.pending() for wal in self.wals.values())
            busy = busy or any(parts.agenda.scheduled for parts in self.deliveries.values())
            if not busy and all(task.done() for task in asyncio.all_tasks(self.loop)):
                return
        raise AssertionError(f"the machine never comes to rest: {', '.join(self._restless())}")

    def _restless(self) -> list[str]:
        """Who still has something to do."""
        found = [f"WAL shard {index}" for index, wal in self.wals.items() if wal._committer.pending()]
        found += [f"the agenda of shard {index}" for index, parts in self.deliveries.items() if parts.agenda.scheduled]
        return found + [str(task.get_coro()) for task in asyncio.all_tasks(self.loop) if not task.done()]

    def _notice_deaths(self) -> None:
        for pool in self.pools.values():
            if isinstance(pool.died, Crashed):
                raise pool.died

    def wait(self, awaitable: Any) -> Any:
        """Raises what a task raised; a crash of the disk comes through."""
        return self.loop.run_until_complete(awaitable)

    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        for parts in self.deliveries.values():
            parts.deadlines.run()
        self.settle()

    def checkpoint(self) -> None:
        for parts in self.deliveries.values():
            parts.rounds.checkpoint_now()
        self.settle()

    def snapshot(self) -> None:
        for parts in self.deliveries.values():
            parts.snapshots.start()
        self.settle()

    def tick(self) -> None:
        """What a delivery shard does once a second."""
        for parts in self.deliveries.values():
            parts.tick()
        self.settle()

    def tick_wals(self) -> None:
        """What a WAL shard does once a second: attest, recycle, drop."""
        for wal in self.wals.values():
            wal._tick(idle=True)

    def forget_wal(self) -> None:
        """Load, checkpoints and snapshots until no file that is there now is left of the WAL."""
        before = self._wal_files()
        topics = [f"bulk-{n}" for n in range(8 * self.wal_shards * self.delivery_shards)]
        for name in topics:
            self.configure(name)
        for _ in range(20):
            for name in topics:
                self.append(name, [bytes(8 * KIB)])
            self.checkpoint()
            self.snapshot()
            self.tick_wals()
            if not before & self._wal_files():
                break
        else:
            raise AssertionError(f"these WAL files never go: {before & self._wal_files()}")
        for name in topics:
            self.ask(name, Op.DELETE_TOPIC)

    def _wal_files(self) -> set[tuple[str, str]]:
        shards = self.fs.listdir(self.data.wal)
        return {(s, f) for s in shards for f in self.fs.listdir(self.data.wal / s) if f.startswith("wal-")}

    # ---- requests ----

    def delivery_of(self, topic: str) -> Parts:
        return self.deliveries[delivery_shard(topic, self.delivery_shards)]

    def wire_of(self, topic: str) -> Wire:
        index = delivery_shard(topic, self.delivery_shards)
        if index not in self._wires:
            self._wires[index] = Wire(self, self.deliveries[index])
        return self._wires[index]

    def configure(self, topic: str, **config: Any) -> int:
        return int(self.ask(topic, Op.CONFIGURE, config=config)["topic_id"])

    def topic_id(self, topic: str) -> int:
        return self.delivery_of(topic).catalog.by_name[topic].id

    def append(
        self, topic: str, payloads: Sequence[bytes], *, tag: str | None = None, producer: int = 0, number: int = 0
    ) -> Appended:
        """Send and wait."""
        return self.finish_append(topic, self.begin_append(topic, payloads, tag=tag, producer=producer, number=number))

    def begin_append(
        self, topic: str, payloads: Sequence[bytes], *, tag: str | None = None, producer: int = 0, number: int = 0
    ) -> Ticket:
        topic_id = self.topic_id(topic)
        frames = core.encode_batch(payloads, None if tag is None else tag.encode(), None, None)
        body = APPEND.pack(topic_id, producer, number, len(payloads)) + frames
        wire = self.wire_of(topic)
        return Ticket(wire, wire.send(Op.APPEND, body))

    def finish_append(self, topic: str, ticket: Ticket) -> Appended:
        flags, body = ticket.wire.answer(ticket.request_id)
        first, _, _ = APPENDED.unpack_from(body)
        return Appended(first, bool(flags & 2))

    # ---- jobs ----

    def put(self, topic: str, payloads: Sequence[bytes], tag: str, options: dict[str, Any]) -> int:
        """Jobs with options; their first seq."""
        wire = self.wire_of(topic)
        rows = [[0, len(payloads), options]]
        body = put_body(self.topic_id(topic), payloads, rows, tag=tag.encode())
        _, answer = wire.answer(wire.send(Op.APPEND, body, FLAG_OPTIONS))
        first: int = APPENDED.unpack_from(answer)[0]
        return first

    def claim(self, topic: str, most: int = 1_000) -> list[Job]:
        wire = self.wire_of(topic)
        return parse_claimed(wire.answer(wire.send(Op.CLAIM, claim_body(self.topic_id(topic), most)))[1]).jobs

    def ack(self, topic: str, rows: Sequence[tuple[int, int]]) -> int:
        wire = self.wire_of(topic)
        return parse_acked(wire.answer(wire.send(Op.ACK, ack_body(self.topic_id(topic), rows)))[1]).acked

    def ask(self, topic: str, op: Op, **body: Any) -> dict[str, Any]:
        """Again and again while shards die."""
        while True:
            try:
                return self.wire_of(topic).ask(op, {"topic": topic, **body})
            except ConnectionGone:
                continue

    def state(self, topic: str) -> dict[str, Any]:
        return self.ask(topic, Op.STATE)

    def read(self, topic: str) -> list[Seen]:
        found: list[Seen] = []
        from_seq = 0
        while True:
            records, next_from, head = self.read_some(topic, from_seq)
            found += records
            if next_from >= head:
                return found
            assert next_from > from_seq, f"{topic}: reading stands still at {from_seq}"
            from_seq = next_from

    def read_some(self, topic: str, from_seq: int) -> tuple[list[Seen], int, int]:
        """(records, last seq examined, head)"""
        wire = self.wire_of(topic)
        _, body = wire.answer(wire.send(Op.FETCH, FETCH.pack(self.topic_id(topic), from_seq, 10_000, 8 << 20, 0)))
        _, next_from, head, _, count, extra = FETCHED.unpack_from(body)
        frames = body[FETCHED.size + extra :]
        decoded = core.decode_frames(frames, 0, len(frames))
        assert len(decoded) == count
        return [Seen(row[0], bytes(row[5])) for row in decoded], next_from, head

    def read_around_damage(self, topic: str) -> list[Seen]:
        """What can be read; the errors in between say where to read on."""
        found: list[Seen] = []
        from_seq, head = 0, self.state(topic)["head_seq"]
        while from_seq < head:
            try:
                answer = self.read_some(topic, from_seq)
            except StorageCorrupt as exc:
                from_seq = int(exc.detail["last_seq"])
                continue
            found += answer[0]
            from_seq = answer[1]
        return found

    def topics(self) -> list[str]:
        return sorted(name for parts in self.deliveries.values() for name in parts.catalog.by_name)

    def damage(self) -> list[str]:
        found = [line for wal in self.wals.values() for line in wal.damage]
        return found + [line for result in self.results.values() for line in result.damage]

    def picture(self) -> dict[str, Any]:
        """All that a client can see, for comparing two machines."""
        return {name: self._picture_of(name) for name in self.topics()}

    def _picture_of(self, name: str) -> dict[str, Any]:
        state = self.state(name)
        kept = ("head_seq", "earliest_seq", "next_seq", "evict_floor", "count", "bytes", "config", "topic_id")
        topic = self.delivery_of(name).catalog.by_name[name]
        return {
            **{key: state[key] for key in kept},
            "records": self.read(name),
            "consumers": self.ask(name, Op.CONSUMER_LIST)["consumers"],
            "losses": [tuple(loss) for loss in topic.floors.losses],
            "producers": topic.producers.to_snapshot(topic.seqs.visible),
            "jobs": None if topic.queue is None else self._jobs_of(topic),
        }

    def _jobs_of(self, topic: Topic) -> dict[str, Any]:
        """What a restart must not change: everything but leases, unless they are kept, and what follows from them: of
        a lease that ran out no log speaks."""
        jobs = topic.queue
        assert jobs is not None
        kept = jobs.to_snapshot(topic.seqs.visible)
        for key in ("mark", "through", *(() if jobs.logs_leases else ("leases",))):
            del kept[key]
        held = 0 if jobs.logs_leases else jobs.in_flight
        self.delivery_of(topic.name).queues.of(topic).look()
        return {
            **kept,
            "past": sorted([row[0], row[4]] for row in kept["past"] if row[4]),
            "delayed": sorted(kept["delayed"]),
            "ready": jobs.ready + held,
        }


class Ticket(NamedTuple):
    """A request under way."""

    wire: Wire
    request_id: int


class Inline(Executor):
    """Does the work at once, in the caller's thread: the order of filesystem calls is the same every time."""

    died: BaseException | None = None  # of the disk or the shard, in work that nobody waits for

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as exc:
            future.set_exception(exc)
            if not isinstance(exc, Exception):
                self.died = exc
        return future


class Wire:
    """A connection to one delivery shard without a socket: messages go straight into a session."""

    def __init__(self, machine: Machine, parts: Parts) -> None:
        self._machine = machine
        self.dead = False
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._reader = MessageReader()
        self._answers: dict[int, tuple[int, int, bytes]] = {}
        self._jobs: list[bytes] = []
        self._next = 0
        self._session = Session(parts)
        self._session.connection_made(_Transport(self._theirs, self._arrived))
        self.ask(Op.HELLO, {"version": PROTOCOL_VERSION})

    def send(self, op: int, body: bytes, flags: int = 0) -> int:
        self._next += 1
        self._feed(message(op, self._next, body, flags))
        return self._next

    def ask(self, op: int, body: dict[str, Any]) -> dict[str, Any]:
        self._next += 1
        self._feed(map_message(op, self._next, body))
        _, found = self.answer(self._next)
        return unpack_map(found)

    def answered(self, request_id: int) -> bool:
        return request_id in self._answers

    def answer(self, request_id: int) -> tuple[int, bytes]:
        """(flags, body); raises the error that came instead."""
        if request_id not in self._answers:
            self._machine.settle()
        if request_id not in self._answers:
            if self.dead:
                raise ConnectionGone(f"request {request_id}")
            raise Unanswered(f"request {request_id} got no answer")
        op, flags, body = self._answers.pop(request_id)
        if op == Op.ERROR:
            raise from_wire(unpack_map(body))
        assert op & ANSWER
        return flags, body

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()

    def _feed(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.dead:
            size = len(view)
            with suppress(Killed):
                buffer = self._session.get_buffer(size)
                size = min(size, len(buffer))
                buffer[:size] = view[:size]
                self._session.buffer_updated(size)
            self._machine.pulse()
            view = view[size:]

    def take_jobs(self) -> list[bytes]:
        """Bodies of JOBS that came since the last time."""
        found, self._jobs = self._jobs, []
        return found

    def _arrived(self, data: bytes) -> None:
        for found in self._reader.feed(data):
            if found.op == Op.JOBS:
                self._jobs.append(bytes(found.body))
                continue
            self._answers[found.request_id] = (found.op, found.flags, bytes(found.body))


class Unanswered(AssertionError):
    pass


class _Transport(asyncio.Transport):
    def __init__(self, sock: socket.socket, arrived: Callable[[bytes], None]) -> None:
        super().__init__({"socket": sock})
        self._arrived = arrived
        self._closing = False

    def write(self, data: Any) -> None:
        self._arrived(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self._arrived(b"".join(bytes(data) for data in list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close


def _new_loop() -> asyncio.AbstractEventLoop:
    """Tasks end with the crash that killed them, and nobody asks them: that is no news."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    return loop


def _stop_filler(wal: WalShard) -> None:
    if not hasattr(wal, "_log"):
        return
    spares = wal._log._spares
    with spares._changed:
        spares._stopping = True
        spares._changed.notify_all()
    if spares._thread.is_alive():
        spares._thread.join()


def rung(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))
