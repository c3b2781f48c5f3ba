"""The file channel's functions in Python: channel_interface.ChannelCore, for where there is no C core."""

from __future__ import annotations

import os
import struct
import time
import zlib
from collections.abc import Sequence

from topicd._native import pure
from topicd._native.channel_interface import (
    CUT_AT,
    END_AT,
    FOREVER_NS,
    FULL_AT,
    MOST_AT,
    SHIFT_AT,
    STATE_BYTES,
    Split,
)
from topicd._native.interface import Buffer
from topicd._native.pure_frame import open_buffer, open_span, refuse, u64

name = "pure"
POLL_S = 0.0005
_HEAD = struct.Struct(">II")
_SEQUENCE_MASK = 2**31 - 1
_CHAIN = 4


def crc32(data: Buffer, start: int, /) -> int:
    return zlib.crc32(data, u64(start, "start") & 0xFFFFFFFF)


def _checksum(length: int, payload: Buffer) -> int:
    return zlib.crc32(payload, zlib.crc32(length.to_bytes(4, "big")))


def message_head(payload: Buffer, most: int, /) -> bytes:
    u64(most, "most")
    view = open_buffer(payload)
    if len(view) > most:
        refuse("record_too_large", f"a message of {len(view)} bytes exceeds {most}")
    return _HEAD.pack(len(view), _checksum(len(view), view))


def measure_messages(messages: Sequence[Buffer], most: int, /) -> int:
    u64(most, "most")
    total = 0
    for message in messages:
        size = len(open_buffer(message))
        if size > most:
            refuse("record_too_large", f"a message of {size} bytes exceeds {most}")
        total += _HEAD.size + size
    return total


def encode_messages(messages: Sequence[Buffer], first: int, into: Buffer, at: int, most: int, /) -> tuple[int, int]:
    u64(first, "first")
    u64(at, "at")
    room = open_buffer(into, writable=True)
    if at > len(room):
        refuse("invalid_request", f"offset {at} is outside a buffer of {len(room)} bytes")
    number = first
    while number < len(messages):
        payload = open_buffer(messages[number])
        head = message_head(payload, most)
        end = at + len(head) + len(payload)
        if end > len(room):
            break
        room[at : at + len(head)] = head
        room[at + len(head) : end] = payload
        at = end
        number += 1
    return number, at


def send_message(
    fd: int,
    state: Buffer,
    payload: Buffer,
    memory: Buffer | None,
    value_at: int,
    signal_at: int,
    window: Buffer | None,
    /,
) -> int:
    view = open_buffer(payload)
    words = open_buffer(state, writable=True)
    if len(words) < STATE_BYTES:
        refuse("invalid_request", f"the state has {len(words)} bytes")
    end = pure.load(words, END_AT)
    size = _HEAD.size + len(view)
    most = min(pure.load(words, MOST_AT), 0xFFFFFFFF)
    if end >= pure.load(words, CUT_AT) or len(view) > most or end + size > pure.load(words, FULL_AT):
        return 0
    position = (end - pure.load(words, SHIFT_AT)) % 2**64
    rest = memoryview(b"".join((_HEAD.pack(len(view), _checksum(len(view), view)), view)))
    while rest:
        done = os.pwrite(fd, rest, position)
        rest, position = rest[done:], position + done
    pure.store(words, END_AT, end + size)
    if memory is not None:
        publish(memory, value_at, end + size, signal_at)
    return end + size


def reserve(fd: int, offset: int, length: int, /) -> bool:
    """Python has only posix_fallocate, which writes zeros where a filesystem cannot reserve."""
    u64(offset, "offset")
    u64(length, "length")
    return False


def _check(view: memoryview, at: int, end: int, most: int) -> tuple[int, str]:
    """The length of the message there, and what is wrong with it."""
    if end - at < _HEAD.size:
        return 0, "short"
    length, checksum = _HEAD.unpack_from(view, at)
    body = at + _HEAD.size
    if length > most:
        return 0, "length"
    if length > end - body:
        return 0, "short"
    return length, "" if checksum == _checksum(length, view[body : body + length]) else "checksum"


def split_messages(buffer: Buffer, start: int, end: int, base: int, most: int, limit: int, /) -> Split:
    for value, what in ((base, "base"), (most, "most"), (limit, "limit")):
        u64(value, what)
    view = open_span(buffer, start, end)
    payloads: list[bytes] = []
    ends: list[int] = []
    at, fault = start, ""
    while at < end and len(payloads) < limit:
        length, fault = _check(view, at, end, most)
        if fault:
            break
        body = at + _HEAD.size
        at = body + length
        payloads.append(bytes(view[body:at]))
        ends.append(base + at)
    return payloads, ends, at, fault


def scan_messages(buffer: Buffer, start: int, end: int, most: int, /) -> tuple[int, int, str]:
    u64(most, "most")
    view = open_span(buffer, start, end)
    at, count, fault = start, 0, ""
    while at < end:
        length, fault = _check(view, at, end, most)
        if fault:
            break
        at += _HEAD.size + length
        count += 1
    return count, at, fault


def find_message(buffer: Buffer, start: int, end: int, most: int, /) -> int:
    u64(most, "most")
    view = open_span(buffer, start, end)
    for at in range(start, end):
        if _plausible(view, at, end, most) and not _check(view, at, end, most)[1]:
            return at
    return end


def _plausible(view: memoryview, at: int, end: int, most: int) -> bool:
    for _ in range(_CHAIN):
        if at == end:
            break
        if end - at < _HEAD.size:
            return False
        length = int.from_bytes(view[at : at + 4], "big")
        if length > most or length > end - at - _HEAD.size:
            return False
        at += _HEAD.size + length
    return True


def _signal(memory: Buffer, at: int, writable: bool) -> memoryview:
    view = open_buffer(memory, writable)
    u64(at, "offset")
    if len(view) < 4 or at > len(view) - 4 or at % 4:
        refuse("invalid_request", f"no aligned word at offset {at} of {len(view)} bytes")
    return view[at : at + 4].cast("I")


def publish(memory: Buffer, value_at: int, value: int, signal_at: int, /) -> None:
    word = _signal(memory, signal_at, True)
    pure.store(memory, value_at, value)
    # Without a fence nobody can be sure that no native process sleeps: it is always told.
    _count_on(word)


def _count_on(word: memoryview) -> None:
    word[0] = ((word[0] & ~1) + 2) & 0xFFFFFFFF
    _wake(word)


def _wake(word: memoryview) -> None:
    """Processes with the C core may sleep on the same page."""
    import ctypes

    address = ctypes.addressof(ctypes.c_uint32.from_buffer(word))
    number = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
    if number is not None:
        ctypes.CDLL(None).syscall(number, ctypes.c_void_p(address), 1, 2**31 - 1, None, None, 0)


def signal_count(memory: Buffer, signal_at: int, /) -> int:
    count: int = _signal(memory, signal_at, False)[0] >> 1
    return count


def raise_signal(memory: Buffer, signal_at: int, /) -> None:
    _count_on(_signal(memory, signal_at, True))


def await_signal(memory: Buffer, signal_at: int, seen: int, value_at: int, known: int, timeout_ns: int, /) -> int:
    u64(known, "known")
    deadline = time.monotonic_ns() + u64(timeout_ns, "timeout_ns")
    _signal(memory, signal_at, True)
    seen = u64(seen, "seen") & _SEQUENCE_MASK
    while True:
        value = pure.load(memory, value_at)
        if value != known or signal_count(memory, signal_at) != seen:
            return value
        left = FOREVER_NS if timeout_ns == FOREVER_NS else deadline - time.monotonic_ns()
        if left <= 0:
            return value
        time.sleep(min(POLL_S, left / 1e9))
