from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fakedisk import FakeDisk
from tests.unit.storage.segment_kit import Topic, tag_of
from topicd._native import core
from topicd.disk.fs import replace_file
from topicd.errors import FormatError, StorageCorrupt
from topicd.model import TagMatch
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import append_marks
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.tags import Seal, TagTable, pack_tags, read_seal

HOME = Path("/t")
KEYS = st.binary(min_size=1, max_size=3) | st.sampled_from([b"a", b"a:", b"a:1", b"ab", b"\xff", b"\xff\xff"])


def a_seal(**changes: object) -> Seal:
    fields: dict[str, object] = {
        "first_seq": 100,
        "count": 50,
        "damaged": 0,
        "data_bytes": 12345,
        "first_ts": 5,
        "last_ts": 9,
        "created_ms": 4,
        "index_xxh3": 2**64 - 1,
    }
    return Seal(**(fields | changes))  # type: ignore[arg-type]


def table(seal: Seal, tagged: list[tuple[bytes, int]]) -> tuple[FakeDisk, TagTable]:
    disk = FakeDisk(directories=[HOME])
    replace_file(disk, resolve(HOME, seal.first_seq).file("tags"), pack_tags(seal, tagged))
    return disk, TagTable(disk, HOME, seal.first_seq).open()


@given(st.lists(KEYS | st.none(), max_size=50), KEYS)
def test_finds_what_a_scan_finds(tags: list[bytes | None], wanted: bytes) -> None:
    tagged = [(tag, 100 + number) for number, tag in enumerate(tags) if tag is not None]
    _, found = table(a_seal(), tagged)
    for match in (TagMatch(wanted), TagMatch(wanted, prefix=True), TagMatch(b"", prefix=True)):
        assert found.find(match) == [seq for tag, seq in tagged if match.matches(tag)]
    assert found.tag_count == len({tag for tag, _ in tagged})


def test_a_prefix_does_not_catch_its_neighbour() -> None:
    _, found = table(a_seal(), [(b"a:1", 100), (b"ab", 101), (b"a:", 102), (b"a", 103)])
    assert found.find(TagMatch(b"a:", prefix=True)) == [100, 102]
    assert found.find(TagMatch(b"a")) == [103]


def test_the_seal_comes_back_whole() -> None:
    seal = a_seal(gone=Ranges([(100, 104), (120, 149)]), damaged=3)
    disk, _ = table(seal, [(b"x", 110)])
    assert read_seal(disk, HOME, 100) == seal


def test_the_layout_is_the_documented_one() -> None:
    seal = a_seal(gone=Ranges([(100, 104)]), damaged=3)
    disk, _ = table(seal, [(b"red", 110), (b"blue", 111), (b"red", 112)])
    raw = disk.files()[resolve(HOME, 100).file("tags")]
    postings = struct.pack("<III", 11, 10, 12)
    directory = struct.pack("<IIIIIIII", 0, 4, 0, 1, 4, 3, 1, 2)
    rest = directory + b"bluered" + postings
    numbers = (100, 50, 3, 12345, 5, 9, 4, 2**64 - 1, 1, 2, 7, 3, core.xxh3_64(rest))
    head = b"TTAG" + struct.pack("<HHQIIQQQQQIIIIQ", 1, 0, *numbers)
    gone = struct.pack("<QQ", 100, 104)
    assert raw == head + struct.pack("<Q", core.xxh3_64(head + gone)) + gone + rest


def test_more_gone_ranges_than_one_read_takes() -> None:
    seal = a_seal(count=2000, gone=Ranges((seq, seq) for seq in range(100, 2100, 2)))
    disk, found = table(seal, [(b"x", 101)])
    assert read_seal(disk, HOME, 100) == seal
    assert found.find(TagMatch(b"x")) == [101]


def test_a_damaged_file_is_no_seal_or_a_corrupt_table() -> None:
    disk, _ = table(a_seal(gone=Ranges([(100, 101)])), [(b"red", 110), (b"rose", 111)])
    path = resolve(HOME, 100).file("tags")
    good = disk.files()[path]
    table_at = 96 + 16  # header and checksum, one range
    for at in range(len(good)):
        disk.damage(path, at, bytes([good[at] ^ 0x10]))
        with pytest.raises(StorageCorrupt) as caught:
            TagTable(disk, HOME, 100).open()
        assert caught.value.detail["first_seq"] == 100
        if at < table_at:
            assert read_seal(disk, HOME, 100) is None, at
        disk.damage(path, at, good[at : at + 1])
    for size in (0, 1, 95, 96, 111, len(good) - 1):
        replace_file(disk, path, [good[:size]])
        assert read_seal(disk, HOME, 100) is None, size
    replace_file(disk, path, [good + b"\0"])
    assert read_seal(disk, HOME, 100) is None


def test_a_seal_of_another_segment_is_not_believed() -> None:
    disk, _ = table(a_seal(), [])
    disk.rename(resolve(HOME, 100).file("tags"), resolve(HOME, 200).file("tags"))
    assert read_seal(disk, HOME, 200) is None


def test_a_whole_seal_of_an_unknown_version_is_refused_not_guessed() -> None:
    seal = a_seal()
    head, _, gone, rest = pack_tags(seal, [])
    newer = head[:4] + struct.pack("<H", 2) + head[6:]
    disk = FakeDisk(directories=[HOME])
    checksum = struct.pack("<Q", core.xxh3_64(newer + gone))
    replace_file(disk, resolve(HOME, 100).file("tags"), [newer, checksum, gone, rest])
    with pytest.raises(FormatError, match="version 2 flags 0, expected version 1"):
        read_seal(disk, HOME, 100)


def test_a_closed_table_cannot_be_asked() -> None:
    _, found = table(a_seal(), [(b"x", 100)])
    assert found.held_bytes > 100
    found.close()
    found.close()
    assert found.find(TagMatch(b"x")) == []
    with pytest.raises(ValueError, match="not open"):
        found.key(0)


def test_the_table_of_a_sealed_segment_names_every_record_deleted_or_not(disk: FakeDisk, topic: Topic) -> None:
    """A delete that is in the log and whose marks were not written is applied again by the table."""
    topic.append(disk, 10)
    append_marks(disk, topic.dir, 1, [(1, 8)])
    topic.append(disk, 30, seal=True)
    found = TagTable(disk, topic.dir, 1).open()
    assert found.find(TagMatch(b"red")) == [seq for seq in range(1, 41) if tag_of(seq) == b"red"]
    assert found.find(TagMatch(b"r", prefix=True)) == [seq for seq in range(1, 41) if tag_of(seq) in {b"red", b"rose"}]
