"""Every byte of every small file of a segment, one after the other; files that are exchanged, empty, missing or not
ours; and what a snapshot has on record of deleted records.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.unit.storage.segment_kit import Topic, contents, payload, seqs
from topicd.model import TagMatch
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import append_marks
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.lookup import SegmentLookup
from topicd.shards.storage.segment.settle_marks import RANGES_ON_RECORD, DeadOnRecord, on_record

DEAD = [(3, 5), (9, 9)]
RECORD = {1: on_record(Ranges(DEAD), None)}


@pytest.fixture
def topic(disk: FakeDisk) -> Topic:
    """Two sealed segments and an open one; of the first some records are deleted."""
    topic = Topic()
    topic.append(disk, 10, seal=True)
    topic.append(disk, 10, seal=True)
    topic.append(disk, 5)
    append_marks(disk, topic.dir, 1, DEAD)
    disk.sync_filesystem(Path("/"))
    return topic


def put(disk: FakeDisk, path: Path, content: bytes) -> None:
    disk.unlink(path, missing_ok=True)
    disk.open(path, write=True, create=True).pwrite([content], 0)
    disk.sync_filesystem(Path("/"))


def living() -> list[int]:
    return seqs(1, 25, DEAD)


@pytest.mark.fault("ROTT-03", "ROTT-04")
@pytest.mark.parametrize("part", ["tags", "idx", "del"])
@pytest.mark.parametrize("first", [1, 11, 21])
def test_every_flipped_byte_of_a_small_file_costs_nothing(disk: FakeDisk, topic: Topic, part: str, first: int) -> None:
    path = topic.file(part, first)
    if not disk.exists(path):
        return
    raw = disk.files()[path]
    for at in range(len(raw)):
        image = disk.image(1)
        image.damage(path, at, bytes([raw[at] ^ (1 << at % 8)]))
        found = contents(image, topic.dir, RECORD)
        assert sorted(found.records) == living(), at
        assert all(data == payload(seq) for seq, data in found.records.items()), at
        again = contents(image, topic.dir, RECORD)
        assert again.records == found.records and again.loaded.damage == [], at


@pytest.mark.fault("ROTT-04")
@pytest.mark.parametrize("change", ["last mark", "first mark", "empty", "missing", "of another", "cut"])
def test_deleted_records_do_not_come_back_when_marks_rot(disk: FakeDisk, topic: Topic, change: str) -> None:
    append_marks(disk, topic.dir, 11, [(12, 12), (14, 14)])
    record = {**RECORD, 11: on_record(Ranges([(12, 12), (14, 14)]), None)}
    path = topic.file("del", 1)
    raw = disk.files()[path]
    changed = {
        "last mark": raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:],
        "first mark": bytes([raw[0] ^ 1]) + raw[1:],
        "empty": b"",
        "of another": disk.files()[topic.file("del", 11)],
        "cut": raw[:30],
    }
    disk.unlink(path)
    if change != "missing":
        put(disk, path, changed[change])
    found = contents(disk, topic.dir, record)
    assert sorted(found.records) == [seq for seq in living() if seq not in (12, 14)]
    assert [(d.path, d.repaired) for d in found.loaded.damage] == [(path, True)]
    assert contents(disk, topic.dir, record).loaded.damage == []
    if changed.get(change):
        kept = Path("/data/quarantine/topics") / topic.dir.name / path.name
        assert disk.files()[kept] == changed[change]


@pytest.mark.fault("ROTT-04")
def test_marks_too_many_to_be_listed_are_counted_and_never_served_as_records(disk: FakeDisk) -> None:
    topic = Topic()
    count = 2 * RANGES_ON_RECORD + 10
    topic.append(disk, count, seal=True)
    dead = [(seq, seq) for seq in range(1, count, 2)]
    append_marks(disk, topic.dir, 1, dead)
    record = {1: on_record(Ranges(dead), None)}
    assert record[1] == DeadOnRecord(len(dead), None)
    assert contents(disk, topic.dir, record).loaded.damage == []
    raw = disk.files()[topic.file("del", 1)]
    put(disk, topic.file("del", 1), raw[:-24])
    loaded = load_segments(disk, topic.dir, record)
    assert [(d.first_seq, d.last_seq, d.repaired) for d in loaded.damage] == [(1, count, False)]
    assert "1 deleted records cannot be told from the others" in loaded.damage[0].what


@pytest.mark.fault("ROTT-03")
def test_a_rotten_tag_table_is_made_from_the_data(disk: FakeDisk, topic: Topic) -> None:
    path = topic.file("tags", 11)
    expected = SegmentLookup(disk, topic.dir, load_segments(disk, topic.dir).segments[1]).open().find(TagMatch(b"red"))
    assert expected
    for at in range(96, len(disk.files()[path])):
        image = disk.image(1)
        image.damage(path, at, bytes([image.files()[path][at] ^ 0xFF]))
        info = load_segments(image, topic.dir).segments[1]
        assert SegmentLookup(image, topic.dir, info).open().find(TagMatch(b"red")) == expected


@pytest.mark.fault("SWAP-01")
@pytest.mark.parametrize(("one", "other"), [(1, 11), (11, 21), (1, 21)])
def test_exchanged_data_files_come_back_to_their_places(disk: FakeDisk, topic: Topic, one: int, other: int) -> None:
    a, b = topic.file("data", one), topic.file("data", other)
    content_a, content_b = disk.files()[a], disk.files()[b]
    put(disk, a, content_b)
    put(disk, b, content_a)
    found = contents(disk, topic.dir, RECORD)
    assert sorted(found.records) == living()
    assert all(damage.repaired for damage in found.loaded.damage) and len(found.loaded.damage) == 2
    assert (disk.files()[a], disk.files()[b]) == (content_a, content_b)
    assert contents(disk, topic.dir, RECORD).loaded.damage == []


@pytest.mark.fault("SWAP-01")
def test_exchange_between_topics_is_undone_by_their_starts(disk: FakeDisk, topic: Topic) -> None:
    other = Topic(topic_id=8)
    other.append(disk, 12, seal=True)
    other.append(disk, 3)
    mine, theirs = topic.file("data", 11), other.file("data", 1)
    content_mine, content_theirs = disk.files()[mine], disk.files()[theirs]
    put(disk, mine, content_theirs)
    put(disk, theirs, content_mine)
    first = contents(disk, topic.dir, RECORD)
    assert sorted(first.records) == [seq for seq in living() if not 11 <= seq <= 20]
    assert [(d.first_seq, d.last_seq) for d in first.loaded.damage if not d.repaired] == [(11, 20)]
    assert sorted(contents(disk, other.dir).records) == list(range(1, 16))
    assert sorted(contents(disk, topic.dir, RECORD).records) == living()


@pytest.mark.fault("SWAP-02")
@pytest.mark.parametrize("first", [1, 11, 21])
def test_data_of_another_topic_is_reported_kept_and_never_served(disk: FakeDisk, topic: Topic, first: int) -> None:
    foreign = Topic(topic_id=99)
    foreign.append(disk, 4)
    content = disk.files()[foreign.file("data")]
    put(disk, topic.file("data", first), content)
    found = contents(disk, topic.dir, RECORD)
    covered = set(range(first, first + 10))
    assert sorted(found.records) == [seq for seq in living() if seq not in covered]
    reported = [(d.first_seq, d.last_seq) for d in found.loaded.damage] + [
        (c.first_seq, c.last_seq) for c in found.loaded.cuts
    ]
    assert any(a <= first <= b for a, b in reported)
    kept = [path for path, data in disk.files().items() if data == content and "quarantine" in path.parts]
    assert len(kept) == 1


@pytest.mark.fault("SWAP-03")
@pytest.mark.parametrize("part", ["data", "idx", "tags", "del"])
@pytest.mark.parametrize("first", [1, 11, 21])
def test_directory_in_place_of_a_file_is_put_aside(disk: FakeDisk, topic: Topic, part: str, first: int) -> None:
    path = topic.file(part, first)
    if not disk.exists(path):
        return
    disk.unlink(path)
    disk.mkdir(path / "inside")
    found = contents(disk, topic.dir, RECORD)
    lost = set(range(first, first + 10)) if part == "data" else set()
    assert sorted(found.records) == [seq for seq in living() if seq not in lost]
    assert any(damage.path == path for damage in found.loaded.damage)
    assert disk.exists(Path("/data/quarantine/topics") / topic.dir.name / path.name / "inside")


def test_an_index_of_another_segment_is_not_believed(disk: FakeDisk, topic: Topic) -> None:
    """It tiles, and it ends inside the data; but the frames are elsewhere."""
    wrong = Topic(topic_id=8, size=3)
    wrong.append(disk, 3)
    put(disk, topic.file("idx", 21), disk.files()[wrong.file("idx")])
    found = contents(disk, topic.dir, RECORD)
    assert sorted(found.records) == living()
    assert [d for d in found.loaded.damage if not d.repaired] == []


@pytest.mark.fault("ROTT-03")
@pytest.mark.parametrize("first", [1, 11])
def test_an_index_that_is_gone_beside_data_that_is_empty_is_damage_and_no_end(
    disk: FakeDisk, topic: Topic, first: int
) -> None:
    disk.unlink(topic.file("idx", first))
    put(disk, topic.file("data", first), b"")
    found = contents(disk, topic.dir, RECORD)
    assert sorted(found.records) == [seq for seq in living() if not first <= seq <= first + 9]
    assert any(d.first_seq <= first <= d.last_seq and not d.repaired for d in found.loaded.damage)
