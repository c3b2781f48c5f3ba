"""Frames that are packed or lie in the cold directory, for a loop that never waits for a disk. Promise: a read that
needs bytes which are not in memory is told so at once, threads of their own fetch them, and whoever asked is called
when they are there or cannot be had; a disk that does not answer costs its own readers their patience and nobody else
anything.

What was read last is kept, by blocks: those of a packed file, 64 KiB of a plain one. Who reads on finds the next ones
fetched ahead.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from pathlib import Path
from queue import Full
from typing import Any, NamedTuple

from topicd._native.interface import Buffer
from topicd.clock import SystemClock
from topicd.disk.cold import ColdMissing, recorded, told
from topicd.disk.fs import File, Fs
from topicd.errors import ColdUnavailable, FormatError, Throttled
from topicd.limits import KIB, MIB
from topicd.paths import DataDir
from topicd.shards.delivery.place import Place
from topicd.shards.process.threads import PatientThreads
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.names import DATA
from topicd.shards.storage.segment.packed import PackedFile, dictionary_bytes
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.reader_cache import share_of_descriptors

_BLOCK = 64 * KIB
_AHEAD = 2 * MIB
_FILES = 512  # open at a time
_PART = 8  # of the descriptors, for these files
_LAYOUTS = 2  # that part of the memory is for what must be known of open files at most
_WAITING = 64  # loads that wait for a thread
_CALLERS = 4_096  # requests that wait for loads
PATIENCE_S = 10.0  # of one request
_OF_ONE_FILE = {errno.ENOENT, errno.EBADMSG}
_STALLED_S = 3.0  # a load takes longer: the disk does not answer, and nobody begins to wait for it
_FAILED_S = 1.0  # a failure is the answer for so long
_RETRY_MS = 50

Key = tuple[str, int]  # topic's directory, first seq of the segment


class StillComing(Throttled):
    """The bytes are being fetched."""

    def __init__(self, load: _Load) -> None:
        super().__init__("these records are being fetched from a slower place", limit="cold", retry_after_ms=_RETRY_MS)
        self._load = load

    def then(self, call: Callable[[], None], give_up: Callable[[ColdUnavailable], None] | None = None) -> None:
        """Call when they are there, or it is known that they cannot be had; after a while give_up, or call again."""
        self._load.await_end(call, give_up)


class NotNow(ColdUnavailable):
    """The bytes cannot be had at present."""

    def __init__(self, message: str, later: Callable[[Callable[[], None]], None]) -> None:
        super().__init__(message)
        self._later = later

    def then(self, call: Callable[[], None]) -> None:
        """Call when it is worth another try."""
        self._later(call)


class _Loaded(NamedTuple):
    file: File
    first: int  # number of the first block
    blocks: list[bytes | OSError]  # an error: that one cannot be read


class _Held:
    """What is known of one segment."""

    def __init__(self, key: Key, topic_dir: Path, info: SegmentInfo) -> None:
        self.key = key
        self.topic_dir = topic_dir
        self.cold = info.lies.cold
        self.size = info.data_bytes
        self.file: File | None = None  # opened by the first load
        self.loads: list[_Load] = []
        self.failure: OSError | None = None
        self.failed_at = 0.0
        self.read_up_to = 0

    def blocks(self, start: int, end: int) -> range | None:
        """None: not known before it is open."""
        if self.file is None:
            return None
        return _blocks_of(self.file, start, min(end, self.size))


def _blocks_of(file: File, start: int, end: int) -> range:
    if isinstance(file, PackedFile):
        return file.layout.within(start, end)
    return range(start // _BLOCK, -(-end // _BLOCK)) if start < end else range(0)


class _Layouts:
    """What open files take in memory: where their blocks lie, and their dictionaries, which several share."""

    def __init__(self) -> None:
        self._users: dict[int, int] = {}  # files by dictionary
        self.bytes = 0

    def add(self, file: File) -> None:
        self._count(file, 1)

    def remove(self, file: File) -> None:
        self._count(file, -1)

    def _count(self, file: File, sign: int) -> None:
        if not isinstance(file, PackedFile):
            return
        self.bytes += sign * file.layout.held_bytes
        words = file.layout.dictionary
        if words is None:
            return
        before = self._users.get(id(words), 0)
        if before + sign:
            self._users[id(words)] = before + sign
        else:
            del self._users[id(words)]
        if not before or not before + sign:
            self.bytes += sign * dictionary_bytes(words)


class _Load:
    """A stretch of a segment on its way into memory."""

    def __init__(self, owner: FramesElsewhere, held: _Held, start: int, end: int) -> None:
        self._owner = owner
        self.held = held
        self.start = start
        self.end = end
        self.began: float | None = None  # when a thread took it
        self._waiting: dict[int, tuple[Callable[[], None], asyncio.TimerHandle | None]] = {}

    def await_end(self, call: Callable[[], None], give_up: Callable[[ColdUnavailable], None] | None) -> None:
        number = self._owner.next_number()
        timer = None
        if give_up is not None:
            timer = self._owner.loop.call_later(PATIENCE_S, self._lose_patience, number, give_up)
        self._waiting[number] = (call, timer)

    def _lose_patience(self, number: int, give_up: Callable[[ColdUnavailable], None]) -> None:
        if self._waiting.pop(number, None) is not None:
            self._owner.callers -= 1
            give_up(ColdUnavailable(f"the records did not come within {PATIENCE_S:.0f} s"))

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for call, timer in waiting.values():
            if timer is not None:
                timer.cancel()
            self._owner.callers -= 1
            call()


class FramesElsewhere:
    """For the shard's thread."""

    def __init__(self, place: Place, loop: asyncio.AbstractEventLoop) -> None:
        self._fs = place.fs
        self.loop = loop
        self._max_bytes = place.settings.cold_cache_bytes
        self.max_files = share_of_descriptors(_FILES, _PART)
        self._clock = SystemClock()
        # A cold disk that does not answer must not keep packed files here from being read.
        self._threads: dict[bool, Executor] = {
            True: PatientThreads(2, "cold-reads", _WAITING),
            False: PatientThreads(2, "packed-reads", _WAITING),
        }
        self._under_way: list[_Load] = []
        self._held: OrderedDict[Key, _Held] = OrderedDict()
        self._blocks: OrderedDict[tuple[Key, int], bytes | OSError] = OrderedDict()
        self._bad: list[tuple[Key, int]] = []  # of these, those that could not be read
        self._layouts = _Layouts()
        self._block_bytes = 0
        self.callers = 0
        self._numbers = 0
        self.loads = 0
        self.failures = 0
        self.problem = ""  # why the cold disk could not be read, until it is seen to answer

    def open(self, topic_dir: Path, info: SegmentInfo) -> File:
        """Nothing is opened before somebody reads."""
        return _Frames(self, topic_dir, info)

    def drop(self, topic_dir: Path, first_seq: int | None = None) -> None:
        """Forget one segment, or all of a topic: they lie somewhere else now."""
        directory = str(topic_dir)
        for key in [key for key in self._held if key[0] == directory and first_seq in (None, key[1])]:
            self._forget(key)

    def found_again(self) -> None:
        """Somebody has looked: the cold disk is there and answers."""
        self.problem = ""

    @property
    def held_bytes(self) -> int:
        return self._block_bytes + self._layouts.bytes

    @property
    def stalled_s(self) -> float:
        """For so long the cold disk has not answered."""
        now = self._clock.monotonic()
        began = [load.began for load in self._under_way if load.held.cold and load.began is not None]
        waited = now - min(began) if began else 0.0
        return waited if waited >= _STALLED_S else 0.0

    def next_number(self) -> int:
        self._numbers += 1
        self.callers += 1
        return self._numbers

    # ---- reading ----

    def read(self, topic_dir: Path, info: SegmentInfo, start: int, end: int) -> bytes:
        """StillComing or NotNow, or OSError, if it is not all in memory."""
        held = self._of(topic_dir, info)
        wanted = held.blocks(start, end)
        if wanted is None or any((held.key, number) not in self._blocks for number in wanted):
            raise self._absent(held, start, end)
        parts: list[Buffer] = []
        for number in wanted:
            self._blocks.move_to_end((held.key, number))
            block = self._blocks[held.key, number]
            if isinstance(block, OSError):
                raise OSError(block.errno, block.strerror)
            at = _start_of(held.file, number)
            low, high = max(start - at, 0), min(end - at, len(block))
            parts.append(block if high - low == len(block) else memoryview(block)[low:high])
        if start == held.read_up_to and end < held.size:
            self._fetch_ahead(held, end)
        held.read_up_to = end
        return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)

    def _of(self, topic_dir: Path, info: SegmentInfo) -> _Held:
        key = (str(topic_dir), info.first_seq)
        held = self._held.get(key)
        if held is None:
            held = self._held[key] = _Held(key, topic_dir, info)
            while len(self._held) > self.max_files:
                self._forget(next(iter(self._held)))
        self._held.move_to_end(key)
        return held

    def _absent(self, held: _Held, start: int, end: int) -> Exception:
        if held.failure is not None and self._clock.monotonic() < held.failed_at + _FAILED_S:
            if isinstance(held.failure, ColdMissing):
                return self._not_now(told(held.failure))
            return OSError(held.failure.errno, held.failure.strerror)
        if self.callers >= _CALLERS:
            return Throttled(f"{self.callers} reads wait for slow places", limit="cold reads", retry_after_ms=_RETRY_MS)
        if held.cold and (stalled := self.stalled_s):
            return self._not_now(f"the cold directory has not answered for {stalled:.0f} s")
        for load in held.loads:
            if load.start <= start and end <= load.end:
                return StillComing(load)
        begun = self._begin(held, start, end)
        if begun is None:
            return Throttled("too many reads wait for slow places", limit="cold reads", retry_after_ms=_RETRY_MS)
        return StillComing(begun)

    def _not_now(self, message: str) -> NotNow:
        return NotNow(message, self._later)

    def _later(self, call: Callable[[], None]) -> None:
        self.loop.call_later(_FAILED_S, call)

    # ---- loading ----

    def _fetch_ahead(self, held: _Held, start: int) -> None:
        end = min(start + _AHEAD, held.size)
        wanted = held.blocks(start, end)
        if held.loads or wanted is None:
            return
        missing = [number for number in wanted if (held.key, number) not in self._blocks]
        if 2 * len(missing) > len(wanted):
            self._begin(held, _start_of(held.file, missing[0]), end)

    def _begin(self, held: _Held, start: int, end: int) -> _Load | None:
        load = _Load(self, held, start, end)
        try:
            future = self._threads[held.cold].submit(self._load, load, held.file)
        except Full:
            return None
        self.loads += 1
        held.loads.append(load)
        self._under_way.append(load)
        future.add_done_callback(lambda done: self._tell(load, done))
        return load

    def _tell(self, load: _Load, done: Any) -> None:
        """In the thread that loaded."""
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(self._loaded, load, done)

    def _load(self, load: _Load, file: File | None) -> _Loaded:
        load.began = self._clock.monotonic()
        held = load.held
        try:
            if file is None:
                file = resolve(held.topic_dir, held.key[1]).open(self._fs, DATA)
            wanted = _blocks_of(file, load.start, min(load.end, held.size))
            return _Loaded(file, wanted.start, _read_blocks(file, wanted, held.size))
        except FormatError as error:
            raise OSError(errno.EBADMSG, error.message) from error
        except OSError:
            if held.cold:
                _check_cold(self._fs, held.topic_dir)
            raise

    def _loaded(self, load: _Load, done: Any) -> None:
        """In the shard's thread."""
        held = load.held
        self._under_way.remove(load)
        held.loads.remove(load)
        error = done.exception()
        if error is None:
            found: _Loaded = done.result()
            held.failure = None
            if held.cold:
                self.problem = ""
            if self._held.get(held.key) is held:
                if held.file is None:
                    self._layouts.add(found.file)
                    held.file = found.file
                self._keep(held, found)
        else:
            self.failures += 1
            held.failure = error if isinstance(error, OSError) else OSError(errno.EIO, str(error) or repr(error))
            held.failed_at = self._clock.monotonic()
            if held.cold:
                # One file that is lost or damaged is damage; the disk has answered.
                self.problem = "" if held.failure.errno in _OF_ONE_FILE else told(held.failure)
        load.wake()
        self._shrink()

    def _keep(self, held: _Held, found: _Loaded) -> None:
        for number, block in enumerate(found.blocks, found.first):
            before = self._blocks.pop((held.key, number), b"")
            self._block_bytes += _size(block) - _size(before)
            self._blocks[held.key, number] = block
            if isinstance(block, OSError):
                self._bad.append((held.key, number))

    def _shrink(self) -> None:
        """After those who waited have read: what was loaded for one is there when he comes, whatever the bound."""
        while len(self._held) > 1 and self._layouts.bytes > self._max_bytes // _LAYOUTS:
            self._forget(next(iter(self._held)))
        while self._blocks and self.held_bytes > self._max_bytes:
            _, block = self._blocks.popitem(last=False)
            self._block_bytes -= _size(block)
        for key in self._bad:
            # Asked for again, it is tried again.
            self._blocks.pop(key, None)
        self._bad.clear()

    def _forget(self, key: Key) -> None:
        """Its file is closed with its last user: a thread may be reading it."""
        held = self._held.pop(key)
        if held.file is not None:
            self._layouts.remove(held.file)
        numbers = [number for owner, number in self._blocks if owner == key]
        for number in numbers:
            self._block_bytes -= _size(self._blocks.pop((key, number)))


def _check_cold(fs: Fs, topic_dir: Path) -> None:
    """Something cannot be read: is it the whole disk? ColdMissing if so."""
    cold = recorded(fs, DataDir(topic_dir.parent.parent))
    try:
        if cold is not None:
            cold.check(fs)
    except ColdMissing:
        raise
    except OSError as error:
        raise ColdMissing(str(error.filename), str(error.strerror)) from error


def _size(block: bytes | OSError) -> int:
    return len(block) if isinstance(block, bytes) else 0


def _start_of(file: File | None, number: int) -> int:
    return file.layout.block(number).start if isinstance(file, PackedFile) else number * _BLOCK


def _read_blocks(file: File, wanted: range, size: int) -> list[bytes | OSError]:
    try:
        return list(_read_at_once(file, wanted, size))
    except OSError:
        if len(wanted) <= 1:
            raise
    found: list[bytes | OSError] = []
    for number in wanted:
        try:
            found += _read_at_once(file, range(number, number + 1), size)
        except OSError as error:
            found.append(error)
    if all(isinstance(one, OSError) for one in found) and isinstance(found[0], OSError):
        raise found[0]
    return found


def _read_at_once(file: File, wanted: range, size: int) -> Sequence[bytes]:
    if isinstance(file, PackedFile):
        return file.blocks(wanted)
    if not wanted:
        return []
    start, end = wanted.start * _BLOCK, min(wanted.stop * _BLOCK, size)
    raw = file.pread(end - start, start)
    return [raw[at : at + _BLOCK] for at in range(0, len(wanted) * _BLOCK, _BLOCK)]


class _Frames:
    """A segment's frames as a file that never waits."""

    def __init__(self, owner: FramesElsewhere, topic_dir: Path, info: SegmentInfo) -> None:
        self._owner = owner
        self._dir = topic_dir
        self._info = info

    def pread(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self._info.data_bytes)
        return self._owner.read(self._dir, self._info, offset, end) if offset < end else b""

    def read_into(self, target: memoryview, offset: int) -> int:
        found = self.pread(len(target), offset)
        target[: len(found)] = found
        return len(found)

    def size(self) -> int:
        return self._info.data_bytes

    def close(self) -> None:
        """There is nothing to close."""

    def forget(self, size: int) -> None:
        """What was read last is forgotten first anyway."""

    def fileno(self) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def pwrite(self, parts: Sequence[Buffer], offset: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def truncate(self, size: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def sync_data(self) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def sync(self) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    def begin_sync(self, offset: int, length: int) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
