from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from topicd import paths
from topicd.disk import envelope
from topicd.shards.storage import snapshot
from topicd.shards.storage.snapshot import SnapshotStore

HOME = Path("/data/meta/shard-00")


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk(directories=[Path("/data")])


def rot(disk: FakeDisk, number: int) -> None:
    disk.damage(HOME / f"snapshot-{number}.bin", 25, b"\xee")


def test_nothing_saved_is_none(disk: FakeDisk) -> None:
    store = SnapshotStore(disk, HOME)
    assert store.load_newest() is None
    assert store.problems == []


def test_the_newest_comes_back_and_one_predecessor_stays(disk: FakeDisk) -> None:
    store = SnapshotStore(disk, HOME)
    assert [store.save({"n": n}) for n in range(4)] == [1, 2, 3, 4]
    assert SnapshotStore(disk, HOME).load_newest() == (4, {"n": 3})
    assert sorted(disk.listdir(HOME)) == ["snapshot-3.bin", "snapshot-4.bin"]


def test_numbers_go_on_after_a_restart(disk: FakeDisk) -> None:
    SnapshotStore(disk, HOME).save("a")
    assert SnapshotStore(disk, HOME).save("b") == 2


def test_a_corrupt_newest_falls_back_and_says_so(disk: FakeDisk) -> None:
    store = SnapshotStore(disk, HOME)
    store.save({"v": "one"})
    store.save({"v": "two"})
    rot(disk, 2)
    again = SnapshotStore(disk, HOME)
    assert again.load_newest() == (1, {"v": "one"})
    assert len(again.problems) == 1
    assert "snapshot-2.bin: checksum" in again.problems[0]


def test_after_a_fall_back_the_good_one_is_the_predecessor(disk: FakeDisk) -> None:
    store = SnapshotStore(disk, HOME)
    store.save({"v": "one"})
    store.save({"v": "two"})
    rot(disk, 2)
    again = SnapshotStore(disk, HOME)
    assert again.save({"v": "three"}) == 3
    assert sorted(disk.listdir(HOME)) == ["snapshot-1.bin", "snapshot-3.bin"]
    rot(disk, 3)
    assert SnapshotStore(disk, HOME).load_newest() == (1, {"v": "one"})


def test_all_corrupt_is_none_with_every_problem(disk: FakeDisk) -> None:
    store = SnapshotStore(disk, HOME)
    store.save({"v": "one"})
    store.save({"v": "two"})
    rot(disk, 1)
    rot(disk, 2)
    assert store.load_newest() is None
    assert len(store.problems) == 2
    assert store.save({"v": "three"}) == 3


def test_left_over_temporary_files_and_strangers(disk: FakeDisk) -> None:
    store = SnapshotStore(disk, HOME)
    store.save("a")
    for name in ("snapshot-9.bin.tmp", "notes.txt"):
        disk.open(HOME / name, write=True, create=True).close()
    assert store.save("b") == 2
    assert sorted(disk.listdir(HOME)) == ["notes.txt", "snapshot-1.bin", "snapshot-2.bin"]


def test_a_failure_to_prune_does_not_fail_the_save(disk: FakeDisk) -> None:
    SnapshotStore(disk, HOME).save("a")
    SnapshotStore(disk, HOME).save("b")
    failing = FaultFs(disk, fail_at=1, always=True, only=lambda name, path: name == "unlink")
    assert SnapshotStore(failing, HOME).save("c") == 3
    assert SnapshotStore(disk, HOME).load_newest() == (3, "c")
    assert SnapshotStore(disk, HOME).save("d") == 4
    assert sorted(disk.listdir(HOME)) == ["snapshot-3.bin", "snapshot-4.bin"]


def test_an_unreadable_newest_falls_back(disk: FakeDisk) -> None:
    store = SnapshotStore(disk, HOME)
    store.save("a")
    store.save("b")
    failing = FaultFs(disk, fail_at=1, reads=True, only=lambda name, path: name == "pread")
    again = SnapshotStore(failing, HOME)
    assert again.load_newest() == (1, "a")
    assert "Input/output error" in again.problems[0]


OTHER = HOME.with_name("shard-01")


def run_number(run: int, count: int) -> int:
    return (run << 32) + count


def test_numbers_of_a_later_run_are_higher(disk: FakeDisk) -> None:
    assert SnapshotStore(disk, HOME, run=5).save("a") == run_number(5, 1)
    assert SnapshotStore(disk, HOME, run=5).save("b") == run_number(5, 2)
    assert SnapshotStore(disk, HOME, run=6).save("c") == run_number(6, 1)
    assert SnapshotStore(disk, HOME).load_newest() == (run_number(6, 1), "c")


def test_snapshots_of_earlier_runs_stay_until_every_shard_has_two(disk: FakeDisk) -> None:
    for number in range(3):
        SnapshotStore(disk, HOME, run=1).save(f"old {number}", [HOME])
    siblings = [HOME, OTHER]
    mine, other = SnapshotStore(disk, HOME, run=2), SnapshotStore(disk, OTHER, run=2)
    for number in range(3):
        mine.save(f"new {number}", siblings)
    assert SnapshotStore(disk, HOME).load_by_run() == [
        (run_number(1, 3), "old 2"),
        (run_number(2, 3), "new 2"),
    ]
    other.save("x", siblings)
    other.save("y", siblings)
    mine.save("new 3", siblings)
    assert SnapshotStore(disk, HOME).load_by_run() == [(run_number(2, 4), "new 3")]
    assert len(SnapshotStore(disk, HOME).numbers()) == 2


def test_a_corrupt_one_of_a_run_falls_back_inside_the_run(disk: FakeDisk) -> None:
    store = SnapshotStore(disk, HOME, run=2)
    store.save({"v": "one"})
    number = store.save({"v": "two"})
    rot(disk, number)
    again = SnapshotStore(disk, HOME)
    assert again.load_by_run() == [(run_number(2, 1), {"v": "one"})]
    assert len(again.problems) == 1


def entries(count: int) -> dict[str, object]:
    topics = [{"id": n, "name": f"t{n}", "x": f"{count:0100d}"} for n in range(count)]
    return {"run": 1, "shard": 0, "shards": 1, "topics": topics}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "PART_BYTES", 1000)


def test_a_body_too_large_for_one_file_is_written_in_parts(disk: FakeDisk, small_parts: None) -> None:
    store = SnapshotStore(disk, HOME)
    for count in (5, 50, 60):
        store.save(entries(count))
        assert SnapshotStore(disk, HOME).load_newest() == (store.numbers()[-1], entries(count))
    assert {paths.parse_snapshot(n) or paths.parse_snapshot_part(n) for n in disk.listdir(HOME)} == {2, 3}
    assert len(disk.listdir(HOME)) > 10
    assert all(len(content) < 1200 for content in disk.files().values())


def test_a_snapshot_with_one_bad_part_is_passed_over_whole(disk: FakeDisk, small_parts: None) -> None:
    store = SnapshotStore(disk, HOME)
    store.save(entries(20))
    store.save(entries(21))
    parts = [path for path in disk.files() if paths.parse_snapshot_part(path.name) == 2]
    assert len(parts) == 3
    for path in parts:
        for change in ("flip", "missing", "other"):
            image = disk.image(1)
            if change == "flip":
                image.damage(path, 500, bytes([image.files()[path][500] ^ 1]))
            elif change == "missing":
                image.unlink(path)
            else:
                other = image.files()[path.with_name(path.name.replace("-2.", "-1."))]
                image.unlink(path)
                image.open(path, write=True, create=True).pwrite([other], 0)
            again = SnapshotStore(image, HOME)
            assert again.load_newest() == (1, entries(20))
            assert len(again.problems) == 1


def test_parts_are_durable_before_the_snapshot_that_names_them(disk: FakeDisk, small_parts: None) -> None:
    SnapshotStore(disk, HOME).save(entries(20))
    counting = FaultFs(disk.image(1))
    SnapshotStore(counting, HOME).save(entries(30))
    for call in range(1, counting.count + 1):
        faults = FaultFs(disk.image(1))
        faults.crash_after = call
        with suppress(Crashed):
            SnapshotStore(faults, HOME).save(entries(30))
        for seed in range(7):
            found = SnapshotStore(faults.inner.image(seed), HOME)
            assert found.load_newest() in ((1, entries(20)), (2, entries(30))), (call, seed)
            assert found.problems == []


@pytest.mark.parametrize("part_bytes", [snapshot.PART_BYTES, 4 << 20])
def test_many_topics_are_never_put_together_as_one(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch, part_bytes: int
) -> None:
    """Bytes of many megabytes keep the interpreter's lock while they are made; the file is the same in pieces."""
    monkeypatch.setattr(snapshot, "PART_BYTES", part_bytes)
    pieces: list[int] = []
    enclosed = envelope.enclosed

    def watched(path: Path, magic: bytes, version: int, given: Sequence[bytes], most: int = 0) -> list[bytes]:
        made = enclosed(path, magic, version, given, most)
        pieces.extend(map(len, made))
        return made

    monkeypatch.setattr(envelope, "enclosed", watched)
    topics = [{"id": number, "name": "x" * 1_000} for number in range(8_000)]
    SnapshotStore(disk, HOME).save({"run": 1, "topics": topics})
    assert SnapshotStore(disk, HOME).load_newest() == (1, {"run": 1, "topics": topics})
    assert sum(pieces) > 8_000_000 and max(pieces) < 256_000


@pytest.mark.fault("ROTT-13")
def test_a_topic_of_which_there_is_more_to_say_than_a_small_file_holds(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue whose jobs have keys, for example. It was never in any snapshot again, nor were the others."""
    monkeypatch.setattr(snapshot, "SMALL_FILE_MAX", 100_000)
    monkeypatch.setattr(envelope, "SMALL_FILE_MAX", 100_000)
    monkeypatch.setattr(snapshot, "PART_BYTES", 50_000)
    huge = {"id": 2, "name": "x" * 400_000}
    for topics in ([huge], [{"id": 1, "name": "a"}, huge, {"id": 3, "name": "b"}], [{"id": 4, "name": "y" * 60_000}]):
        store = SnapshotStore(disk, HOME)
        number = store.save({"run": 1, "topics": topics})
        assert SnapshotStore(disk, HOME).load_newest() == (number, {"run": 1, "topics": topics})
        snapshot.check_snapshot(disk, HOME / paths.snapshot_name(number))


def test_a_large_part_that_rots_is_passed_over_with_its_snapshot(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "SMALL_FILE_MAX", 100_000)
    monkeypatch.setattr(snapshot, "PART_BYTES", 50_000)
    store = SnapshotStore(disk, HOME)
    store.save({"run": 1, "topics": []})
    store.save({"run": 2, "topics": [{"id": 2, "name": "x" * 400_000}]})
    (path,) = (path for path in disk.files() if "part" in path.name)
    disk.damage(path, 200_000, b"?")
    assert SnapshotStore(disk, HOME).load_newest() == (1, {"run": 1, "topics": []})
