"""Names on disk, in the run directory and in shared memory: made and parsed by the same module."""

from __future__ import annotations

from pathlib import Path

import pytest

from topicd import paths

CASES = {
    "wal file": (paths.wal_file_name, paths.parse_wal_file, [0, 1, 2**26, 2**64 - 1]),
    "spare file": (paths.spare_file_name, paths.parse_spare_file, [0, 7, 10**9]),
    "shard directory": (paths.shard_dir_name, paths.parse_shard_dir, [0, 7, 63, 255]),
    "snapshot": (paths.snapshot_name, paths.parse_snapshot, [0, 1, 10**9]),
}
STRANGERS = [
    "",
    ".",
    "..",
    "x",
    "wal-.log",
    "wal-0.log",
    "spare-.log",
    "shard-",
    "shard-1",
    "snapshot-.bin",
    "seg-1.data",
]


@pytest.mark.parametrize("what", CASES)
def test_a_name_that_was_made_is_parsed_back(what: str) -> None:
    make, parse, numbers = CASES[what]
    for number in numbers:
        assert parse(make(number)) == number


@pytest.mark.parametrize("what", CASES)
def test_a_stranger_is_not_ours(what: str) -> None:
    make, parse, numbers = CASES[what]
    name = make(numbers[1])
    for stranger in [*STRANGERS, name + "x", "x" + name, name + "\n", name.upper(), name + ".tmp"]:
        if stranger != name:
            assert parse(stranger) is None, stranger


def test_wal_files_sort_by_lsn_as_text() -> None:
    numbers = [0, 1, 255, 256, 2**26, 2**40, 2**64 - 1]
    assert sorted(paths.wal_file_name(n) for n in reversed(numbers)) == [paths.wal_file_name(n) for n in numbers]


def test_topic_directories_say_whether_they_are_on_their_way_out() -> None:
    name = paths.topic_dir_name(0xABC)
    assert name == "0000000000000abc"
    assert paths.parse_topic_dir(name) == (0xABC, False)
    assert paths.parse_topic_dir(name + ".deleted") == (0xABC, True)
    for stranger in ("abc", name + ".old", name.upper(), "lost+found"):
        assert paths.parse_topic_dir(stranger) is None


def test_segments_sort_by_their_first_seq_as_text() -> None:
    assert paths.segment_name(1, "data") == "seg-00000000000000000001.data"
    for part in ("data", "idx", "tags", "del", "cut"):
        assert paths.parse_segment(paths.segment_name(2**63 - 1, part)) == (2**63 - 1, part)
    for stranger in ("seg-1.data", "seg-00000000000000000001.tmp", "seg-00000000000000000001"):
        assert paths.parse_segment(stranger) is None
    names = [paths.segment_name(n, "idx") for n in (1, 9, 10, 10**18)]
    assert sorted(names) == names


def test_the_data_directory_is_laid_out_as_documented() -> None:
    data = paths.DataDir(Path("/d"))
    assert [str(p) for p in (data.lock, data.format, data.identity, data.snapshots(3))] == [
        "/d/LOCK",
        "/d/FORMAT",
        "/d/meta/identity.bin",
        "/d/meta/shard-03",
    ]
    assert str(data.wal_shard(11)) == "/d/wal/shard-11"
    assert str(data.topic(255)) == "/d/topics/00000000000000ff"


def test_the_run_directory_is_laid_out_as_documented() -> None:
    run = paths.RunDir(Path("/r"))
    assert (str(run.socket), str(run.delivery_socket(5))) == ("/r/topicd.sock", "/r/dlv-05.sock")


def test_regions_of_an_instance_share_its_prefix() -> None:
    instance = "0123456789abcdef"
    names = [
        paths.ring_shm(instance, 1, 12),
        paths.wal_state_shm(instance, 1),
        paths.stats_shm(instance, "wal-01"),
        paths.bells_shm(instance),
    ]
    assert names == [f"/topicd.{instance}.{part}" for part in ("ring.01.12", "walstate.01", "stats.wal-01", "bells")]
    assert all(name.startswith(paths.shm_prefix(instance)) for name in names)
