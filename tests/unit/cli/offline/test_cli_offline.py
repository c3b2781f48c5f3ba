"""wal dump, segment dump, snapshot: looking into a data directory."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.datadir import Built, create_frame, frames
from tests.unit.cli.kit import run
from topicd.frames import producer_frame


def dump(built: Built, *args: str) -> list[dict[str, object]]:
    done = run(*args, "--data-dir", str(built.data.root), "--json")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def logged(built: Built) -> Built:
    built.wal(
        create_frame(5, "orders"),
        producer_frame(5, 1, 1, 99, 1, 2) + frames(5, 1, [b"a", b"b"], b"t"),
        frames(6, 1, [b"\xff"]),
    )
    return built


# ---- WAL ----


def test_wal_frames_are_printed_in_order(logged: Built) -> None:
    lines = dump(logged, "wal", "dump")
    assert [(line["type"], line["topic"], line["seq"]) for line in lines] == [
        ("topic_create", "orders", 0),
        ("producer", "orders", 1),
        ("append", "orders", 1),
        ("append", "orders", 2),
        ("append", None, 1),
    ]
    assert lines[2]["data"] == "a" and lines[2]["tag"] == "t"
    assert lines[1]["body"] == {"producer_id": 99, "batch_no": 1, "first_seq": 1, "count": 2}
    assert lines[4]["data"] == {"base64": "/w=="}
    assert [line["lsn"] for line in lines] == sorted({line["lsn"] for line in lines})  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("args", "count"),
    [
        (["--topic", "orders"], 4),
        (["--topic", "0000000000000006"], 1),
        (["--type", "append"], 3),
        (["--limit", "2"], 2),
        (["--shard", "3"], 0),
        (["--groups"], 3),
        (["--from-lsn", "100000"], 0),
    ],
)
def test_wal_dump_can_be_narrowed(logged: Built, args: list[str], count: int) -> None:
    assert len(dump(logged, "wal", "dump", *args)) == count


def test_wal_dump_in_words(logged: Built) -> None:
    done = run("wal", "dump", "-d", str(logged.data.root), "--type", "append")
    assert "append        orders#1" in done.stdout and done.stdout.splitlines()[0].endswith("[t]  a")
    groups = run("wal", "dump", "-d", str(logged.data.root), "--groups").stdout.splitlines()
    assert len(groups) == 3 and "3 frames" in groups[1]


def test_wal_dump_prints_what_lies_around_damage_and_fails(logged: Built) -> None:
    path = next(logged.data.wal_shard(0).glob("wal-*"))
    content = bytearray(path.read_bytes())
    content[content.index(b"TWG1", 10)] ^= 1  # the second group's header
    path.write_bytes(content)
    done = run("wal", "dump", "-d", str(logged.data.root), "--json")
    assert [json.loads(line)["topic_id"] for line in done.stdout.splitlines()] == [5, 6]
    assert done.exit_code == 1
    assert "damage: " in done.stderr and "unreadable group" in done.stderr


def test_wal_dump_reads_on_behind_a_bad_frame(built: Built) -> None:
    path = built.wal(create_frame(5, "orders"), frames(5, 1, [b"one", b"two", b"three"]), frames(5, 4, [b"four"]))
    built.damage_record(path, b"two")
    at = path.read_bytes().index(b"wo") - 1 - 38
    done = run("wal", "dump", "-d", str(built.data.root), "--type", "append", "--json")
    assert [json.loads(line)["data"] for line in done.stdout.splitlines()] == ["one", "three", "four"]
    assert done.exit_code == 1 and f"bad frame at LSN {at} " in done.stderr


def test_an_unknown_topic_suggests_a_near_one(logged: Built) -> None:
    done = run("wal", "dump", "-d", str(logged.data.root), "--topic", "order")
    assert done.exit_code == 4 and "did you mean orders?" in done.stderr


# ---- segments ----


@pytest.fixture
def stored(built: Built) -> Built:
    built.segment(5, 1, 10, tag=b"t")
    built.segment(5, 11, 5, sealed=False)
    built.marks(5, 1, (3, 4))
    built.snapshot((5, "orders"))
    return built


def test_segment_dump_prints_the_living(stored: Built) -> None:
    lines = dump(stored, "segment", "dump", "orders")
    assert [line["seq"] for line in lines] == [1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
    assert lines[0] == {
        "seq": 1,
        "ts": lines[0]["ts"],
        "tag": "t",
        "node": None,
        "meta": {},
        "data": "record 1",
        "segment": 1,
        "deleted": False,
    }


def test_segment_dump_may_show_the_deleted(stored: Built) -> None:
    lines = dump(stored, "segment", "dump", "orders", "--deleted", "--from", "2", "--limit", "3")
    assert [(line["seq"], line["deleted"]) for line in lines] == [(3, True), (4, True), (5, False)]
    text = run("segment", "dump", "orders", "-d", str(stored.data.root), "--deleted").stdout
    assert "deleted  [t]  record 3" in text


def test_segment_dump_passes_over_what_is_damaged(stored: Built) -> None:
    data = stored.data.topic(5) / f"seg-{1:020d}.data"
    stored.damage_record(data, b"record 7")
    done = run("segment", "dump", "orders", "-d", str(stored.data.root), "--json")
    assert done.exit_code == 1
    assert 7 not in [json.loads(line)["seq"] for line in done.stdout.splitlines()]
    assert "records 7 to 7 cannot be read" in done.stderr


def test_segment_verify_says_which_is_damaged(stored: Built) -> None:
    where = str(stored.data.root)
    assert run("segment", "verify", "orders", "-d", where).exit_code == 0
    stored.damage_record(stored.data.topic(5) / f"seg-{1:020d}.data", b"record 7")
    done = run("segment", "verify", "-d", where, "--json")
    assert done.exit_code == 1
    assert [report["damaged"] for report in json.loads(done.stdout)] == [True, False]


def test_looking_changes_nothing(stored: Built) -> None:
    before = {path: path.read_bytes() for path in stored.data.root.rglob("*") if path.is_file()}
    for args in (("wal", "dump"), ("segment", "dump", "orders"), ("segment", "verify"), ("snapshot", "list")):
        run(*args, "-d", str(stored.data.root))
    assert {path: path.read_bytes() for path in stored.data.root.rglob("*") if path.is_file()} == before


# ---- snapshots ----


def test_snapshots_are_listed_and_shown(stored: Built) -> None:
    stored.snapshot((5, "orders"), (6, "more"))
    listed = json.loads(run("snapshot", "list", "-d", str(stored.data.root), "--json").stdout)
    assert [(row["number"], row["topics"], row["problem"]) for row in listed] == [(1, 1, None), (2, 2, None)]
    where = ("-d", str(stored.data.root), "--shard", "0", "--json")
    assert len(json.loads(run("snapshot", "show", *where).stdout)["topics"]) == 2
    assert len(json.loads(run("snapshot", "show", *where, "--number", "1").stdout)["topics"]) == 1
    missing = run("snapshot", "show", *where, "--number", "9")
    assert missing.exit_code == 4 and "there are 1, 2" in missing.stderr


def test_a_damaged_snapshot_is_named(stored: Built) -> None:
    path = stored.snapshot((5, "orders"))
    path.write_bytes(path.read_bytes()[:-1])
    done = run("snapshot", "list", "-d", str(stored.data.root))
    assert done.exit_code == 1 and "size is" in done.stdout
    assert run("snapshot", "show", "-d", str(stored.data.root), "--shard", "0").exit_code == 1


# ---- where ----


def test_a_directory_that_is_none_of_ours(tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    for args in (("fsck",), ("wal", "dump")):
        done = run(*args, "-d", str(empty))
        assert done.exit_code == 4 and "no FORMAT" in done.stderr
    assert list(empty.iterdir()) == []
    assert run("fsck", "-d", str(empty / "missing")).exit_code == 4


def test_the_settings_say_where_the_data_is(stored: Built) -> None:
    done = run("segment", "verify", env={"TOPICD_DATA_DIR": str(stored.data.root)})
    assert done.exit_code == 0 and "orders" in done.stdout
