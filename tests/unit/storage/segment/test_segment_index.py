from __future__ import annotations

import struct

import pytest

from tests.unit.storage.segment_kit import frames, ts_of
from topicd._native import core
from topicd.shards.storage.segment.index import (
    DAMAGED,
    ENTRY_BYTES,
    GONE,
    bytes_of,
    damaged_entries,
    entries_within,
    entry_at,
    entry_count,
    flagged,
    gone_entries,
    index_end,
    tiled_entries,
)

DATA = frames(7, 1, 60)
INDEX = core.index_entries(DATA, 0, len(DATA), 0)


def test_an_entry_is_twenty_bytes_as_documented() -> None:
    assert ENTRY_BYTES == 20
    assert entry_count(INDEX) == 60
    first, second = entry_at(INDEX, 0), entry_at(INDEX, 1)
    assert INDEX[:20] == struct.pack("<IIQB3x", 0, first.length, ts_of(1), first.flags)
    assert second.offset == first.length
    assert index_end(INDEX) == len(DATA)
    assert index_end(b"") == 0


def test_the_bytes_of_a_range_are_those_of_its_frames() -> None:
    assert bytes_of(INDEX, 1, 1, 60) == len(DATA)
    assert bytes_of(INDEX, 1, 5, 5) == entry_at(INDEX, 4).length
    assert bytes_of(INDEX, 1, 5, 4) == 0


def test_entries_within_counts_whole_frames() -> None:
    ends = [sum(entry_at(INDEX, n)[:2]) for n in range(60)]
    for size in (0, ends[0] - 1, ends[0], ends[30], ends[30] + 1, len(DATA), 1 << 30):
        assert entries_within(INDEX, 60, size) == sum(end <= size for end in ends)


def test_a_whole_index_tiles() -> None:
    assert tiled_entries(INDEX) == 60
    assert tiled_entries(b"") == 0
    assert tiled_entries(INDEX + b"\1" * 19) == 60


@pytest.mark.parametrize("sector", range(0, len(INDEX), 512))
def test_a_lost_sector_ends_the_tiling_at_it(sector: int) -> None:
    broken = INDEX[:sector] + bytes(512) + INDEX[sector + 512 :]
    # An entry that begins in front of the sector may look whole: that is why the last one is read again.
    assert sector // ENTRY_BYTES <= tiled_entries(broken[: len(INDEX)]) <= sector // ENTRY_BYTES + 1


def test_zeros_are_no_entries() -> None:
    assert tiled_entries(bytes(200)) == 0


def test_entries_that_do_not_follow_each_other_end_the_tiling() -> None:
    assert tiled_entries(INDEX[:100] + INDEX[120:]) == 5
    assert tiled_entries(INDEX[20:]) == 0


def test_gone_and_damaged_entries_tile_and_are_found() -> None:
    at = index_end(INDEX)
    index = INDEX + gone_entries(at, 5, 2) + damaged_entries(at, at + 100, 5, 3) + gone_entries(at + 100, 5, 1)
    assert tiled_entries(index) == 66
    assert flagged(index, 1, GONE) == [(61, 62), (66, 66)]
    assert flagged(index, 1, DAMAGED) == [(63, 65)]
    assert flagged(INDEX, 1, GONE) == flagged(b"", 1, GONE) == []
    assert bytes_of(index, 1, 61, 62) == 0
    assert bytes_of(index, 1, 63, 65) == 100
