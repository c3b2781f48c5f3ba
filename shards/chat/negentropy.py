"""Range-based set reconciliation, negentropy protocol version 1. Promise: messages are those of the published protocol
(bytes: docs/formats.md); at the end the side that began knows which ids only it has and which only the other has.

Both sides sort (timestamp, id). A message is a version byte and ranges that follow each other, each with its upper
bound and either nothing (skip), a fingerprint, or all ids of the range. A fingerprint is the first 16 bytes of the
SHA-256 of the sum of all ids (little-endian, modulo 2^256) and their number.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from topicd.errors import InvalidRequest

VERSION = 0x61
ID = 32
FINGERPRINT = 16
INFINITY = (1 << 64) - 1
BUCKETS = 16
FRAME_MIN = 4_096
_RESERVE = 200  # what ends a frame that is cut short
_MOD = 1 << 256
_STEP = 16  # items per stored sum: thousands of differences are found by hundreds of thousands of fingerprints
_ITEM = 8 + ID


class Mode(IntEnum):
    SKIP = 0
    FINGERPRINT = 1
    IDS = 2


class Bound(NamedTuple):
    """Everything below it; the id may be a prefix."""

    timestamp: int
    id: bytes = b""


class Vector:
    """Items in order, sealed. Sums of every 16 are kept, so that a fingerprint costs little."""

    def __init__(self, items: Iterable[tuple[int, bytes]]) -> None:
        rows = sorted(timestamp.to_bytes(8, "big") + item for timestamp, item in items)
        self._init_from(rows)

    @classmethod
    async def of_rows_slowly(cls, rows: list[bytes]) -> Vector:
        """Of rows in order (8 bytes of timestamp, big-endian, and the id), letting others have their turns."""
        made = cls(())
        made._rows, made._size = b"".join(rows), len(rows)
        for at in range(0, len(rows), _STEP):
            made._sums.append((made._sums[-1] + _sum(rows[at : at + _STEP])) % _MOD)
            if at % (512 * _STEP) == 0:
                await asyncio.sleep(0)
        return made

    def _init_from(self, rows: list[bytes]) -> None:
        if any(len(row) != _ITEM for row in rows):
            raise InvalidRequest(f"ids have {ID} bytes")
        self._rows = b"".join(rows)
        self._size = len(rows)
        self._sums = [0]
        for at in range(0, self._size, _STEP):
            self._sums.append((self._sums[-1] + _sum(rows[at : at + _STEP])) % _MOD)

    def __len__(self) -> int:
        return self._size

    def timestamp(self, index: int) -> int:
        at = index * _ITEM
        return int.from_bytes(self._rows[at : at + 8], "big")

    def id(self, index: int) -> bytes:
        at = index * _ITEM + 8
        return self._rows[at : at + ID]

    def ids(self, first: int, end: int) -> list[bytes]:
        return [self.id(index) for index in range(first, end)]

    def lower(self, first: int, bound: Bound) -> int:
        """The first item from there on that is not below the bound."""
        if bound.timestamp == INFINITY:
            return self._size
        wanted = bound.timestamp.to_bytes(8, "big") + bound.id.ljust(ID, b"\0")
        low, high = first, self._size
        while low < high:
            middle = (low + high) // 2
            if self._rows[middle * _ITEM : middle * _ITEM + _ITEM] < wanted:
                low = middle + 1
            else:
                high = middle
        return low

    def bound_between(self, index: int) -> Bound:
        """The shortest bound that separates an item from the one before it."""
        timestamp = self.timestamp(index)
        if timestamp != self.timestamp(index - 1):
            return Bound(timestamp)
        here, before = self.id(index), self.id(index - 1)
        shared = next((at for at in range(ID) if here[at] != before[at]), ID - 1)
        return Bound(timestamp, here[: shared + 1])

    def fingerprint(self, first: int, end: int) -> bytes:
        total = (self._sum_below(end) - self._sum_below(first)) % _MOD
        return hashlib.sha256(total.to_bytes(ID, "little") + varint(end - first)).digest()[:FINGERPRINT]

    def _sum_below(self, index: int) -> int:
        whole = index // _STEP
        return self._sums[whole] + sum(int.from_bytes(self.id(at), "little") for at in range(whole * _STEP, index))


def _sum(rows: list[bytes]) -> int:
    return sum(int.from_bytes(row[8:], "little") for row in rows)


def varint(value: int) -> bytes:
    """Base 128, most significant digit first; all but the last digit have bit 8."""
    digits = [value & 0x7F]
    while value := value >> 7:
        digits.append(value & 0x7F | 0x80)
    return bytes(reversed(digits))


class _Reader:
    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0
        self._last = 0

    @property
    def ended(self) -> bool:
        return self._at >= len(self._raw)

    def take(self, size: int) -> bytes:
        if self._at + size > len(self._raw):
            raise InvalidRequest("the reconciliation message ends too early")
        self._at += size
        return self._raw[self._at - size : self._at]

    def number(self) -> int:
        value = 0
        for _ in range(10):
            (digit,) = self.take(1)
            value = value << 7 | digit & 0x7F
            if not digit & 0x80:
                return value
        raise InvalidRequest("the reconciliation message holds a number of more than 64 bits")

    def bound(self) -> Bound:
        offset = self.number()
        timestamp = INFINITY if offset == 0 or self._last == INFINITY else min(INFINITY, self._last + offset - 1)
        self._last = timestamp
        length = self.number()
        if length > ID:
            raise InvalidRequest(f"a bound in the reconciliation message has an id of {length} bytes")
        return Bound(timestamp, self.take(length))


class _Writer:
    def __init__(self) -> None:
        self.raw = bytearray((VERSION,))
        self._last = 0

    def range(self, upper: Bound, mode: Mode, payload: bytes = b"") -> None:
        if upper.timestamp == INFINITY:
            self._last = INFINITY
            self.raw += varint(0)
        else:
            self.raw += varint(upper.timestamp - self._last + 1)
            self._last = upper.timestamp
        self.raw += varint(len(upper.id)) + upper.id + varint(mode) + payload


class Reconciliation:
    """One side. The initiator calls begin() and hands every answer to `take` until that gives None; the other side
    calls `answer` for each message and keeps nothing between them. frame: the longest message that it makes; 0: any."""

    def __init__(self, vector: Vector, frame: int = 0) -> None:
        if frame and frame < FRAME_MIN:
            raise InvalidRequest(f"a frame has at least {FRAME_MIN} bytes, not {frame}")
        self._vector = vector
        self._frame = frame
        self.have: list[bytes] = []  # that the other side lacks
        self.need: list[bytes] = []  # that this side lacks

    def begin(self) -> bytes:
        out = _Writer()
        self._split(0, len(self._vector), Bound(INFINITY), out)
        return bytes(out.raw)

    def take(self, message: bytes) -> bytes | None:
        """The next message, or None when all differences are known."""
        raw = self._reconcile(message, initiator=True)
        return None if len(raw) == 1 else raw

    def answer(self, message: bytes) -> bytes:
        if not message or not 0x60 <= message[0] <= 0x6F:
            raise InvalidRequest("this is no reconciliation message")
        if message[:1] != bytes((VERSION,)):
            return bytes((VERSION,))  # which version is spoken here
        return self._reconcile(message, initiator=False)

    def _reconcile(self, message: bytes, *, initiator: bool) -> bytes:
        source, out = _Reader(message), _Writer()
        if source.take(1)[0] != VERSION:
            raise InvalidRequest(f"the other side speaks another version of reconciliation than 0x{VERSION:02x}")
        index, before, skipping = 0, Bound(0), False
        while not source.ended:
            upper = source.bound()
            mode = source.number()
            before_range = len(out.raw)
            first, end = index, self._vector.lower(index, upper)
            if mode == Mode.SKIP:
                skipping = True
            elif mode == Mode.FINGERPRINT:
                if source.take(FINGERPRINT) == self._vector.fingerprint(first, end):
                    skipping = True
                else:
                    skipping = _skip(out, before, skipping)
                    self._split(first, end, upper, out)
            elif mode == Mode.IDS:
                theirs = [source.take(ID) for _ in range(source.number())]
                if initiator:
                    skipping = True
                    self._compare(first, end, theirs)
                else:
                    skipping = _skip(out, before, skipping)
                    upper, end = self._list(first, end, upper, out, before_range)
            else:
                raise InvalidRequest(f"the reconciliation message has a range of unknown mode {mode}")
            if self._full(len(out.raw)):
                if mode == Mode.FINGERPRINT:
                    del out.raw[before_range:]  # said again in the next round
                rest = self._vector.fingerprint(end, len(self._vector))
                out.range(Bound(INFINITY), Mode.FINGERPRINT, rest)
                break
            index, before = end, upper
        return bytes(out.raw)

    def _compare(self, first: int, end: int, theirs: list[bytes]) -> None:
        missing = set(theirs)
        for item in self._vector.ids(first, end):
            if item in missing:
                missing.remove(item)
            else:
                self.have.append(item)
        self.need += sorted(missing)

    def _list(self, first: int, end: int, upper: Bound, out: _Writer, used: int) -> tuple[Bound, int]:
        """Our ids of the range, or as many as fit; where it ends."""
        room = end - first
        if self._frame:
            room = min(room, max(0, (self._frame - _RESERVE - used) // ID + 1))
        if first + room < end:
            end = first + room
            upper = Bound(self._vector.timestamp(end), self._vector.id(end))
        out.range(upper, Mode.IDS, varint(end - first) + b"".join(self._vector.ids(first, end)))
        return upper, end

    def _split(self, first: int, end: int, upper: Bound, out: _Writer) -> None:
        count = end - first
        if count < 2 * BUCKETS:
            out.range(upper, Mode.IDS, varint(count) + b"".join(self._vector.ids(first, end)))
            return
        each, more = divmod(count, BUCKETS)
        at = first
        for bucket in range(BUCKETS):
            size = each + (bucket < more)
            fingerprint = self._vector.fingerprint(at, at + size)
            at += size
            out.range(upper if at == end else self._vector.bound_between(at), Mode.FINGERPRINT, fingerprint)

    def _full(self, size: int) -> bool:
        return self._frame > 0 and size > self._frame - _RESERVE


def _skip(out: _Writer, before: Bound, skipping: bool) -> bool:
    """What was skipped up to here is said once something follows it."""
    if skipping:
        out.range(before, Mode.SKIP)
    return False
