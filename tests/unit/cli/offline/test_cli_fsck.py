"""fsck: every kind of damage is found, nothing is written without --repair, and repair loses no readable record."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.unit.cli.datadir import Built, create_frame, frames
from tests.unit.cli.kit import run
from topicd.channel import ChannelConfig, ChannelState
from topicd.disk.datadir import take_lock
from topicd.frames import core
from topicd.model import TagMatch
from topicd.shards.delivery.channels.store import ChannelStore
from topicd.shards.delivery.channels.tallies import Tallies
from topicd.shards.storage.segment import tags
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.reader import SegmentReader

TOPIC = 5


@pytest.fixture
def stored(built: Built) -> Built:
    """Two sealed segments, an active one, marks, snapshots and a WAL."""
    built.segment(TOPIC, 1, 50, tag=b"t")
    built.segment(TOPIC, 51, 50)
    built.segment(TOPIC, 101, 20, sealed=False)
    built.marks(TOPIC, 1, (3, 4), (9, 9))
    built.snapshot((TOPIC, "orders"))
    built.snapshot((TOPIC, "orders"))
    built.wal(create_frame(TOPIC, "orders"), frames(TOPIC, 121, [b"record 121"]), frames(TOPIC, 122, [b"record 122"]))
    return built


def fsck(built: Built, *args: str) -> Result:
    return run("fsck", "--data-dir", str(built.data.root), *args)


def findings(done: Result, severity: str = "damage") -> list[dict[str, Any]]:
    return [finding for finding in json.loads(done.stdout)["findings"] if finding["severity"] == severity]


def part(built: Built, first: int, name: str) -> Path:
    return built.data.topic(TOPIC) / f"seg-{first:020d}.{name}"


def living(built: Built) -> set[int]:
    """What a daemon would serve from the segments."""
    directory = built.data.topic(TOPIC)
    loaded = load_segments(built.fs, directory)
    lost = {seq for d in loaded.damage if not d.repaired for seq in range(d.first_seq, d.last_seq + 1)}
    found = set()
    for info in loaded.segments:
        reader = SegmentReader(built.fs, directory, info).open()
        for seq in range(info.first_seq, info.last_seq + 1):
            if seq not in lost and seq not in loaded.marks.get(info.first_seq, ()):
                reader.verify(seq, seq)
                found.add(seq)
    return found


def test_a_sound_directory_is_sound(stored: Built) -> None:
    done = fsck(stored, "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert (found["damaged"], found["topics"], found["segments"], found["records"]) == (False, 1, 3, 120)
    assert found["wal"] == [{"shard": 0, "files": 1, "groups": 3, "frames": 3, "end_lsn": found["wal"][0]["end_lsn"]}]
    assert found["findings"] == []
    assert "no damage" in fsck(stored).stdout


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0xFF
    path.write_bytes(content)


def cut(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:-count])


Damage = tuple[Callable[[Built], None], str, set[int]]
DAMAGES: dict[str, Damage] = {
    "rotten record": (lambda b: b.damage_record(part(b, 51, "data"), b"record 77"), "frames cannot be read", {77}),
    "two rotten records": (
        lambda b: [b.damage_record(part(b, 51, "data"), text) for text in (b"record 60", b"record 90")],  # type: ignore[dict-item]
        "frames cannot be read",
        {60, 90},
    ),
    "rotten record in the newest": (
        lambda b: b.damage_record(part(b, 101, "data"), b"record 105"),
        "frames cannot be read",
        {105},
    ),
    "index": (lambda b: flip(part(b, 51, "idx"), 30), "index fails its checksum", set()),
    "index cut": (lambda b: cut(part(b, 51, "idx"), 7), "index fails its checksum", set()),
    "index missing": (lambda b: part(b, 51, "idx").unlink(), "index fails its checksum", set()),
    "seal": (lambda b: flip(part(b, 1, "tags"), 20), "seal cannot be read", set()),
    "tag table": (lambda b: flip(part(b, 1, "tags"), part(b, 1, "tags").stat().st_size - 1), "tag table fails", set()),
    "data cut": (lambda b: cut(part(b, 51, "data"), 30), "its seal says", {100}),
    "data cut in the newest": (lambda b: cut(part(b, 101, "data"), 30), "records that the index names", {120}),
    "mark": (lambda b: flip(part(b, 1, "del"), 3), "1 deletion marks cannot be read", set()),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_is_found_and_nothing_is_written(stored: Built, kind: str) -> None:
    damage, says, _ = DAMAGES[kind]
    damage(stored)
    before = {p: p.read_bytes() for p in stored.data.root.rglob("*") if p.is_file() and p != stored.data.lock}
    done = fsck(stored, "--json")
    assert done.exit_code == 1
    assert any(says in finding["what"] for finding in findings(done)), findings(done)
    after = {p: p.read_bytes() for p in stored.data.root.rglob("*") if p.is_file() and p != stored.data.lock}
    assert before == after
    assert "--repair` mends" in fsck(stored).stdout


@pytest.mark.parametrize("kind", DAMAGES)
def test_repair_keeps_every_readable_record(stored: Built, kind: str) -> None:
    damage, _, lost = DAMAGES[kind]
    damage(stored)
    done = fsck(stored, "--repair", "--json")
    assert done.exit_code == 1, "it was damaged, even if it is mended now"
    assert all(finding["action"] for finding in findings(done)), findings(done)
    deleted = {9} if kind == "mark" else {3, 4, 9}  # an unreadable mark deletes nothing
    assert living(stored) == set(range(1, 121)) - deleted - lost


@pytest.mark.parametrize("kind", DAMAGES)
def test_after_a_repair_there_is_nothing_to_repair(stored: Built, kind: str) -> None:
    DAMAGES[kind][0](stored)
    fsck(stored, "--repair")
    done = fsck(stored, "--json")
    assert findings(done) == []
    assert done.exit_code == 0


def test_a_rebuilt_tag_table_names_every_record_like_the_one_before(stored: Built) -> None:
    flip(part(stored, 1, "tags"), 20)
    fsck(stored, "--repair")
    table = tags.TagTable(stored.fs, stored.data.topic(TOPIC), 1).open()
    assert table.find(TagMatch(b"t")) == list(range(1, 51))


def test_unreadable_bytes_are_in_quarantine(stored: Built) -> None:
    data = part(stored, 51, "data")
    stored.damage_record(data, b"record 77")
    content = data.read_bytes()
    fsck(stored, "--repair")
    (kept,) = (stored.data.quarantine / "topics").rglob("*.data.*")
    start, end = map(int, kept.name.rpartition(".")[2].split("-"))
    assert kept.read_bytes() == content[start:end] and b"ecord 77" in kept.read_bytes()
    assert data.read_bytes() == content, "no byte of a sealed file changes"
    assert any("in quarantine since an earlier repair" in f["what"] for f in findings(fsck(stored, "--json"), "note"))


def test_replaced_files_are_in_quarantine(stored: Built) -> None:
    flip(part(stored, 1, "tags"), 20)
    old = part(stored, 1, "tags").read_bytes()
    fsck(stored, "--repair")
    assert (stored.data.quarantine / "topics" / f"{TOPIC:016x}" / part(stored, 1, "tags").name).read_bytes() == old


def test_a_second_repair_does_not_write_over_the_first(stored: Built) -> None:
    for at in (20, 21):
        flip(part(stored, 1, "tags"), at)
        fsck(stored, "--repair")
    kept = sorted(p.name for p in (stored.data.quarantine / "topics").rglob("seg-*1.tags*"))
    assert len(kept) == 2


def test_a_bad_snapshot_is_moved_away(stored: Built) -> None:
    newest = stored.data.snapshots(0) / "snapshot-2.bin"
    flip(newest, 30)
    done = fsck(stored, "--repair", "--json")
    assert "cannot be read" in findings(done)[0]["what"] and "moved to" in findings(done)[0]["action"]
    assert not newest.exists() and (stored.data.quarantine / "meta" / "shard-00" / newest.name).exists()
    assert fsck(stored).exit_code == 0


def test_a_seal_of_a_newer_version_is_left_alone(stored: Built) -> None:
    path = part(stored, 1, "tags")
    raw = bytearray(path.read_bytes())
    raw[4], size = 2, tags._HEADER.size
    raw[size : size + 8] = core.xxh3_64(bytes(raw[:size])).to_bytes(8, "little")
    path.write_bytes(raw)
    done = fsck(stored, "--repair", "--json")
    assert ["version 2" in finding["what"] for finding in findings(done)] == [True]
    assert path.read_bytes() == raw


def test_damage_in_the_wal_is_kept_and_not_cut(stored: Built) -> None:
    path = next(stored.data.wal_shard(0).glob("wal-*"))
    content = path.read_bytes()
    flip(path, content.index(b"TWG1", 10))
    damaged = path.read_bytes()
    done = fsck(stored, "--repair", "--json")
    assert "unreadable group" in findings(done)[0]["what"]
    assert path.read_bytes() == damaged
    (kept,) = (stored.data.quarantine / "wal").rglob("wal-*")
    assert b"record 121" in kept.read_bytes()
    assert fsck(stored).exit_code == 0


def test_a_bad_frame_in_the_wal_is_kept_alone(stored: Built) -> None:
    records = [b"record %d" % seq for seq in range(121, 126)]
    path = stored.wal(create_frame(TOPIC, "orders"), frames(TOPIC, 121, records), frames(TOPIC, 126, [b"record 126"]))
    stored.damage_record(path, b"record 123")
    done = fsck(stored, "--repair", "--json")
    assert done.exit_code == 1 and "bad frame" in findings(done)[0]["what"]
    assert json.loads(done.stdout)["wal"][0]["frames"] == 6, "those behind it are read"
    (kept,) = (stored.data.quarantine / "wal").rglob("wal-*")
    assert b"ecord 123" in kept.read_bytes() and b"record 12" not in kept.read_bytes()
    assert fsck(stored).exit_code == 0


def test_what_a_crash_leaves_is_no_damage(stored: Built) -> None:
    data = part(stored, 101, "data")
    data.write_bytes(data.read_bytes() + b"half a frame")
    marks = part(stored, 1, "del")
    marks.write_bytes(marks.read_bytes() + b"half")
    wal = next(stored.data.wal_shard(0).glob("wal-*"))
    content = bytearray(wal.read_bytes())
    content[content.rindex(b"record 122")] ^= 0xFF  # nothing says that it was synced
    wal.write_bytes(content)
    (stored.data.topics / "0000000000000009.deleted").mkdir()
    done = fsck(stored, "--json")
    assert done.exit_code == 0
    notes = " | ".join(finding["what"] for finding in findings(done, "note"))
    for said in ("bytes of a torn tail", "bytes of a torn mark", "torn tail behind LSN", "a deleted topic"):
        assert said in notes


def test_writes_that_were_never_synced_may_be_damaged(stored: Built) -> None:
    index = part(stored, 101, "idx")
    index.write_bytes(index.read_bytes()[: 10 * 20])  # it is written after the data was synced
    stored.damage_record(part(stored, 101, "data"), b"record 115")
    stored.wal(create_frame(TOPIC, "orders"), frames(TOPIC, 111, [b"record %d" % n for n in range(111, 123)]))
    done = fsck(stored, "--json")
    assert done.exit_code == 0
    assert "unsynced writes arrived out of order" in findings(done, "note")[0]["what"]
    stored.damage_record(part(stored, 101, "data"), b"record 105")
    damaged = fsck(stored, "--json")
    assert [(f["first_seq"], f["last_seq"]) for f in findings(damaged)] == [(105, 105)]


def test_a_missing_data_file_is_told_and_what_is_left_of_the_segment_makes_way(stored: Built) -> None:
    part(stored, 51, "data").unlink()
    done = fsck(stored, "--repair", "--json")
    assert done.exit_code == 1
    (finding,) = findings(done)
    assert (finding["what"], finding["first_seq"], finding["last_seq"]) == ("the data file is missing", 51, 100)
    assert finding["action"] == "what is left of the segment is in quarantine"
    assert not part(stored, 51, "idx").exists() and not part(stored, 51, "tags").exists()
    assert len(list(stored.data.quarantine.rglob("seg-*51.*"))) == 2
    (again,) = findings(fsck(stored, "--repair", "--json"))
    assert (again["what"], again["first_seq"], again["last_seq"]) == ("no segment has these records", 51, 100)


def test_missing_segments_are_told_unless_metadata_explains_them(stored: Built) -> None:
    for name in ("data", "idx", "tags"):
        part(stored, 51, name).unlink()
    assert findings(fsck(stored, "--json"))[0]["what"] == "no segment has these records"
    stored.snapshot((TOPIC, "orders"), gone=[[40, 100]])
    assert fsck(stored).exit_code == 0


def test_segments_that_overlap_are_damage(stored: Built) -> None:
    stored.segment(TOPIC, 95, 6)
    assert "overlaps the segment before it" in [finding["what"] for finding in findings(fsck(stored, "--json"))]


def test_a_file_of_the_log_in_the_place_of_data_takes_nothing_from_the_segments_behind_it(stored: Built) -> None:
    """It may hold records of the topic that belong to later segments."""
    log = (
        b"not a frame"
        + frames(TOPIC, 20, [b"record 20"])
        + frames(TOPIC, 49, [b"record %d" % n for n in range(49, 80)])
    )
    part(stored, 1, "data").write_bytes(log)
    assert fsck(stored, "--repair").exit_code == 1
    assert living(stored) == {20, 49, 50, *range(51, 121)}


def test_what_a_start_would_take_from_the_log_must_be_there(stored: Built) -> None:
    """Without an index nobody knows that a bad frame of the newest segment was durable; the log has nothing of it."""
    part(stored, 101, "idx").unlink()
    stored.damage_record(part(stored, 101, "data"), b"record 105")
    (finding,) = findings(fsck(stored, "--json"))
    assert (finding["first_seq"], finding["last_seq"]) == (105, 120)
    stored.wal(create_frame(TOPIC, "orders"), frames(TOPIC, 105, [b"record %d" % n for n in range(105, 123)]))
    assert findings(fsck(stored, "--json")) == []


def test_strangers_are_named_and_left_alone(stored: Built) -> None:
    strangers = [
        stored.data.root / "notes.txt",
        stored.data.topic(TOPIC) / "seg-1.data",
        stored.data.wal_shard(0) / "wal.log",
        stored.data.meta / "x",
    ]
    for path in strangers:
        path.write_text("mine")
    (stored.data.snapshots(0) / "snapshot-9.bin.tmp").write_text("ours, left by a crash")
    done = fsck(stored, "--repair", "--json")
    assert done.exit_code == 0
    assert {finding["path"] for finding in findings(done, "unknown")} == {str(path) for path in strangers}
    assert all(path.read_text() == "mine" for path in strangers)


def test_directories_of_no_topic_are_damage(stored: Built) -> None:
    stored.segment(77, 1, 3)
    assert "belongs to no topic" in findings(fsck(stored, "--json"))[0]["what"]


def test_identity_and_format(stored: Built) -> None:
    flip(stored.data.identity, 25)
    assert "identity.bin" in findings(fsck(stored, "--json"))[0]["path"]
    stored.data.identity.unlink()
    assert "is missing although there is data" in findings(fsck(stored, "--json"))[0]["what"]
    stored.data.format.write_text("nonsense")
    done = fsck(stored)
    assert done.exit_code == 1 and "FORMAT is damaged" in done.stderr


def test_a_directory_in_use_is_refused(stored: Built) -> None:
    fd = take_lock(stored.data, 0.0)
    try:
        done = fsck(stored)
    finally:
        os.close(fd)
    assert done.exit_code == 5
    assert f"pid {os.getpid()}" in done.stderr and "stop the daemon first" in done.stderr
    assert fsck(stored).exit_code == 0


def test_channels_that_cannot_be_read_are_named(stored: Built) -> None:
    data, fs = stored.data, stored.fs
    store = ChannelStore(fs, data, Tallies())
    kept = ChannelConfig(persist=True)
    hashes = [store.save(ChannelState(name, config=kept, type=kind, log="a")).hash for name, kind in CHANNELS]
    store.save_cursor(hashes[2], 5)
    assert findings(fsck(stored, "--json")) == []
    bad = store.metadata(hashes[1])
    bad.write_bytes(bad.read_bytes()[:-1] + b"?")
    store.cursor(hashes[2]).write_bytes(b"short")
    (data.channels / ("e" * 64)).mkdir()
    (data.channels / hashes[0] / "notes.txt").write_text("whose?")
    done = fsck(stored, "--json")
    assert {finding["path"] for finding in findings(done)} == {str(bad), str(store.cursor(hashes[2]))}
    assert [finding["path"] for finding in findings(done, "note")] == [str(data.channels / ("e" * 64))]
    assert [finding["path"] for finding in findings(done, "unknown")] == [str(data.channels / hashes[0] / "notes.txt")]
    assert json.loads(done.stdout)["channels"] == 4


CHANNELS = [("good", "pubsub"), ("bad", "pubsub"), ("queue", "fifo")]
