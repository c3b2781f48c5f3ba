"""Crashes and failures at every call of every operation that changes a topic's files.

After each: what was acknowledged is there, nothing that was not written is, deleted records stay deleted, no
damage is invented, a second load sees the same, and a crash inside the load changes nothing of that.
TOPICD_SWEEP=full tries every point with many more seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from tests.support.monitorfs import MonitorFs
from tests.unit.storage.segment_kit import FULL, TOPICS, Topic, contents, intact, seqs, summary
from tests.unit.storage.sweep import failures, fingerprint, images, noting, sweep
from topicd.disk.fs import Fs
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import append_marks
from topicd.shards.storage.segment.drop import drop_segments
from topicd.shards.storage.segment.jobs import (
    SINGLE_SEALS,
    SINGLE_SYNCS,
    AppendJob,
    MarkJob,
    run_checkpoint,
    run_marks,
)
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.rewrite import rewrite_segment
from topicd.shards.storage.snapshot import SnapshotStore
from topicd.shards.storage.topic_dir import finish_deletes, start_delete

pytestmark = pytest.mark.timeout(3600 if FULL else 120)

Range = tuple[int, int]
CHECKED: set[tuple[object, ...]] = set()  # different crashes often leave the same disk


def synced(disk: FakeDisk) -> FakeDisk:
    disk.sync_filesystem(Path("/"))
    return disk


def check_topic(
    disk: FakeDisk, topic: Topic, acked: int, written: int, dead: Sequence[Range] = (), maybe: Sequence[Range] = ()
) -> None:
    """1..acked are there and perhaps more up to written, without a hole; dead are not, maybe perhaps."""
    key = (fingerprint(disk), topic.topic_id, acked, written, tuple(dead), tuple(maybe))
    if key in CHECKED:
        return
    CHECKED.add(key)
    _crash_in_load(disk, topic)
    found = contents(MonitorFs(disk), topic.dir)
    intact(found, topic)
    head = found.loaded.segments[-1].last_seq if found.loaded.segments else 0
    assert acked <= head <= written
    marks = Ranges(found_range for ranges in found.loaded.marks.values() for found_range in ranges)
    must, may = Ranges(dead), Ranges(maybe)
    assert [seq for seq in must_be(must, head) if seq not in marks] == []
    assert [seq for first, last in marks for seq in range(first, last + 1) if seq not in must and seq not in may] == []
    assert list(found.records) == [seq for seq in range(1, head + 1) if seq not in marks]
    assert found.loaded.gaps == []
    # Idempotent: a second load finds nothing to do and the same state, now and after another crash.
    idle = FaultFs(disk)
    assert summary(load_segments(idle, topic.dir)) == summary(found.loaded)
    assert idle.calls == []
    assert summary(load_segments(disk.image(0), topic.dir))[0][:-1] == summary(found.loaded)[0][:-1]
    _goes_on(disk.image(0), topic)


def must_be(ranges: Ranges, head: int) -> list[int]:
    return [seq for first, last in ranges.within(1, head) for seq in range(first, last + 1)]


def _crash_in_load(disk: FakeDisk, topic: Topic) -> None:
    """Recovery itself may be cut off, anywhere; the disk goes on from what that left."""
    random = Random(str(disk.files().keys()) + str(sum(map(len, disk.files().values()))))
    for _ in range(random.randint(0, 2)):
        counting = FaultFs(disk.image(0))
        load_segments(counting, topic.dir)
        if counting.count == 0:
            return
        try:
            load_segments(FaultFs(disk, crash_after=random.randint(0, counting.count)), topic.dir)
        except Crashed:
            disk.crash(random.randint(0, 100))


def _goes_on(disk: FakeDisk, topic: Topic) -> None:
    """Appending works after recovery, as replay would."""
    loaded = load_segments(disk, topic.dir)
    next_one = Topic(topic.topic_id, size=topic.size)
    if loaded.segments:
        last = loaded.segments[-1]
        next_one.next_seq = next_one.segment = last.last_seq + 1
        if not last.sealed:
            next_one.segment = last.first_seq
            next_one.data_offset, next_one.index_offset = last.data_bytes, last.count * 20
    head = next_one.next_seq - 1
    next_one.append(disk, 3, seal=True)
    found = contents(disk.image(0), topic.dir)
    intact(found, topic)
    assert set(range(head + 1, head + 4)) <= set(found.records)


# ---- checkpoints ----


class Checkpoint:
    """Three topics in three states, and one checkpoint over all of them."""

    def __init__(self, size: int = 0) -> None:
        self.disk = FakeDisk(directories=[TOPICS])
        self.grown, self.sealing, self.fresh = (Topic(topic_id=n, size=size) for n in (1, 2, 3))
        self.topics = [self.grown, self.sealing, self.fresh]
        self.grown.append(self.disk, 6, seal=True)
        self.grown.append(self.disk, 5)
        self.sealing.append(self.disk, 7)
        self.acked = [topic.next_seq - 1 for topic in self.topics]
        synced(self.disk)
        self.jobs: list[AppendJob] = [
            self.grown.job(9),
            self.sealing.job(8, seal=True),
            self.fresh.job(4, seal=True),
            self.sealing.job(5),
            self.fresh.job(4),
        ]
        self.written = [topic.next_seq - 1 for topic in self.topics]

    def run(self, fs: Fs) -> None:
        results = run_checkpoint(fs, self.jobs)
        assert all(result.ok for result in results), [result.error for result in results]

    def check(self, disk: FakeDisk, done: bool) -> None:
        for topic, acked, written in zip(self.topics, self.acked, self.written, strict=True):
            check_topic(disk, topic, written if done else acked, written)


@pytest.mark.parametrize("size", [0, 700])
def test_a_checkpoint_crashes_anywhere(size: int) -> None:
    case = Checkpoint(size)
    sweep(case.disk, case.run, case.check)


def test_a_checkpoint_of_many_topics_crashes_anywhere() -> None:
    disk = FakeDisk(directories=[TOPICS])
    topics = [Topic(topic_id=n, size=200) for n in range(1, SINGLE_SYNCS + 3)]
    for topic in topics[:2]:
        topic.append(disk, 3)
    synced(disk)
    acked = [topic.next_seq - 1 for topic in topics]
    jobs = [topic.job(3, seal=topic.topic_id == 2) for topic in topics]

    def run(fs: Fs) -> None:
        assert all(result.ok for result in run_checkpoint(fs, jobs))

    def check(left: FakeDisk, done: bool) -> None:
        for number in (0, 1, 2, len(topics) - 1):
            topic = topics[number]
            check_topic(left, topic, topic.next_seq - 1 if done else acked[number], topic.next_seq - 1)

    sweep(disk, run, check)


class Flood(Checkpoint):
    """Two topics, one of which fills so many segments at once that their seals share a sync."""

    def __init__(self) -> None:
        self.disk = FakeDisk(directories=[TOPICS])
        self.topics = [Topic(topic_id=n, size=100) for n in (1, 2)]
        self.topics[0].append(self.disk, 4)
        self.acked = [topic.next_seq - 1 for topic in self.topics]
        synced(self.disk)
        many, few = self.topics
        self.jobs = [many.job(3, seal=True) for _ in range(SINGLE_SEALS + 1)]
        self.jobs += [few.job(3, seal=True), many.job(2), few.job(2)]
        self.written = [topic.next_seq - 1 for topic in self.topics]


def test_a_flood_of_one_topic_crashes_anywhere() -> None:
    case = Flood()
    sweep(case.disk, case.run, case.check)


@pytest.mark.parametrize("case", [Checkpoint(), Flood()], ids=["checkpoint", "flood"])
def test_a_checkpoint_fails_anywhere_and_is_repeated(case: Checkpoint) -> None:
    for what, failing, used in failures(case.disk, case.run):
        results = run_checkpoint(failing, case.jobs)
        stored = [
            acked
            + sum(
                len(job.index) // 20
                for job, result in zip(case.jobs, results, strict=True)
                if job.topic_dir == topic.dir and result.stored
            )
            for topic, acked in zip(case.topics, case.acked, strict=True)
        ]
        with noting(what):
            for left in images(used):
                for topic, at_least, written in zip(case.topics, stored, case.written, strict=True):
                    check_topic(left, topic, at_least, written)
        # The same jobs again, on a disk that works again: nothing is doubled, nothing is missing.
        case.run(MonitorFs(used))
        case.check(used.image(0), True)


# ---- marks, rewrite, drop ----


def marked_topic(size: int = 0) -> tuple[FakeDisk, Topic, list[Range]]:
    disk, topic = FakeDisk(directories=[TOPICS]), Topic(size=size)
    topic.append(disk, 12, seal=True)
    topic.append(disk, 12, seal=True)
    topic.append(disk, 6)
    dead = [(13, 16), (20, 24)]
    append_marks(disk, topic.dir, 13, dead)
    return synced(disk), topic, dead


@pytest.mark.parametrize("segments", [[1], [1, 13, 25]])
def test_marking_crashes_anywhere(segments: list[int]) -> None:
    disk, topic, dead = marked_topic()
    new = [(first + 1, first + 4) for first in segments]

    def run(fs: Fs) -> None:
        jobs = [MarkJob(topic.dir, first, [pair]) for first, pair in zip(segments, new, strict=True)]
        assert all(result.ok for result in run_marks(fs, jobs))

    def check(left: FakeDisk, done: bool) -> None:
        check_topic(left, topic, 30, 30, [*dead, *new] if done else dead, new)

    sweep(disk, run, check)


@pytest.mark.parametrize("size", [0, 700])
def test_a_rewrite_crashes_anywhere(size: int) -> None:
    disk, topic, dead = marked_topic(size)
    loaded = load_segments(disk, topic.dir)

    def run(fs: Fs) -> None:
        rewrite_segment(fs, topic.dir, loaded.segments[1], loaded.marks[13])

    def check(left: FakeDisk, done: bool) -> None:
        check_topic(left, topic, 30, 30, dead)

    sweep(disk, run, check)


def test_two_rewrites_in_a_row_crash_anywhere() -> None:
    disk, topic, dead = marked_topic()
    append_marks(disk, topic.dir, 13, [(18, 19)])
    synced(disk)
    dead = [*dead, (18, 19)]
    info = load_segments(disk, topic.dir).segments[1]

    def run(fs: Fs) -> None:
        once = rewrite_segment(fs, topic.dir, info, Ranges(dead[:1]))
        rewrite_segment(fs, topic.dir, once, Ranges(dead))

    def check(left: FakeDisk, done: bool) -> None:
        check_topic(left, topic, 30, 30, dead)

    sweep(disk, run, check)


def test_a_rewrite_fails_anywhere_and_is_repeated() -> None:
    disk, topic, dead = marked_topic()
    loaded = load_segments(disk, topic.dir)

    def run(fs: Fs) -> None:
        rewrite_segment(fs, topic.dir, loaded.segments[1], loaded.marks[13])

    for what, failing, used in failures(disk, run):
        with suppress(OSError):
            run(failing)
        with noting(what):
            for left in images(used):
                check_topic(left, topic, 30, 30, dead)
        run(MonitorFs(used))
        check_topic(used.image(0), topic, 30, 30, dead)
        assert used.size(topic.file("data", 13)) < disk.size(topic.file("data", 13)), what


def test_a_drop_crashes_anywhere() -> None:
    disk, topic, dead = marked_topic()

    def run(fs: Fs) -> None:
        drop_segments(fs, topic.dir, [1, 13])

    def check(left: FakeDisk, done: bool) -> None:
        found = contents(MonitorFs(left), topic.dir)
        intact(found, topic)
        assert set(seqs(25, 30)) <= set(found.records)
        # A segment is there as it was or not at all, and what was deleted never returns.
        for first, last in ((1, 12), (13, 24)):
            there = [seq for seq in found.records if first <= seq <= last]
            assert there in ([], seqs(first, last, dead)), there
            assert not (done and there)
        idle = FaultFs(left)
        assert summary(load_segments(idle, topic.dir)) == summary(found.loaded)
        assert idle.calls == []
        run(left)
        assert list(contents(left.image(0), topic.dir).records) == seqs(25, 30)

    sweep(disk, run, check)


def test_a_topic_delete_crashes_anywhere() -> None:
    disk, topic, dead = marked_topic()
    other = Topic(topic_id=8)
    other.append(disk, 5)
    synced(disk)

    def run(fs: Fs) -> None:
        start_delete(fs, TOPICS, topic.topic_id)
        finish_deletes(fs, TOPICS)

    def check(left: FakeDisk, done: bool) -> None:
        there = list(contents(left, topic.dir).records)
        assert there in ([], seqs(1, 30, dead))
        if done:
            assert there == []
            assert left.listdir(TOPICS) == [other.dir.name]
        start_delete(left, TOPICS, topic.topic_id)
        finish_deletes(left, TOPICS)
        assert left.image(0).listdir(TOPICS) == [other.dir.name]
        assert list(contents(left, other.dir).records) == seqs(1, 5)

    sweep(disk, run, check)


# ---- snapshots ----

META = Path("/data/meta/shard-03")


def snapshot_body(number: int) -> dict[str, object]:
    return {"number": number, "names": [f"topic-{n}" for n in range(number * 40)]}


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_a_snapshot_crashes_anywhere(before: int) -> None:
    disk = FakeDisk(directories=[Path("/data")])
    for number in range(1, before + 1):
        SnapshotStore(disk, META).save(snapshot_body(number))
    synced(disk)

    def run(fs: Fs) -> None:
        SnapshotStore(fs, META).save(snapshot_body(before + 1))

    def check(left: FakeDisk, done: bool) -> None:
        store = SnapshotStore(left, META)
        found = store.load_newest()
        allowed = [before + 1] if done else [before, before + 1]
        assert (found[0] if found else 0) in allowed
        if found:
            assert found[1] == snapshot_body(found[0])
        if before or done:
            assert store.problems == []
        number = store.save("next")
        assert SnapshotStore(left.image(0), META).load_newest() == (number, "next")

    sweep(disk, run, check)


def test_a_snapshot_fails_anywhere_and_is_repeated() -> None:
    disk = FakeDisk(directories=[Path("/data")])
    SnapshotStore(disk, META).save(snapshot_body(1))
    SnapshotStore(disk, META).save(snapshot_body(2))
    synced(disk)

    def run(fs: Fs) -> None:
        SnapshotStore(fs, META).save(snapshot_body(3))

    for what, failing, used in failures(disk, run):
        try:
            run(failing)
            saved = True
        except OSError:
            saved = False
        with noting(what):
            for left in images(used):
                found = SnapshotStore(left, META).load_newest()
                assert found is not None
                assert found[0] in ([3] if saved else [2, 3])
                assert found[1] == snapshot_body(found[0])
        number = SnapshotStore(MonitorFs(used), META).save("next")
        assert SnapshotStore(used.image(0), META).load_newest() == (number, "next")
