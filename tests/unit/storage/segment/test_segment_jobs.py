from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from tests.support.monitorfs import MonitorFs
from tests.unit.storage.segment_kit import TOPICS, Topic, contents, intact, seqs
from topicd.disk import steps
from topicd.errors import StorageCorrupt, StorageFailed
from topicd.shards.storage.segment.jobs import SINGLE_SEALS, SINGLE_SYNCS, AppendJob, SealJob, run_checkpoint
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.seal import seal_segment


def on(operation: str, suffix: str = "") -> Callable[[str, Path], bool]:
    return lambda name, path: name == operation and path.name.endswith(suffix)


def test_what_is_stored_survives_every_crash(disk: FakeDisk, topic: Topic) -> None:
    topic.append(MonitorFs(disk), 20)
    topic.append(MonitorFs(disk), 20)
    for seed in range(30):
        found = contents(disk.image(seed), topic.dir)
        intact(found, topic)
        assert list(found.records) == seqs(1, 40), seed


def test_the_data_is_the_frames_unchanged(disk: FakeDisk, topic: Topic) -> None:
    first, second = topic.job(3), topic.job(4)
    run_checkpoint(disk, [first])
    run_checkpoint(disk, [second])
    parts = [bytes(part) for job in (first, second) for part in job.data]
    assert disk.files()[topic.file("data")] == b"".join(parts)
    assert disk.files()[topic.file("idx")] == first.index + second.index


@pytest.mark.parametrize(("piece", "writes"), [(1, 4), (10_000, 2)])
def test_a_long_write_is_the_same_bytes_in_pieces(
    disk: FakeDisk, topic: Topic, piece: int, writes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "LONG", 100)
    monkeypatch.setattr(steps, "PIECE", piece)
    jobs = [topic.job(3), topic.job(40)]  # each in two parts
    fs = FaultFs(disk)
    for job in jobs:
        run_checkpoint(fs, [job])
    assert disk.files()[topic.file("data")] == b"".join(bytes(part) for job in jobs for part in job.data)
    assert len([path for name, path in fs.calls if name == "pwrite" and path.suffix == ".data"]) == writes


@pytest.mark.parametrize("seal", [False, True])
def test_what_no_log_has_is_stored_when_its_index_is_synced(disk: FakeDisk, topic: Topic, seal: bool) -> None:
    fs = FaultFs(disk)
    assert run_checkpoint(fs, [topic.job(5, seal)._replace(direct=True)])[0].stored
    synced = [name for name, path in fs.calls if path.suffix == ".idx" and name == "sync_data"]
    assert len(synced) == 1


@pytest.mark.parametrize("direct", [False, True])
def test_without_its_seal_only_what_the_log_has_is_stored(disk: FakeDisk, topic: Topic, direct: bool) -> None:
    fs = FaultFs(disk, fail_at=1, only=on("rename", ".tags"))
    result = run_checkpoint(fs, [topic.job(5, seal=True)._replace(direct=direct)])[0]
    assert (result.ok, result.stored) == (False, not direct)


def test_a_seal_without_new_data(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 20)
    job = AppendJob(topic.dir, 1, topic.data_offset, [], b"", topic.index_offset, seal=SealJob(created_ms=5))
    result = run_checkpoint(MonitorFs(disk), [job])[0]
    assert result.ok
    assert result.sealed is not None
    assert (result.sealed.count, result.sealed.created_ms, result.sealed.sealed) == (20, 5, True)
    assert load_segments(disk.image(0), topic.dir).segments == [result.sealed]


@pytest.mark.parametrize("seals", [1, SINGLE_SEALS + 1])
def test_segment_written_whole_has_the_seal_that_reading_it_gives(disk: FakeDisk, topic: Topic, seals: int) -> None:
    fs = FaultFs(disk, reads=True)
    results = run_checkpoint(fs, [topic.job(9, seal=True) for _ in range(seals)])
    assert not [name for name, path in fs.calls if name in ("map", "pread") and path.suffix in (".data", ".idx")]
    made = disk.files()
    for result in results:
        assert result.sealed is not None
        tags = topic.file("tags", result.sealed.first_seq)
        disk.unlink(tags)
        read = seal_segment(disk, topic.dir, result.sealed.first_seq, created_ms=result.sealed.created_ms)
        assert read.info == result.sealed
        assert disk.files()[tags] == made[tags]


def test_seal_makes_the_index_durable_before_it_speaks_of_it(disk: FakeDisk, topic: Topic) -> None:
    fs = MonitorFs(disk)
    topic.append(fs, 5)
    assert disk.unsynced()
    seal_segment(fs, topic.dir, 1)
    assert disk.unsynced() == []


def test_segment_that_was_there_before_is_read_when_it_is_sealed(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 5)
    disk.open(topic.file("data"), write=True).pwrite([b"?"], 60)
    [result] = run_checkpoint(disk, [topic.job(5, seal=True)])
    assert [(damage.first_seq, damage.last_seq) for damage in result.damage] == [(1, 1)]


def test_many_segments_of_one_topic_in_one_checkpoint(disk: FakeDisk, topic: Topic) -> None:
    jobs = [topic.job(5, seal=True), topic.job(5, seal=True), topic.job(5)]
    results = run_checkpoint(MonitorFs(disk), jobs)
    assert [result.stored for result in results] == [True] * 3
    found = contents(disk.image(0), topic.dir)
    intact(found, topic)
    assert [(info.first_seq, info.sealed) for info in found.loaded.segments] == [(1, True), (6, True), (11, False)]
    assert list(found.records) == seqs(1, 15)


@pytest.mark.parametrize("count", [SINGLE_SYNCS, SINGLE_SYNCS + 1, 40])
def test_many_topics_take_few_syncs(disk: FakeDisk, count: int) -> None:
    topics = [Topic(topic_id=number) for number in range(1, count + 1)]
    fs = FaultFs(MonitorFs(disk))
    results = run_checkpoint(fs, [topic.job(3) for topic in topics])
    assert all(result.ok for result in results)
    single = [name for name, path in fs.calls if name == "sync_data" and path.suffix == ".data"]
    assert len(single) == (count if count <= SINGLE_SYNCS else 0)
    for topic in topics:
        assert list(contents(disk.image(0), topic.dir).records) == [1, 2, 3]


def test_second_segments_of_many_topics_begin_when_the_first_are_durable(disk: FakeDisk) -> None:
    topics = [Topic(topic_id=number) for number in range(1, SINGLE_SYNCS + 2)]
    jobs = [(topic.job(3, seal=True), topic.job(3)) for topic in topics]
    fs = FaultFs(MonitorFs(disk))
    assert all(result.ok for result in run_checkpoint(fs, [job for pair in jobs for job in pair]))
    second = {topic.file("data") for topic in topics}
    begun = [number for number, (name, path) in enumerate(fs.calls) if name == "create" and path in second]
    synced = [number for number, (name, _) in enumerate(fs.calls) if name == "sync_filesystem"]
    assert len(begun) == len(topics)
    assert synced[0] < begun[0] <= begun[-1] < synced[1]
    for topic in topics:
        assert list(contents(disk.image(0), topic.dir).records) == seqs(1, 6)


def test_many_topics_of_which_few_get_a_directory_have_it_durably(disk: FakeDisk) -> None:
    topics = [Topic(topic_id=number) for number in range(1, SINGLE_SYNCS + 2)]
    results = run_checkpoint(FaultFs(disk, fail_at=1, only=on("mkdir")), [topic.job(3) for topic in topics])
    assert [result.stored for result in results] == [False] + [True] * SINGLE_SYNCS
    for topic in topics[1:]:
        assert list(contents(disk.image(0), topic.dir).records) == [1, 2, 3]


def test_directory_is_made_and_synced_for_the_first_segment_only(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 5)
    fs = FaultFs(MonitorFs(disk))
    results = run_checkpoint(fs, [topic.job(5, seal=True), topic.job(5, seal=True), topic.job(5)])
    assert all(result.ok for result in results)
    assert [name for name, path in fs.calls if path == TOPICS or name == "mkdir"] == []


def test_one_bad_topic_does_not_stop_the_others(disk: FakeDisk) -> None:
    topics = [Topic(topic_id=number) for number in range(1, 4)]
    jobs = [topic.job(3) for topic in topics]
    failing = FaultFs(
        disk, fail_at=1, errno=errno.ENOSPC, only=lambda name, path: name == "pwrite" and path.parent == topics[1].dir
    )
    results = run_checkpoint(failing, jobs)
    assert [result.stored for result in results] == [True, False, True]
    assert [result.errno for result in results] == [None, errno.ENOSPC, None]
    again = run_checkpoint(disk, [jobs[1]])[0]
    assert again.ok
    for topic in topics:
        assert list(contents(disk.image(0), topic.dir).records) == [1, 2, 3]


def test_a_failed_part_stops_the_later_parts_of_its_topic_only(disk: FakeDisk, topic: Topic) -> None:
    other = Topic(topic_id=8)
    jobs = [topic.job(5, seal=True), other.job(2, seal=True), topic.job(5), other.job(2)]
    failing = FaultFs(disk, fail_at=1, only=on("sync_data", ".data"))
    results = run_checkpoint(failing, jobs)
    assert [result.stored for result in results] == [False, True, False, True]
    assert isinstance(results[2].error, StorageFailed)
    assert results[2].errno is None
    assert not disk.exists(topic.file("data"))
    assert all(result.ok for result in run_checkpoint(disk, [jobs[0], jobs[2]]))
    assert list(contents(disk.image(0), topic.dir).records) == seqs(1, 10)


@pytest.mark.parametrize("operation", ["create", "pwrite", "sync_data", "sync_dir", "mkdir"])
@pytest.mark.parametrize("short", [False, True])
def test_a_failed_checkpoint_succeeds_when_run_again(disk: FakeDisk, topic: Topic, operation: str, short: bool) -> None:
    job = topic.job(20)
    for number in range(1, 4):
        failing = FaultFs(disk, fail_at=number, short=short, only=on(operation))
        result = run_checkpoint(failing, [job])[0]
        if failing.failures:
            assert not result.stored
            assert result.errno == errno.EIO
    more = topic.job(20)
    assert all(result.ok for result in run_checkpoint(MonitorFs(disk), [job, more]))
    found = contents(disk.image(0), topic.dir)
    intact(found, topic)
    assert list(found.records) == seqs(1, 40)


def test_bytes_that_a_failed_sync_dropped_are_written_again(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 10)
    job = topic.job(10)
    failing = FaultFs(disk, fail_at=1, only=on("sync_data", ".data"))
    assert not run_checkpoint(failing, [job])[0].stored
    assert run_checkpoint(disk, [job])[0].stored
    assert list(contents(disk.image(0), topic.dir).records) == seqs(1, 20)


def test_a_failed_sync_of_the_filesystem_fails_every_job(disk: FakeDisk) -> None:
    topics = [Topic(topic_id=number) for number in range(1, SINGLE_SYNCS + 3)]
    jobs = [topic.job(3) for topic in topics]
    results = run_checkpoint(FaultFs(disk, fail_at=1, only=on("sync_filesystem")), jobs)
    assert {result.stored for result in results} == {False}
    assert {result.errno for result in results} == {errno.EIO}
    assert all(result.ok for result in run_checkpoint(disk, jobs))


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_seal_that_fails_leaves_the_records_stored_and_may_be_repeated(
    disk: FakeDisk, topic: Topic, code: int
) -> None:
    job = topic.job(10, seal=True)
    result = run_checkpoint(FaultFs(disk, fail_at=1, errno=code, only=on("pwrite", ".tags.tmp")), [job])[0]
    assert result.stored
    assert result.sealed is None
    assert result.errno == code
    assert disk.listdir(topic.dir) == ["seg-00000000000000000001.data", "seg-00000000000000000001.idx"]
    again = run_checkpoint(disk, [job])[0]
    assert again.ok
    assert again.sealed is not None


def test_a_full_disk_fails_the_job_and_room_makes_it_succeed(topic: Topic) -> None:
    disk = FakeDisk(capacity=500, directories=[TOPICS])
    job = topic.job(30)
    result = run_checkpoint(disk, [job])[0]
    assert result.errno == errno.ENOSPC
    disk.capacity = None
    assert run_checkpoint(disk, [job])[0].ok
    assert list(contents(disk.image(0), topic.dir).records) == seqs(1, 30)


def test_bytes_that_a_failed_attempt_left_behind_the_end_are_cut(disk: FakeDisk, topic: Topic) -> None:
    long = topic.copy().job(20)
    assert not run_checkpoint(FaultFs(disk, fail_at=2, only=on("pwrite")), [long])[0].stored
    topic.append(disk, 5, seal=True)
    found = contents(disk.image(0), topic.dir)
    intact(found, topic)
    assert found.loaded.damage == []
    assert list(found.records) == seqs(1, 5)


def test_a_shorter_file_than_expected_is_damage_not_a_hole(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 10)
    file = disk.open(topic.file("data"), write=True)
    file.truncate(100)
    result = run_checkpoint(disk, [topic.job(10)])[0]
    assert isinstance(result.error, StorageCorrupt)
    assert "has 100 bytes" in str(result.error)
    assert disk.size(topic.file("data")) == 100


def test_damage_found_while_sealing_is_reported_and_the_rest_is_sealed(disk: FakeDisk, topic: Topic) -> None:
    topic.append(disk, 20)
    disk.damage(topic.file("data"), 300, b"\xee\xee")
    result = run_checkpoint(disk, [topic.job(5, seal=True)])[0]
    assert result.ok
    assert result.sealed is not None
    assert result.sealed.count == 25
    (damage,) = result.damage
    assert damage.first_seq == damage.last_seq
    found = contents(disk, topic.dir)
    assert list(found.corrupt) == [(damage.first_seq, damage.last_seq)]
    assert list(found.records) == seqs(1, 25, [(damage.first_seq, damage.first_seq)])
    assert [str(d.path) for d in found.loaded.damage] == [str(topic.file("data", 1))]
