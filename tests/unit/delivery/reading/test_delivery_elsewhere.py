"""Frames that are packed or cold: a loop is never held up, whoever asked is called, and memory is bounded."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.fakedisk import FakeDisk, FakeFile
from tests.unit.delivery.kit import make_place
from tests.unit.storage.segment.test_segment_relocate import bring, info_of, make
from topicd.errors import StorageCorrupt, Throttled
from topicd.shards.delivery.reading import elsewhere
from topicd.shards.delivery.reading.elsewhere import FramesElsewhere, NotNow, StillComing
from topicd.shards.storage.segment.info import Lies
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.reader import SegmentReader


class Gate(FakeDisk):
    """A disk whose files below a path open only while the gate is open."""

    def __init__(self, inner: FakeDisk, below: str) -> None:
        self.__dict__ = inner.__dict__
        self.below = below
        self.opened = threading.Event()
        self.opened.set()
        self.opens = 0

    def open(self, path: Path | str, **how: Any) -> FakeFile:
        if str(path).startswith(self.below):
            self.opens += 1
            assert self.opened.wait(20), "nobody opened the gate"
        return super().open(path, **how)


def _outcome(read: Callable[[], Any]) -> Any:
    """Read at once when it is there: later it may be forgotten."""
    try:
        return read()
    except Exception as error:
        return error


class Scene:
    def __init__(self, lies: Lies = Lies.COLD_PACKED, **settings: Any) -> None:
        disk, self.topic, self.cold = make()
        bring(disk, self.topic, lies, self.cold, 1)
        bring(disk, self.topic, lies, self.cold, 13)
        self.disk = Gate(disk, "/cold" if lies.cold else str(self.topic.dir))
        self.infos = {first: info_of(disk, self.topic, first) for first in (1, 13)}
        self.loop = asyncio.get_running_loop()
        place = make_place(**settings)
        place.fs = self.disk
        self.frames = FramesElsewhere(place, self.loop)

    def reader(self, first: int = 1) -> SegmentReader:
        return SegmentReader(self.disk, self.topic.dir, self.infos[first], elsewhere=self.frames.open).open()

    async def until_there(self, read: Callable[[], Any], first: int = 1) -> Any:
        for _ in range(20):
            try:
                return read()
            except StillComing as coming:
                there = self.loop.create_future()
                coming.then(lambda there=there: there.set_result(_outcome(read)))
                found = await asyncio.wait_for(there, 10)
                if not isinstance(found, Exception):
                    return found
                if not isinstance(found, StillComing):
                    raise found from None
        raise AssertionError("it never came")


def run(scene: Callable[[], Any]) -> None:
    asyncio.run(scene())


@pytest.mark.parametrize("lies", [Lies.PACKED, Lies.COLD, Lies.COLD_PACKED], ids=lambda lies: lies.name)
def test_a_read_is_told_to_wait_and_then_has_the_bytes(lies: Lies) -> None:
    async def scene() -> None:
        it = Scene(lies)
        plain = bytes(resolve(it.topic.dir, 1).load(it.disk, "data").view)
        reader = it.reader()
        opens = it.disk.opens
        with pytest.raises(StillComing):
            reader.read(1, 12)
        assert bytes(await it.until_there(lambda: reader.read(1, 12))) == plain
        assert bytes(reader.read(5, 5)) == plain[reader.offset(5) : reader.offset(6)]  # from memory now
        assert it.frames.loads == 1 and it.frames.callers == 0 and it.disk.opens > opens

    run(scene)


@pytest.mark.fault("TIR-05")
def test_a_silent_disk_is_told_of_and_another_segment_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "_STALLED_S", 0.05)
    monkeypatch.setattr(elsewhere, "PATIENCE_S", 0.1)

    async def scene() -> None:
        it = Scene()
        reader, other = it.reader(1), it.reader(13)
        it.disk.opened.clear()
        gave_up = it.loop.create_future()
        with pytest.raises(StillComing) as waiting:
            reader.read(1, 1)
        waiting.value.then(lambda: None, gave_up.set_result)
        assert "did not come" in str(await asyncio.wait_for(gave_up, 10))
        with pytest.raises(NotNow, match="has not answered"):
            other.read(13, 13)
        assert it.frames.stalled_s > 0 and it.frames.callers == 0
        it.disk.opened.set()
        while it.frames.stalled_s:
            await asyncio.sleep(0.01)
        assert await it.until_there(lambda: other.read(13, 13))

    run(scene)


@pytest.mark.fault("TIR-04")
def test_a_missing_disk_is_no_damage_and_a_missing_file_is() -> None:
    async def scene() -> None:
        it = Scene(Lies.COLD)
        it.disk.unlink(resolve(it.topic.dir, 1).cold_file(it.cold, "data"))
        with pytest.raises(StorageCorrupt, match=r"^/cold/topics/.*: records 1\.\.\d+: .*No such file"):
            await it.until_there(lambda: it.reader(1).read(1, 1))
        assert it.frames.problem == ""
        it.disk.unlink(it.cold.mark)
        it.disk.unlink(resolve(it.topic.dir, 13).cold_file(it.cold, "data"))
        with pytest.raises(NotNow, match="mounted"):
            await it.until_there(lambda: it.reader(13).read(13, 13))
        assert "mounted" in it.frames.problem and it.frames.failures == 2

    run(scene)


def test_memory_is_bounded_and_what_moved_is_forgotten() -> None:
    async def scene() -> None:
        it = Scene(Lies.COLD)
        it.frames._max_bytes = 1
        one, two = it.reader(1), it.reader(13)
        for _ in range(3):
            assert await it.until_there(lambda: one.read(1, 12))
            assert await it.until_there(lambda: two.read(13, 13))
        assert it.frames.held_bytes <= 1 and it.frames.loads == 6
        it.frames._max_bytes = 1 << 20
        await it.until_there(lambda: one.read(1, 12))
        assert it.frames.held_bytes
        it.frames.drop(it.topic.dir)
        assert it.frames.held_bytes == 0
        with pytest.raises(StillComing):
            one.read(1, 1)

    run(scene)


class Opened:
    """A packed file, as far as its memory goes."""

    def __init__(self, words: object | None) -> None:
        self.layout = SimpleNamespace(held_bytes=240, dictionary=words)


def test_dictionaries_count_once_and_take_half_of_the_memory_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "PackedFile", Opened)
    monkeypatch.setattr(elsewhere, "dictionary_bytes", lambda words: 100_000)
    layouts, shared = elsewhere._Layouts(), object()
    files: list[Any] = [Opened(shared), Opened(shared), Opened(object()), Opened(None)]
    for file in files:
        layouts.add(file)
    assert layouts.bytes == 4 * 240 + 200_000
    for file in files[1:]:
        layouts.remove(file)
    assert layouts.bytes == 240 + 100_000
    layouts.remove(files[0])
    assert layouts.bytes == 0 and not layouts._users


def test_files_whose_layouts_take_too_much_are_closed() -> None:
    async def scene() -> None:
        it = Scene()
        first, second = it.reader(1), it.reader(13)
        await it.until_there(lambda: first.read(1, 1))
        layout = it.frames._layouts.bytes
        assert 0 < layout < it.frames.held_bytes
        it.frames._max_bytes = 3 * layout  # one and a half of them
        await it.until_there(lambda: second.read(13, 13))
        assert [key[1] for key in it.frames._held] == [13]
        assert it.frames._layouts.bytes == layout
        assert await it.until_there(lambda: first.read(1, 1))

    run(scene)


def test_too_many_that_wait_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "_CALLERS", 3)

    async def scene() -> None:
        it = Scene()
        it.disk.opened.clear()
        reader, called = it.reader(1), []
        for number in range(3):
            with pytest.raises(StillComing) as waiting:
                reader.read(1, 1)
            waiting.value.then(lambda number=number: called.append(number))
        with pytest.raises(Throttled) as refused:
            reader.read(1, 1)
        assert refused.value.detail["limit"] == "cold reads" and it.frames.loads == 1
        it.disk.opened.set()
        while len(called) < 3:
            await asyncio.sleep(0.01)
        assert called == [0, 1, 2]

    run(scene)


def test_what_was_read_of_a_segment_stays_until_too_many_are_open() -> None:
    async def go() -> None:
        it = Scene()
        assert it.frames.max_files >= 128  # one record of each of many segments: that is what stays in memory
        readers = {first: it.reader(first) for first in (1, 13)}

        async def read_all() -> int:
            for first, reader in readers.items():
                await it.until_there(lambda first=first, reader=reader: reader.read(first, first))
            return it.frames.loads

        loads = await read_all()
        assert await read_all() == loads
        it.frames.max_files = 1
        it.frames.drop(it.topic.dir, 1)
        assert await read_all() == loads + 2 and len(it.frames._held) == 1

    asyncio.run(go())
