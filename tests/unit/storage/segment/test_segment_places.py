"""Where the files of a segment lie, and that one module says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.unit.storage.segment_kit import Topic
from topicd.shards.storage.segment import places
from topicd.shards.storage.segment.index import ENTRY_BYTES
from topicd.shards.storage.segment.names import CUT, DATA, IDX, TAGS
from topicd.shards.storage.segment.places import is_segment_name, list_files, list_segments, resolve

ROOT = Path(__file__).parents[4]


def test_a_file_is_named_by_topic_first_seq_and_part() -> None:
    place = resolve(Path("/topics/7"), 21)
    assert place.file(DATA) == Path("/topics/7/seg-00000000000000000021.data")
    assert place.text(IDX) == str(place.file(IDX))


def test_parts_are_read_where_they_lie(disk: FakeDisk, three: Topic) -> None:
    place = resolve(three.dir, 21)
    assert bytes(place.load(disk, DATA).view) == disk.files()[place.file(DATA)]
    assert place.read_index(disk) == disk.files()[place.file(IDX)]
    file = place.open(disk, TAGS)
    assert file.pread(4, 0) == b"TTAG"
    file.close()


def test_a_missing_index_is_empty_and_missing_data_is_an_error(disk: FakeDisk, three: Topic) -> None:
    assert resolve(three.dir, 99).read_index(disk) == b""
    with pytest.raises(FileNotFoundError):
        resolve(three.dir, 99).load(disk, DATA)


def test_no_more_of_an_index_is_read_than_the_longest_has(
    disk: FakeDisk, three: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = resolve(three.dir, 1)
    whole = place.read_index(disk)
    monkeypatch.setattr(places, "_INDEX_MAX", 2 * ENTRY_BYTES)
    assert place.read_index(disk) == whole[: 2 * ENTRY_BYTES]


def test_segments_are_listed_in_order_without_strangers_and_what_was_cut(disk: FakeDisk, three: Topic) -> None:
    before = list_segments(disk, three.dir)
    assert before == {1: {DATA, IDX, TAGS}, 21: {DATA, IDX, TAGS}, 41: {DATA, IDX}}
    cut = resolve(three.dir, 41).file(CUT)
    unfinished = Path(f"{resolve(three.dir, 61).file(DATA)}.tmp")
    for path in (cut, unfinished, three.dir / "notes.txt"):
        disk.open(path, write=True, create=True).close()
    assert list_segments(disk, three.dir) == before
    left = [(one.path, one.first_seq, one.part) for one in list_files(disk, three.dir) if one.unfinished]
    assert left == [(unfinished, 61, DATA)]
    assert is_segment_name(cut.name)
    assert not is_segment_name("notes.txt")


def test_no_other_module_knows_how_the_files_of_a_segment_are_called() -> None:
    linked = {"shards", "cli", "ipc"}
    sources = [path for folder in linked for path in (ROOT / folder).rglob("*.py")]
    sources += [path for path in (ROOT / "topicd").rglob("*.py") if path.relative_to(ROOT).parts[1] not in linked]
    # The file channel has segments of its own.
    sources = [path for path in sources if "filechannel" not in path.parts]
    known = {
        path.relative_to(ROOT).as_posix()
        for path in sources
        if re.search(r"\b(segment_name|parse_segment)\(", path.read_text())
    }
    assert known == {"topicd/paths.py", "shards/storage/segment/places.py"}
