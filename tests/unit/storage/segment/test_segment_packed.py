"""`.data.z`: any part of it reads as the frames that were packed, or not at all."""

from __future__ import annotations

import errno
import json
import random
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from topicd.disk.fs import write_beside
from topicd.disk.loading import load
from topicd.shards.storage.segment.packed import BLOCK_BYTES, PackedFile, cuts, open_packed, pack

PATH = Path("/topic/seg.data.z")


def records(sizes: list[int], seed: int = 1) -> tuple[bytes, list[int]]:
    chance, parts, ends, at = random.Random(seed), list[bytes](), list[int](), 0
    for size in sizes:
        parts.append(chance.randbytes(size // 2) + b"." * (size - size // 2))
        at += size
        ends.append(at)
    return b"".join(parts), ends


def packed_file(data: bytes, ends: list[int], words: bytes = b"") -> tuple[FakeDisk, PackedFile]:
    disk = FakeDisk(directories=[PATH.parent])
    disk.rename(write_beside(disk, PATH, pack(data, ends, 7, 3, words).parts), PATH)
    return disk, open_packed(disk, PATH)


def test_blocks_end_at_records_and_hold_as_many_as_fit() -> None:
    assert cuts([10, 20, 30], 20) == [20, 30]
    assert cuts([10, 50, 60], 20) == [10, 50, 60]  # one that is larger is a block of its own
    assert cuts([10, 10, 20], 100) == [20]  # a record that is gone has no bytes
    assert cuts([]) == []


@pytest.mark.parametrize("sizes", [[100] * 3_000, [BLOCK_BYTES * 3, 10, 0, BLOCK_BYTES, 1], [1], [50_000] * 9])
def test_every_part_reads_as_what_was_packed(sizes: list[int]) -> None:
    data, ends = records(sizes)
    _, file = packed_file(data, ends)
    assert file.size() == len(data) and bytes(load(file).view) == data
    chance = random.Random(2)
    for _ in range(200):
        offset, size = chance.randrange(len(data) + 1), chance.randrange(len(data) + 10)
        assert file.pread(size, offset) == data[offset : offset + size]
    # A record needs one block.
    for start, end in zip([0, *ends], ends, strict=False):
        assert len(file.layout.within(start, end)) == (1 if start < end else 0)
    blocks = file.layout.within(0, len(data))
    assert b"".join(file.blocks(blocks)) == data and file.blocks(range(0)) == []


@pytest.mark.fault("TIR-06")
def test_any_flipped_bit_is_noticed_and_costs_one_block() -> None:
    data, ends = records([500] * 400)
    disk, file = packed_file(data, ends)
    blocks = len(file.layout)
    assert blocks >= 3
    size, chance = disk.size(PATH), random.Random(3)
    for at in (*range(60), *chance.sample(range(size), 200)):
        raw = disk.open(PATH, write=True)
        old = raw.pread(1, at)
        raw.pwrite([bytes([old[0] ^ 1 << at % 8])], at)
        try:
            found = load(open_packed(disk, PATH))
        except OSError as error:
            assert error.errno == errno.EBADMSG
        else:
            # What is read again is read by pages: one of them may reach into the neighbours.
            bad = {n for part in found.bad for n in file.layout.within(part.start, part.end)}
            assert len(bad) <= 3
            good = bytearray(found.view)
            for part in found.bad:
                good[part.start : part.end] = data[part.start : part.end]
            assert bytes(good) == data
        raw.pwrite([old], at)


@pytest.mark.parametrize("size", [0, 10, 39, 41, 90])
def test_a_file_that_is_cut_off_is_not_read(size: int) -> None:
    data, ends = records([500] * 400)
    disk, _ = packed_file(data, ends)
    file = disk.open(PATH, write=True)
    file.truncate(size)
    with pytest.raises(OSError, match=r"cut off|checksum"):
        open_packed(disk, PATH)


def test_json_shrinks() -> None:
    lines = [json.dumps({"n": n, "level": "info", "path": f"/things/{n}"}).encode() for n in range(5_000)]
    ends, at = [], 0
    for line in lines:
        at += len(line)
        ends.append(at)
    assert pack(b"".join(lines), ends, 1, 3).size < at / 4
