"""The file channel's functions: the C core against its twin, on good bytes, broken bytes and wrong arguments."""

from __future__ import annotations

import mmap
import os
import random
import resource
import threading
import zlib
from pathlib import Path
from typing import Any

import pytest
from native_cases import native

from topicd._native import pure, pure_channel
from topicd._native.channel_interface import (
    CLEARED_AT,
    CUT_AT,
    END_AT,
    FOREVER_NS,
    FROM_AT,
    FULL_AT,
    MOST_AT,
    SHIFT_AT,
    STATE_BYTES,
    TO_AT,
    ChannelCore,
)

MOST = 1 << 20
pytestmark = pytest.mark.skipif(native is None, reason="the native core is not built")
CORES: list[Any] = [native, pure_channel]


@pytest.fixture(params=CORES, ids=["native", "pure"])
def core(request: pytest.FixtureRequest) -> ChannelCore:
    found: ChannelCore = request.param
    return found


def outcome(function: Any, *args: object) -> object:
    try:
        return function(*args)
    except (ValueError, TypeError) as error:
        return type(error), error.args if isinstance(error, ValueError) else None


def both(name: str, *args: object) -> object:
    first, second = (outcome(getattr(core, name), *args) for core in CORES)
    assert first == second, name
    return first


def test_checksums_equal_zlibs() -> None:
    rng = random.Random(1)
    for size in [*range(300), 1000, 4095, 4096, 4097, 70_001]:
        data = rng.randbytes(size)
        for at in (0, 1, 7):
            for start in (0, 1, 0xFFFFFFFF, rng.randrange(2**32)):
                assert both("crc32", memoryview(data)[at:], start) == zlib.crc32(data[at:], start)


def blob(rng: random.Random) -> bytes:
    parts = []
    for _ in range(rng.randrange(6)):
        payload = rng.randbytes(rng.choice((0, 1, 5, 70, 300)))
        parts += [pure_channel.message_head(payload, MOST), payload]
    return b"".join(parts)


def broken(rng: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.randrange(3)):
        kind = rng.randrange(4)
        at = rng.randrange(len(raw) + 1)
        if kind == 0 and raw:
            raw[at % len(raw)] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del raw[at:]
        elif kind == 2:
            raw[at:at] = rng.randbytes(rng.randrange(9))
        else:
            raw[at:at] = bytes(rng.randrange(600))
    return bytes(raw)


def test_good_and_broken_bytes_are_split_alike() -> None:
    rng = random.Random(2)
    for _ in range(3000):
        data = broken(rng, blob(rng))
        start = rng.choice((0, 0, rng.randrange(len(data) + 1)))
        end = rng.choice((len(data), rng.randrange(start, len(data) + 1)))
        most = rng.choice((MOST, 100))
        both("split_messages", data, start, end, rng.randrange(10), most, rng.choice((0, 1, 2, 2**64 - 1)))
        both("scan_messages", data, start, end, most)
        both("find_message", data, start, end, most)


def test_what_was_encoded_is_split_again() -> None:
    rng = random.Random(3)
    for _ in range(300):
        payloads = [rng.randbytes(rng.choice((0, 3, 100, 700))) for _ in range(rng.randrange(8))]
        room, at = rng.choice((0, 50, 500, 5000)), rng.choice((0, 0, 13))
        first = rng.choice((0, len(payloads) // 2))
        areas = [bytearray(room), bytearray(room)]
        found = [
            outcome(core.encode_messages, payloads, first, area, at, MOST)
            for core, area in zip(CORES, areas, strict=True)
        ]
        assert found[0] == found[1] and areas[0] == areas[1]
        if isinstance(found[0], tuple) and isinstance(found[0][0], int):
            number, end = found[0]
            split = both("split_messages", areas[0], at, end, 0, MOST, 2**64 - 1)
            assert isinstance(split, tuple) and split[0] == payloads[first:number]
        both("measure_messages", payloads, MOST)
        for payload in payloads:
            both("message_head", payload, MOST)


def test_wrong_arguments_are_refused_alike() -> None:
    big = bytes(11)
    cases: list[tuple[str, tuple[object, ...]]] = [
        ("message_head", (big, 10)),
        ("message_head", ("text", 10)),
        ("measure_messages", ([big], 10)),
        ("measure_messages", ([b"", 5], 10)),
        ("encode_messages", ([big], 0, bytearray(50), 0, 10)),
        ("encode_messages", ([big], 0, bytearray(50), 51, 20)),
        ("encode_messages", ([big], 0, bytes(50), 0, 20)),
        ("encode_messages", ([big], 7, bytearray(50), 0, 20)),
        ("split_messages", (big, 5, 4, 0, 9, 9)),
        ("split_messages", (big, 0, 12, 0, 9, 9)),
        ("split_messages", (big, -1, 4, 0, 9, 9)),
        ("scan_messages", (big, 0, 12, 9)),
        ("find_message", (big, 12, 12, 9)),
        ("publish", (bytearray(16), 4, 1, 8)),
        ("publish", (bytearray(16), 16, 1, 8)),
        ("publish", (bytearray(16), 0, 1, 2)),
        ("publish", (bytearray(16), 0, -1, 8)),
        ("signal_count", (bytearray(3), 0)),
        ("raise_signal", (bytearray(8), 6)),
        ("await_signal", (bytearray(16), 8, 0, 3, 0, 0)),
    ]
    for name, args in cases:
        both(name, *args)


def state(end: int, shift: int, cut: int, full: int) -> bytearray:
    words = bytearray(STATE_BYTES)
    for at, value in ((END_AT, end), (SHIFT_AT, shift), (CUT_AT, cut), (FULL_AT, full), (MOST_AT, 100)):
        pure.store(words, at, value)
    return words


def test_a_send_writes_moves_the_end_and_publishes(core: ChannelCore, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        words, memory = state(1000, 936, 1020, 1036), bytearray(64)
        assert core.send_message(fd, words, b"twelve bytes", memory, 0, 8, None) == 1020
        assert pure.load(words, END_AT) == pure.load(memory, 0) == 1020
        assert os.pread(fd, 99, 64) == pure_channel.message_head(b"twelve bytes", 99) + b"twelve bytes"
        # Behind the cut, too large, behind the room: nothing happens.
        assert core.send_message(fd, words, b"", memory, 0, 8, None) == 0
        pure.store(words, CUT_AT, 2000)
        assert core.send_message(fd, words, b"ninebytes", memory, 0, 8, None) == 0
        pure.store(words, FULL_AT, 9000)
        assert core.send_message(fd, words, bytes(101), memory, 0, 8, None) == 0
        assert (os.fstat(fd).st_size, pure.load(words, END_AT), pure.load(memory, 0)) == (84, 1020, 1020)
        # Without a memory nothing is published.
        assert core.send_message(fd, words, b"", None, 0, 8, None) == 1028
        assert pure.load(memory, 0) == 1020
        with pytest.raises(OSError):
            core.send_message(-1, words, b"", memory, 0, 8, None)
        assert pure.load(words, END_AT) == 1028
    finally:
        os.close(fd)


def test_what_lies_in_the_window_is_stored_there_and_the_file_has_it(core: ChannelCore, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, 2 * mmap.PAGESIZE)
    window = mmap.mmap(fd, mmap.PAGESIZE, offset=mmap.PAGESIZE)
    try:
        words, memory = state(0, 0, 3 * mmap.PAGESIZE, 3 * mmap.PAGESIZE), bytearray(64)
        pure.store(words, FROM_AT, mmap.PAGESIZE)
        pure.store(words, TO_AT, 2 * mmap.PAGESIZE)
        # Before the window, across its beginning, inside, up to its last byte, behind it.
        sent, at = [], 0
        for end in (mmap.PAGESIZE - 50, mmap.PAGESIZE + 20, 2 * mmap.PAGESIZE - 30, 2 * mmap.PAGESIZE):
            while at < end:
                payload = bytes([len(sent) + 1]) * min(92, end - at - 8)
                at = core.send_message(fd, words, payload, memory, 0, 8, window)
                sent.append(payload)
        assert at == 2 * mmap.PAGESIZE == pure.load(memory, 0)
        at = core.send_message(fd, words, b"behind", memory, 0, 8, window)
        data = os.pread(fd, 3 * mmap.PAGESIZE, 0)
        assert len(data) == at and window[:] == data[mmap.PAGESIZE : 2 * mmap.PAGESIZE]
        assert core.split_messages(data, 0, len(data), 0, MOST, FOREVER_NS)[0] == [*sent, b"behind"]
    finally:
        window.close()
        os.close(fd)


def test_a_window_that_is_smaller_than_the_state_says_is_not_stored_to(core: ChannelCore, tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        words, window = state(0, 0, 1000, 1000), bytearray(100)
        pure.store(words, TO_AT, 101)
        assert core.send_message(fd, words, b"x", None, 0, 8, window) == 9
        assert window == bytearray(100) and os.fstat(fd).st_size == 9
    finally:
        os.close(fd)


@pytest.mark.skipif(native is None, reason="the native core is not built")
def test_pages_are_made_by_zeros_behind_the_end_and_never_below_it(tmp_path: Path) -> None:
    part, size = 1 << 16, 1 << 18
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(fd, b"." * size)
    window, kept = mmap.mmap(fd, size), native
    assert kept is not None
    try:
        words, sent = state(5000, 0, size, size), bytearray()

        def send(payload: bytes) -> None:
            kept.send_message(fd, words, payload, None, 0, 8, window)
            sent.extend(kept.message_head(payload, MOST) + payload)

        pure.store(words, MOST_AT, MOST)
        pure.store(words, CLEARED_AT, 4096)
        pure.store(words, TO_AT, size - 4096)
        for payload, cleared in (
            (b"a" * 92, part),  # up to the end of its part
            (b"b" * 20_000, part),  # written, and not cleared again
            (b"c" * (part - 20_000), 2 * part),  # across the end
            (b"d" * (part + 1), 0),  # makes its own pages
            (b"e" * 30_000, 3 * part),
            (b"f" * 40_000, size - 4096),  # up to the end of the window
        ):
            send(payload)
            end = 5000 + len(sent)
            assert pure.load(words, CLEARED_AT) == (cleared or end)
            data = os.pread(fd, size, 0)
            assert data[:5000] == b"." * 5000 and data[5000:end] == sent
            assert data[end:] == bytes((cleared or end) - end).ljust(size - end, b".")
    finally:
        window.close()
        os.close(fd)


@pytest.mark.skipif(native is None, reason="the native core is not built")
def test_a_message_is_written_where_there_is_no_room_for_the_zeros_behind_it(tmp_path: Path) -> None:
    part, payload = 1 << 16, b"m" * 20_000
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.truncate(fd, part)
    window, kept, limits = mmap.mmap(fd, part), native, resource.getrlimit(resource.RLIMIT_FSIZE)
    assert kept is not None
    try:
        words = state(0, 0, part, part)
        pure.store(words, MOST_AT, MOST)
        pure.store(words, TO_AT, part)
        resource.setrlimit(resource.RLIMIT_FSIZE, (32_768, limits[1]))  # in the place of a full disk
        assert kept.send_message(fd, words, payload, None, 0, 8, window) == 20_008
        assert pure.load(words, CLEARED_AT) == 20_008
        with pytest.raises(OSError, match="too large"):
            kept.send_message(fd, words, payload, None, 0, 8, window)
        assert pure.load(words, END_AT) == 20_008
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        window.close()
        os.close(fd)
    assert (tmp_path / "file").read_bytes()[:20_008] == kept.message_head(payload, MOST) + payload


@pytest.mark.skipif(native is None, reason="the native core is not built")
def test_room_is_reserved_as_zeros_or_not_at_all(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, b"here")
        kept: Any = native
        if kept.reserve(fd, 0, 1 << 16):
            assert os.fstat(fd).st_size == 1 << 16 and os.fstat(fd).st_blocks * 512 >= 1 << 16
            assert os.pread(fd, 1 << 16, 0) == b"here".ljust(1 << 16, b"\0")
        else:
            assert os.fstat(fd).st_size == 4
    finally:
        os.close(fd)


def test_sleepers_are_woken_by_a_publication_and_by_a_signal(core: ChannelCore) -> None:
    memory = bytearray(64)
    for value, wake in ((1, "publish"), (1, "raise"), (2, "publish")):
        known = pure.load(memory, 0)
        seen = core.signal_count(memory, 8)
        found: list[int] = []
        sleeper = threading.Thread(
            target=lambda known=known, seen=seen, found=found: found.append(  # type: ignore[misc]
                core.await_signal(memory, 8, seen, 0, known, FOREVER_NS)
            )
        )
        sleeper.start()
        threading.Event().wait(0.02)
        if wake == "publish":
            core.publish(memory, 0, value, 8)
        else:
            core.raise_signal(memory, 8)
        sleeper.join(20)
        assert not sleeper.is_alive()
        assert found == [pure.load(memory, 0)]
        assert wake == "publish" or core.signal_count(memory, 8) == seen + 1


def test_waiting_ends_in_time_and_does_not_begin_when_it_is_too_late(core: ChannelCore) -> None:
    memory = bytearray(64)
    assert core.await_signal(memory, 8, 0, 0, 0, 1_000_000) == 0
    assert core.await_signal(memory, 8, 0, 0, 5, FOREVER_NS) == 0
    core.raise_signal(memory, 8)
    assert core.await_signal(memory, 8, 0, 0, 0, FOREVER_NS) == 0
