"""The committer's turns in C against those in Python: same files, same counters, same answers to failures."""

from __future__ import annotations

import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from topicd import _native, paths
from topicd.clock import ManualClock, SystemClock
from topicd.disk.fs import File, RealFs
from topicd.frames import FrameType, control_frame
from topicd.ipc import doorbell, pressure, ring, shm, slots
from topicd.ipc.doorbell import Doorbell
from topicd.ipc.linger import Linger
from topicd.ipc.pressure import Board
from topicd.ipc.ring import RingConsumer, RingProducer
from topicd.ipc.slots import Slots
from topicd.ipc.walstate import WalState
from topicd.limits import KIB
from topicd.shards.wal import turns
from topicd.shards.wal.aside import ENDED, UNDER_WAY, Aside, InTurn
from topicd.shards.wal.committer import Committer, Inlet
from topicd.shards.wal.log import WalLog
from topicd.shards.wal.turns import LEFT_TO_PYTHON, NativeTurns, Why

pytestmark = pytest.mark.skipif(_native.commit is None, reason="the pure twin has no native turns")

CAPACITY = 64 * 1024
RINGS = 2
FILE_BYTES = 512 * KIB
OWN, FIRST_PRODUCER = 0, 1  # words of the bells
FRAME = control_frame(FrameType.RESYNC, 0, 0, 0, {"epoch": 1})


class Shard:
    """A WAL shard on a real directory; the test is its producers."""

    def __init__(self, directory: Path, *, native: bool, disk_sync_s: float = 60.0, aside: Aside | None = None) -> None:
        self.instance = secrets.token_hex(8)
        self.bells = doorbell.create_words(paths.bells_shm(self.instance), FIRST_PRODUCER + RINGS, self.instance)
        self.fds = [doorbell.create_fd() for _ in range(FIRST_PRODUCER + RINGS)]
        self.own = Doorbell(self.bells, OWN, self.fds[OWN])
        pressure.create(self.instance, RINGS).close()
        self.board = Board.attach(self.instance)
        slots.create(paths.wal_state_shm(self.instance, 0), 4096, self.instance).close()
        self.state = Slots.attach(paths.wal_state_shm(self.instance, 0), self.instance)
        self.producers, inlets = [], []
        for number in range(RINGS):
            name = paths.ring_shm(self.instance, 0, number)
            ring.create(name, CAPACITY, self.instance).close()
            self.producers.append(RingProducer.attach(name, self.instance))
            bell = Doorbell(self.bells, FIRST_PRODUCER + number, self.fds[FIRST_PRODUCER + number])
            inlets.append(Inlet(RingConsumer.attach(name, self.instance), bell, 0, 0))
        self.directory = directory
        self.log = WalLog(RealFs(), directory, FILE_BYTES, 3, 77, aside)
        self.log.open(4096, None)
        clock = SystemClock()
        self.committer = Committer(self.log, self.state, clock, inlets, disk_sync_s, lambda: self.board.commit_us)
        self.committer.open(FILE_BYTES - 4 * KIB)
        for fd in self.fds:
            Doorbell(self.bells, 0, fd).awake()  # what open() rang
        self.orders, self.supervisor = os.pipe()
        self.turns: NativeTurns | None = None
        if native:
            self.turns = NativeTurns(self.committer, self.own, self.orders, self.board, Linger(0), 4096)

    def step(self, seconds: float = 0.0) -> Why | None:
        """All that can be done at once; native turns go on for so long."""
        if self.turns is None:
            while self.committer.turn():
                pass
            return None
        until = time.monotonic() + max(seconds, 0.001)
        while True:
            why = self.turns.run(until)
            if why in LEFT_TO_PYTHON:
                self.committer.turn()
            if why is Why.TICK and self.committer.pending():
                until = time.monotonic() + 0.05  # this process had to wait for a core
                continue
            if why in (Why.TICK, Why.MESSAGE, Why.SIGNAL, Why.WRITE_FAILED, Why.SYNC_FAILED):
                return why

    def place(self, number: int, frames: int = 1, *, sync: bool = False, write: bool = False) -> None:
        producer, blob = self.producers[number], FRAME * frames
        if write:
            producer.want_write(producer.head + len(blob))
        assert producer.try_write([blob], len(blob)) is not None
        if sync:
            producer.want_sync(producer.head)

    def use_instead(self, path: str) -> None:
        """The file in use is another one from now on, and Python's own writes to it fail alike."""
        active = self.log._active
        assert active is not None
        active.file.close()
        active.file = RealFs().open(path, write=True)

    def facts(self) -> dict[str, object]:
        committer = self.committer
        payload = self.state.read()
        return {
            "log": (self.log.lsn, self.log.first_lsn, self.log.synced_lsn),
            "counts": (committer.groups, committer.bytes, committer.failures, committer.read_only_errno),
            "rings": [(p.written_pos, p.synced_pos, p.failed_epoch, p.failure) for p in self.producers],
            "inlets": [(i.written, i.synced, i.waiting_epoch) for i in committer.inlets],
            "state": None if payload is None else WalState.unpack(payload),
        }

    def files(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes().rstrip(b"\0") for p in sorted(self.directory.iterdir()) if "wal-" in p.name}

    def slept_and_was_rung(self, number: int) -> bool:
        try:
            return os.eventfd_read(self.fds[FIRST_PRODUCER + number]) > 0
        except BlockingIOError:
            return False

    def fall_asleep(self, number: int) -> None:
        Doorbell(self.bells, FIRST_PRODUCER + number, self.fds[FIRST_PRODUCER + number]).announce()

    def close(self) -> None:
        self.log.close()
        for fd in [*self.fds, self.orders, self.supervisor]:
            os.close(fd)
        for name in shm.names_of(self.instance):
            shm.unlink(name)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Shard, Shard]]:
    both = Shard(tmp_path / "native", native=True), Shard(tmp_path / "python", native=False)
    yield both
    for shard in both:
        shard.close()


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    made = Shard(tmp_path / "native", native=True)
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(6))
def test_both_write_the_same_log_and_tell_the_same(pair: tuple[Shard, Shard], seed: int) -> None:
    dice = random.Random(seed)
    for _ in range(60):
        for number in range(RINGS):
            if dice.random() < 0.6:
                frames, sync, write = (
                    dice.randint(1, 1 + dice.choice((3, 900))),
                    dice.random() < 0.5,
                    dice.random() < 0.5,
                )
                for shard in pair:
                    shard.place(number, frames, sync=sync, write=write)
        for shard in pair:
            shard.step()
        assert pair[0].facts() == pair[1].facts()
    assert pair[0].log.rotations == pair[1].log.rotations > 0
    assert pair[0].files() == pair[1].files()


def test_a_producer_that_sleeps_is_rung_for_what_it_waits_for(pair: tuple[Shard, Shard]) -> None:
    for shard in pair:
        for number in range(RINGS):
            shard.fall_asleep(number)
        shard.place(0, write=True)
        shard.place(1)
        shard.step()
        assert [shard.slept_and_was_rung(n) for n in range(RINGS)] == [True, False]
        shard.fall_asleep(0)
        shard.producers[1].want_sync(shard.producers[1].head)
        shard.step()
        assert [shard.slept_and_was_rung(n) for n in range(RINGS)] == [False, True]


def test_what_nobody_asked_to_sync_is_synced_after_its_time(tmp_path: Path) -> None:
    shard = Shard(tmp_path / "native", native=True, disk_sync_s=0.02)
    shard.place(0)
    shard.step(0.2)
    assert shard.log.synced_lsn == shard.log.lsn
    assert (shard.committer.syncs, sum(shard.committer.sync_latency.counts)) == (1, 1)
    assert shard.producers[0].synced_pos == len(FRAME)
    shard.close()


class Held(InTurn):
    """A sync beside the turns that ends when the test says so."""

    def begin(self, file: File) -> None:
        super().begin(file)
        self._set(UNDER_WAY)

    def end(self) -> None:
        self._set(ENDED)

    def take(self) -> float:
        assert self.state == ENDED
        return super().take()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Shard, Held]]:
    """Turns in C, and a sync beside them that is under way."""
    aside = Held()
    shard = Shard(tmp_path / "native", native=True, disk_sync_s=0.001, aside=aside)
    shard.place(0)
    shard.step(0.05)
    assert aside.state == UNDER_WAY
    yield shard, aside
    aside.end()
    shard.close()


def test_groups_are_written_while_a_sync_beside_is_under_way(held: tuple[Shard, Held]) -> None:
    shard, aside = held
    shard.place(0)
    assert shard.turns is not None
    assert shard.turns.run(time.monotonic() + 0.05) is Why.TICK
    assert (shard.producers[0].written_pos, shard.producers[0].synced_pos) == (2 * len(FRAME), 0)
    shard.committer.disk_sync_s = 60.0
    aside.end()
    shard.step()
    assert shard.producers[0].synced_pos == len(FRAME)
    assert shard.log.synced_lsn < shard.log.lsn


def test_turns_that_sleep_hear_that_a_sync_beside_has_ended(held: tuple[Shard, Held]) -> None:
    shard, aside = held

    def end() -> None:
        aside.end()
        shard.own.ring_always()

    later = threading.Timer(0.05, end)
    later.start()
    assert shard.turns is not None
    assert shard.turns.run(time.monotonic() + 30) is Why.ASIDE
    later.join()


def test_a_sync_that_is_awaited_is_not_begun_in_c_while_another_is_under_way(held: tuple[Shard, Held]) -> None:
    """Of a failure only one of the two would hear."""
    shard, _ = held
    shard.place(0, sync=True)
    assert shard.turns is not None
    assert shard.turns.run(time.monotonic() + 30) is Why.ASIDE
    assert (shard.producers[0].written_pos, shard.producers[0].synced_pos) == (2 * len(FRAME), 0)


def test_who_wished_for_a_sync_is_rung_when_it_has_ended(pair: tuple[Shard, Shard]) -> None:
    for shard in pair:
        shard.place(0)
        shard.producers[0].wish_sync(shard.producers[0].head)
        shard.fall_asleep(0)
        shard.step()
        assert shard.producers[0].synced_pos == len(FRAME)
        assert shard.slept_and_was_rung(0)
        shard.fall_asleep(0)
        shard.place(0)
        shard.place(1, sync=True)
        shard.producers[0].wish_sync(shard.producers[0].head)
        shard.step()
        assert shard.producers[0].synced_pos == 2 * len(FRAME)
        assert shard.slept_and_was_rung(0)
    assert pair[0].facts() == pair[1].facts()


def test_a_record_wakes_turns_that_sleep(shard: Shard) -> None:
    def produce() -> None:
        shard.place(0, sync=True)
        shard.own.ring()

    later = threading.Timer(0.05, produce)
    later.start()
    began = time.monotonic()
    seen = threading.Event()

    def look() -> None:
        while shard.producers[0].synced_pos < len(FRAME):
            if time.monotonic() - began > 20:
                return
        seen.set()
        os.write(shard.supervisor, b"!")

    watcher = threading.Thread(target=look)
    watcher.start()
    assert shard.step(30) is Why.MESSAGE
    watcher.join()
    assert seen.is_set()


def test_a_signal_ends_them(shard: Shard) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))
    later = threading.Timer(0.05, lambda: signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2))
    later.start()
    try:
        assert shard.step(30) is Why.SIGNAL
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert heard


def test_a_write_that_fails_is_told_as_the_twin_tells_it(pair: tuple[Shard, Shard]) -> None:
    for shard in pair:
        shard.place(0, 3, sync=True)
        shard.step()
        shard.use_instead("/dev/full")
        shard.place(0, 2, sync=True)
        shard.place(1, 1)
        shard.step()
    native, python = pair
    assert native.facts() == python.facts()
    assert native.committer.failures == 1
    assert native.producers[0].failure[0] == 3 * len(FRAME)


def test_a_sync_that_fails_makes_void_what_it_did_not_cover(pair: tuple[Shard, Shard]) -> None:
    for shard in pair:
        shard.place(0, 3, sync=True)
        shard.step()
        shard.use_instead("/dev/zero")  # takes every write, and cannot be synced
        shard.place(0, 2, sync=True)
        shard.step()
    native, python = pair
    assert native.facts() == python.facts()
    assert native.producers[0].synced_pos == 3 * len(FRAME)
    assert native.producers[0].failure[0] == 3 * len(FRAME)
    assert native.committer.failures == 1


def test_after_a_failure_only_what_its_producer_places_anew_is_written(pair: tuple[Shard, Shard]) -> None:
    for shard in pair:
        shard.use_instead("/dev/full")
        for number in range(RINGS):
            shard.place(number, 2, sync=True)
        shard.step()
        assert not shard.committer.read_only_errno or not shard.committer.is_calm()
        for producer in shard.producers:
            producer.answer_failure(producer.failed_epoch)
        shard.place(0, 1, sync=True)
        deadline = time.monotonic() + 20
        while shard.producers[0].synced_pos < 3 * len(FRAME) and time.monotonic() < deadline:
            if not shard.committer.turn():
                shard.step()
    native, python = pair
    assert native.facts()["rings"] == python.facts()["rings"]
    assert native.producers[0].synced_pos == 3 * len(FRAME)


def test_under_pressure_turns_are_pythons(shard: Shard) -> None:
    assert shard.turns is not None
    shard.board.say(0.5, 2, 0, 500, watching=True)
    assert not shard.committer.is_calm()
    assert shard.turns.run(time.monotonic() + 5) is Why.PRESSURE


def test_a_file_without_a_descriptor_or_a_clock_of_a_test_keeps_to_the_twin(shard: Shard) -> None:
    assert turns.possible(shard.log, SystemClock())
    assert not turns.possible(shard.log, ManualClock())
    active = shard.log._active
    assert active is not None

    class Watched:
        def __getattr__(self, name: str) -> object:
            if name == "raw_fd":
                raise AttributeError(name)
            return getattr(real, name)

    real, active.file = active.file, Watched()  # type: ignore[assignment]
    assert not turns.possible(shard.log, SystemClock())


def test_a_ring_that_claims_more_than_it_holds_is_not_read(shard: Shard) -> None:
    from topicd._native import core

    core.store(shard.producers[0].memory, ring._HEAD, CAPACITY + 1)
    assert shard.step() is Why.WRITE_FAILED
    assert shard.committer.failures == 1


@pytest.mark.parametrize("short", ["page", "state", "bells", "board", "ring"])
def test_regions_that_do_not_fit_are_refused(shard: Shard, short: str) -> None:
    assert _native.commit is not None
    assert shard.turns is not None
    shard.turns.run(time.monotonic())
    given = {
        "page": shard.turns._page,
        "state": shard.state.memory,
        "bells": shard.bells.memory,
        "board": shard.board.memory,
        "ring": shard.producers[0].memory,
    }
    given[short] = bytearray(given[short][:56])  # type: ignore[index]
    with pytest.raises(ValueError, match="do not fit together"):
        _native.commit(given["page"], given["state"], given["bells"], given["board"], (given["ring"],) * RINGS)  # type: ignore[arg-type]


def test_who_fills_the_file_sees_how_far_it_is_written_while_turns_go_on(
    pair: tuple[Shard, Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, _ = pair
    seen: list[int] = []
    commit = _native.commit
    assert commit is not None

    def looked_at(*given: object) -> int:
        why = commit(*given)  # type: ignore[arg-type]
        seen.append(shard.log._reached())  # its turns are not counted yet
        return why

    monkeypatch.setattr(_native, "commit", looked_at)
    shard.place(0)
    before = shard.log.lsn
    shard.step()
    assert seen[0] == shard.log.lsn > before
    assert shard.log._reached() == shard.log.lsn
