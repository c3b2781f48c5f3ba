"""Syncs beside the turns: what they cover, who waits for them, and how their failures are heard."""

from __future__ import annotations

import errno
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from topicd import paths
from topicd.clock import SystemClock
from topicd.disk.fs import RealFile, RealFs
from topicd.frames import FrameType, control_frame
from topicd.ipc import ring, shm, slots
from topicd.ipc.ring import RingConsumer, RingProducer
from topicd.ipc.slots import Slots
from topicd.shards.wal.aside import ENDED, NONE, UNDER_WAY, Aside, Beside, InTurn
from topicd.shards.wal.committer import Committer, Inlet
from topicd.shards.wal.log import WalLog

FRAME = control_frame(FrameType.RESYNC, 0, 0, 0, {"epoch": 1})
CAPACITY = 64 * 1024
DEADLINE_S = 20


class Disk(RealFs):
    """Real files; a sync goes on until the test lets it, and fails if the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()
        self.may_end.set()
        self.begun = threading.Semaphore(0)
        self.sent_beside = threading.Semaphore(0)
        self.error: int | None = None
        self.sent: list[tuple[int, int]] = []
        self.syncing_in: list[str] = []
        self.closed_while_used = False

    def open(self, path: Path | str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> RealFile:
        inner = super().open(path, write=write, create=create, exclusive=exclusive)
        return _Slow(self, inner)  # type: ignore[return-value]


class _Slow:
    def __init__(self, disk: Disk, inner: RealFile) -> None:
        self._disk = disk
        self._inner = inner
        self._in_use = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def sync_data(self) -> None:
        disk, thread = self._disk, threading.current_thread().name
        disk.syncing_in.append(thread)
        self._in_use += 1
        disk.begun.release()
        assert disk.may_end.wait(DEADLINE_S)
        self._in_use -= 1
        # A file that is made ready meanwhile is synced, too, by whoever makes it, and shall not take the failure.
        if disk.error is not None and thread == "wal-sync":
            code, disk.error = disk.error, None
            raise OSError(code, "the test says so")
        self._inner.sync_data()

    def begin_sync(self, offset: int, length: int) -> None:
        if threading.current_thread().name == "wal-sync":  # the filler does it, too
            self._in_use += 1
            self._disk.sent.append((offset, length))
            self._disk.sent_beside.release()
            assert self._disk.may_end.wait(DEADLINE_S)
            self._in_use -= 1

    def close(self) -> None:
        self._disk.closed_while_used = self._disk.closed_while_used or self._in_use > 0
        self._inner.close()


class Scene:
    """A committer with one ring whose disk the test holds back. Every turn finds its sync due."""

    def __init__(self, directory: Path, file_bytes: int = 8 << 20) -> None:
        self.instance = secrets.token_hex(8)
        name = paths.ring_shm(self.instance, 0, 0)
        ring.create(name, CAPACITY, self.instance).close()
        slots.create(paths.wal_state_shm(self.instance, 0), 4096, self.instance).close()
        self.producer = RingProducer.attach(name, self.instance)
        consumer = RingConsumer.attach(name, self.instance)
        self.disk = Disk()
        self.news = threading.Event()
        self.log = WalLog(self.disk, directory, file_bytes, 1, 1, Beside(self.news.set))
        self.log.open(4096, None)
        state = Slots.attach(paths.wal_state_shm(self.instance, 0), self.instance)
        self.committer = Committer(self.log, state, SystemClock(), [Inlet(consumer, None, 0, 0)], 0.0)
        self.committer.open(file_bytes // 2)
        self.disk.syncing_in.clear()
        while self.disk.begun.acquire(blocking=False):
            pass

    def place(self, frames: int = 1, *, sync: bool = False) -> int:
        assert self.producer.try_write([FRAME * frames], len(FRAME) * frames) is not None
        if sync:
            self.producer.want_sync(self.producer.head)
        return self.producer.head

    def hold(self, error: int | None = None) -> None:
        """A sync is under way and goes on."""
        self.disk.may_end.clear()
        self.disk.error = error
        assert self.committer.turn()
        assert self.disk.begun.acquire(timeout=DEADLINE_S)

    def let_go(self) -> None:
        self.disk.may_end.set()
        assert self.news.wait(DEADLINE_S)

    def close(self) -> None:
        self.disk.may_end.set()
        self.log.close()
        for name in shm.names_of(self.instance):
            shm.unlink(name)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "wal")
    yield made
    made.close()
    assert not made.disk.closed_while_used


def later(act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(0.05, act)
    timer.start()
    return timer


def test_groups_are_written_while_a_sync_runs_and_it_covers_none_of_them(scene: Scene) -> None:
    first = scene.place()
    scene.hold()
    second = scene.place()
    assert scene.committer.turn()
    assert (scene.producer.written_pos, scene.producer.synced_pos) == (second, 0)
    assert not scene.committer.pending()
    assert scene.committer.next_deadline() is None
    scene.let_go()
    assert scene.committer.pending()
    assert scene.committer.turn()
    assert scene.producer.synced_pos == first
    assert scene.log.synced_lsn < scene.log.lsn
    scene.committer.finish()
    assert scene.producer.synced_pos == second
    assert scene.log.synced_lsn == scene.log.lsn
    assert scene.disk.syncing_in[0] == "wal-sync"


def test_a_sync_that_is_only_wished_for_is_begun_at_once_beside_the_turns(scene: Scene) -> None:
    scene.committer.disk_sync_s = 60.0
    first = scene.place()
    assert scene.committer.turn()
    assert not scene.committer.pending()
    scene.producer.wish_sync(first)
    assert scene.committer.pending()
    scene.hold()
    second = scene.place()
    scene.producer.wish_sync(second)
    assert scene.committer.turn()
    assert (scene.producer.written_pos, scene.producer.synced_pos) == (second, 0)
    scene.let_go()
    scene.committer.turn()
    assert scene.producer.synced_pos >= first
    deadline = time.monotonic() + DEADLINE_S
    while scene.producer.synced_pos < second and time.monotonic() < deadline:
        scene.committer.turn()
    assert scene.producer.synced_pos == second
    assert set(scene.disk.syncing_in) == {"wal-sync"}


def test_its_failure_makes_void_what_came_after_it_too(scene: Scene) -> None:
    kept = scene.place(sync=True)
    scene.committer.turn()
    scene.place()
    scene.hold(errno.EIO)
    scene.place(2)
    scene.committer.turn()
    scene.let_go()
    assert scene.committer.turn()
    assert scene.committer.failures == 1
    assert scene.producer.failure == (kept, errno.EIO)
    assert scene.producer.failed_epoch == 1
    assert scene.producer.synced_pos == kept


def test_a_sync_that_is_awaited_waits_for_it_and_covers_the_rest(scene: Scene) -> None:
    scene.place()
    scene.hold()
    end = scene.place(sync=True)
    timer = later(scene.disk.may_end.set)
    assert scene.committer.turn()
    timer.join()
    assert scene.producer.synced_pos == end
    assert not scene.log.dirty
    assert len(scene.disk.syncing_in) == 2


def test_a_sync_that_is_awaited_fails_with_it(scene: Scene) -> None:
    """Of a failure the kernel tells only one of two syncs through the same descriptor."""
    scene.place()
    scene.hold(errno.ENOSPC)
    scene.place(sync=True)
    timer = later(scene.disk.may_end.set)
    assert scene.committer.turn()
    timer.join()
    assert scene.producer.failure == (0, errno.ENOSPC)
    assert scene.producer.synced_pos == 0


def test_the_end_of_a_file_waits_for_it_and_hears_its_failure(tmp_path: Path) -> None:
    scene = Scene(tmp_path / "wal", 128 * 1024)
    scene.place()
    scene.hold(errno.EIO)
    first_file = scene.log.first_lsn
    timer = later(scene.disk.may_end.set)
    while not scene.committer.failures:
        scene.place(CAPACITY // 2 // len(FRAME))
        scene.committer.turn()
    timer.join()
    assert scene.producer.failure == (0, errno.EIO)
    assert scene.log.first_lsn != first_file or scene.log.lsn == scene.log.synced_lsn
    scene.close()
    assert not scene.disk.closed_while_used


def test_a_file_is_not_closed_under_a_sync(scene: Scene) -> None:
    scene.place()
    scene.hold()
    timer = later(scene.disk.may_end.set)
    scene.log.close()
    timer.join()
    assert not scene.disk.closed_while_used


def test_a_file_is_not_closed_under_a_hint(scene: Scene) -> None:
    scene.committer.disk_sync_s = 60.0
    scene.disk.may_end.clear()
    while scene.log.lsn - scene.log.first_lsn <= 1 << 20:
        scene.place(CAPACITY // 2 // len(FRAME))
        scene.committer.turn()
    assert scene.disk.sent_beside.acquire(timeout=DEADLINE_S)
    timer = later(scene.disk.may_end.set)
    scene.log.close()
    timer.join()
    assert not scene.disk.closed_while_used


def test_what_is_written_goes_to_the_disk_in_pieces(scene: Scene) -> None:
    scene.committer.disk_sync_s = 60.0
    while scene.log.lsn - scene.log.first_lsn <= 1 << 20:
        scene.place(CAPACITY // 2 // len(FRAME))
        scene.committer.turn()
    assert scene.disk.sent_beside.acquire(timeout=DEADLINE_S)
    assert scene.disk.sent == [(0, scene.log.lsn - scene.log.first_lsn)]
    assert scene.producer.synced_pos == 0


@pytest.mark.parametrize("aside", [InTurn(), Beside(lambda: None)], ids=["in turn", "beside"])
def test_the_word_says_how_it_stands(aside: Aside, tmp_path: Path) -> None:
    memory = bytearray(16)
    aside.show_in(memory, 8)
    aside.open()
    file = RealFs().open(tmp_path / "file", write=True, create=True)
    assert memoryview(memory).cast("Q")[1] == aside.state == NONE
    aside.begin(file)
    assert aside.state in (UNDER_WAY, ENDED)
    aside.take()
    assert memoryview(memory).cast("Q")[1] == aside.state == NONE
    file.close()
    aside.begin(RealFs().open("/dev/zero", write=True))  # cannot be synced
    with pytest.raises(OSError, match="Invalid argument"):
        aside.take()
    assert aside.state == NONE
    aside.close()
