"""Calls every native function on bytes that touch unreadable pages: a wild access ends the process.

Usage: python guard_fuzz.py <seed> <rounds>. Started by test_native_guard.py; also of use under a sanitizer.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import struct
import sys

import msgpack
from native_cases import FIELDS, blank, native, whole

PAGE = mmap.PAGESIZE
libc = ctypes.CDLL(None, use_errno=True)
libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Guarded:
    """Some pages between two that cannot be touched."""

    def __init__(self, pages: int) -> None:
        self.size = pages * PAGE
        self.mapping = mmap.mmap(-1, self.size + 2 * PAGE)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))
        self.start = base + PAGE
        for guard in (base, self.start + self.size):
            if libc.mprotect(guard, PAGE, 0):
                raise OSError(ctypes.get_errno(), "mprotect")

    def place(self, data: bytes, at_end: bool) -> memoryview:
        address = self.start + (self.size - len(data) if at_end else 0)
        ctypes.memmove(address, data, len(data))
        return memoryview((ctypes.c_char * len(data)).from_address(address)).cast("B")


def stored(rng: random.Random) -> bytes:
    meta = msgpack.packb({"k": [1, {"a": "b" * rng.randrange(40)}]})
    return b"".join(
        whole(
            rng.randbytes(rng.choice((0, 3, 100, 200, 700))),
            tag=rng.choice((None, b"tag")),
            node=rng.choice((None, b"n")),
            meta=rng.choice((None, None, meta)),
            type=rng.choice((1, 1, 1, 14)),
            seq=seq,
        )
        for seq in range(1, rng.randrange(2, 5))
    )


def batch(rng: random.Random) -> bytes:
    count = rng.randrange(1, 4)
    meta = msgpack.packb({"k": list(range(rng.randrange(20))), "s": "x" * rng.randrange(300)})
    return b"".join(
        blank(
            bytes(rng.randrange(50)),
            meta=rng.choice((None, meta)),
            tag=rng.choice((None, b"t")),
            more=i < count - 1,
        )
        for i in range(count)
    )


def run(rng: random.Random) -> bytes:
    frames = [blank(rng.randbytes(rng.randrange(60)), tag=rng.choice((None, b"t"))) for _ in range(rng.randrange(1, 4))]
    return b"".join(
        struct.pack("<IBBIQQQI", 34 + len(frame), 0x20, 0, i, 1, 1, 1 + i, 1) + frame for i, frame in enumerate(frames)
    )


def spoil(rng: random.Random, data: bytes) -> bytes:
    spoiled = bytearray(data)
    for _ in range(rng.randrange(3)):
        if len(spoiled) < 46:
            break
        match rng.randrange(3):
            case 0:
                del spoiled[rng.randrange(len(spoiled)) :]
            case 1:
                spoiled[rng.randrange(len(spoiled))] = rng.choice((0, 0x81, 0xC9, 0xDB, 0xDD, 0xDF, 0xFF))
            case 2:
                at, code = rng.choice(sorted(FIELDS.items()))
                top = 2 ** (8 * struct.calcsize(code)) - 1
                struct.pack_into(code, spoiled, at, rng.choice((0, top, top - 3, rng.randrange(200) & top)))
    return bytes(spoiled)


def call(name: str, *args: object) -> None:
    try:
        getattr(native, name)(*args)
    except ValueError as exc:
        code, _ = exc.args
        if code not in ("invalid_request", "format_error", "record_too_large", "batch_too_large"):
            raise


def exercise(rng: random.Random, view: memoryview) -> None:
    end = len(view)
    readers = ("scan_frames", "frame_offsets", "frame_tags", "decode_frames", "payloads", "columns")
    for name in readers:
        call(name, view, 0, end)
    call("index_entries", view, 0, end, 0)
    call("take_run", view, 0, end, 1, 1, 1, 1, 1, True, 512, 1 << 20)
    call("run_answers", view, 1, 2)
    call("xxh3_64", view)
    conditions = (b"tag", b"t", [b"n", b"other"], bytes(view[: end // 16 * 16]))
    call("select_frames", view, 0, end, 0, 2**63, 3, 500, 0, *conditions)
    call("select_frames", view, 0, end, 0, 2**63, 3, 500, 0, None, None, [], view[: end // 16 * 16])
    call("encode_batch", [view], None, None, [bytes(view[46:]) or None])
    rows = min(max(0, end // 4 - 1), 40)
    for column in ((None, view, view, 0), (view, view, view, rng.randrange(4)), (view[: rows // 8 + 1], view, b"", 0)):
        call("encode_columns", rows, column, column, None, column)
    call("load", view, max(0, end - 8))
    call("load", view, end)
    call("store_fence", view, end - end % 8, 1)
    call("ring_write", view, 0, end, rng.randrange(1000), bytes(end), 0, end)
    call("ring_write", bytearray(end), 0, end, 3, view, 0, end)


def main() -> None:
    seed, rounds = int(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(seed)
    guarded = Guarded(2)
    makers = (stored, batch, run, lambda rng: rng.randbytes(rng.randrange(120)))
    for turn in range(rounds):
        data = spoil(rng, rng.choice(makers)(rng))
        for at_end in (True, False):
            call("stamp_frames", guarded.place(data, at_end), 0, len(data), 1, 1, 1, turn % 2 == 0)
            exercise(rng, guarded.place(data, at_end))
    print(f"{rounds} rounds are through")


if __name__ == "__main__":
    main()
