"""Dictionaries of topics: used where they save a tenth, themselves included, and in the file that needs them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from benchmarks.tier import lines
from tests.support.fakedisk import FakeDisk
from topicd.disk.fs import write_beside
from topicd.disk.loading import load
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.packed import BLOCK_BYTES, Packed, dictionary_of, open_packed, pack
from topicd.shards.storage.segment.words import SMALL_RECORD, Words, train

PATH = Path("/topic/seg.data.z")
LEVEL = 3


def devices(count: int, seed: int = 1, size: int = 0) -> list[bytes]:
    """Readings of a hundred devices, each with what it says of itself every time."""
    chance = Random(seed)
    known = [
        {"device": f"{chance.getrandbits(48):012x}", "firmware": n, "certificate": f"{chance.getrandbits(256):064x}"}
        for n in range(100)
    ]
    return [
        json.dumps({**chance.choice(known), "at": 1_760_000_000 + n, "celsius": round(chance.gauss(20, 3), 2)})
        .ljust(size)
        .encode()
        for n in range(count)
    ]


def packed_by(words: Words, records: Sequence[bytes]) -> tuple[Packed, Packed, bytes]:
    """By the words of a topic, without any, and what was to be packed."""
    ends, at = list[int](), 0
    for record in records:
        at += len(record)
        ends.append(at)
    data = b"".join(records)
    made = words.pack(memoryview(data), ends, SegmentInfo(1, len(records), at, 0, 0, 0, True), LEVEL, pack)
    return made, pack(data, ends, 1, LEVEL), data


def read_back(made: Packed) -> bytes:
    disk = FakeDisk(directories=[PATH.parent])
    disk.rename(write_beside(disk, PATH, made.parts), PATH)
    return bytes(load(open_packed(disk, PATH)).view)


def test_small_records_that_say_the_same_again_and_again_are_packed_with_a_dictionary() -> None:
    words = Words()
    for segment in range(3):
        made, plain, data = packed_by(words, devices(5_000))
        assert made.dict_bytes and made.size <= 0.9 * plain.size, segment
        assert len(data) > 10 * BLOCK_BYTES and read_back(made) == data


@pytest.mark.parametrize(
    "records",
    [
        lambda: list(lines(5_000)),  # a block says by itself what its records have in common
        lambda: devices(100),  # it would be larger than what it saves
        lambda: devices(5_000, size=SMALL_RECORD),
        lambda: [Random(n).randbytes(100) for n in range(5_000)],
        lambda: [b""] * 100,
    ],
    ids=["log lines", "few", "large", "noise", "empty"],
)
def test_where_it_saves_less_there_is_none(records: Callable[[], list[bytes]]) -> None:
    made, plain, data = packed_by(Words(), records())
    assert made.dict_bytes == 0 and made.parts == plain.parts and read_back(made) == data


def test_one_that_pays_a_little_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    made, plain, _ = packed_by(Words(), devices(5_000))
    monkeypatch.setattr("topicd.shards.storage.segment.words._WORTH", made.size / plain.size - 0.01)
    assert packed_by(Words(), devices(5_000))[0].dict_bytes == 0


def test_of_two_sizes_the_one_that_packs_better_is_taken() -> None:
    chance = Random(5)
    few, many = ([chance.randbytes(90) for _ in range(count)] for count in (100, 600))
    sizes = [
        packed_by(Words(), [b"".join(chance.sample(phrases, 6)) for _ in range(4_000)])[0].dict_bytes
        for phrases in (few, many)
    ]
    assert 0 < sizes[0] < sizes[1]


def test_it_is_trained_once_for_many_segments_and_again_when_the_records_have_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trained = list[int]()

    def counted(frames: memoryview, ends: Sequence[int], size: int) -> bytes:
        trained.append(size)
        return train(frames, ends, size)

    monkeypatch.setattr("topicd.shards.storage.segment.words.train", counted)
    monkeypatch.setattr("topicd.shards.storage.segment.words._TRY_AGAIN", 4)
    words, pays = Words(), list[bool]()
    for seed in (1, 1, 2, 2, 2, 2):  # other devices after two segments
        pays.append(packed_by(words, devices(5_000, seed))[0].dict_bytes > 0)
    assert pays == [True, True, False, False, True, True] and len(trained) == 4


def test_segments_with_the_same_dictionary_share_it_in_memory() -> None:
    words = Words()
    disk = FakeDisk(directories=[PATH.parent])
    found = []
    for name in ("one", "two"):
        disk.rename(write_beside(disk, PATH, packed_by(words, devices(5_000))[0].parts), PATH.with_name(name))
        found.append(open_packed(disk, PATH.with_name(name)).layout.dictionary)
    assert found[0] is not None and found[0] is found[1]
    assert dictionary_of.cache_info().maxsize
