"""Random lives of a topic on a disk that fails and loses power, compared with what was promised at each
step.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from random import Random

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from tests.support.monitorfs import MonitorFs
from tests.unit.storage.segment_kit import FULL, TOPICS, Topic, contents, intact
from topicd.disk.fs import Fs
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import append_marks
from topicd.shards.storage.segment.drop import drop_segments
from topicd.shards.storage.segment.info import LoadedSegments
from topicd.shards.storage.segment.jobs import AppendJob, run_checkpoint
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.rewrite import rewrite_segment

LIVES = 4000 if FULL else 120
STEPS = 25


class Life:
    """head: all up to it is acknowledged. dead: acknowledged marks. maybe: marks that were tried. floor: what
    lies below was dropped. dropping: what lies below is perhaps dropped.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.disk = FakeDisk(directories=[TOPICS])
        self.topic = Topic(size=self.random.choice([0, 0, 150]))
        self.head = 0
        self.floor = 1
        self.dropping = 1
        self.dead, self.maybe = Ranges(), Ranges()
        self.trace: list[str] = []

    def run(self) -> None:
        steps: list[Callable[[Fs], None]] = [self.append, self.append, self.append, self.mark, self.rewrite, self.drop]
        for _ in range(STEPS):
            step = self.random.choice(steps)
            monitor = MonitorFs(self.disk)
            fs = FaultFs(monitor)
            trouble = self.random.random()
            if trouble < 0.25:
                fs.crash_after = self.random.randint(0, 25)
                fs.crashed = fs.crash_after == 0
            elif trouble < 0.5:
                fs.fail_at, fs.always = self.random.randint(1, 20), self.random.random() < 0.3
                fs.short, fs.errno = self.random.random() < 0.5, self.random.choice([errno.EIO, errno.ENOSPC])
            self.trace.append(f"{step.__name__} {vars(fs)['crash_after']} {fs.fail_at}")
            try:
                step(fs)
            except OSError:
                self.trace.append("failed")
            except Crashed:
                self.crash()
            assert monitor.violations == []
            if self.random.random() < 0.15:
                self.crash()
        self.crash()

    def crash(self) -> None:
        seed = self.random.randint(0, 1000)
        self.trace.append(f"crash {seed}")
        self.disk.crash(seed)
        self.settle()

    def settle(self) -> None:
        """Load, compare, and go on from what is there, as replay does."""
        found = contents(MonitorFs(self.disk), self.topic.dir)
        intact(found, self.topic)
        loaded = found.loaded
        marks = Ranges(pair for ranges in loaded.marks.values() for pair in ranges)
        last = loaded.segments[-1].last_seq if loaded.segments else self.dropping - 1
        assert max(last, self.dropping - 1) >= self.head
        assert all(self.floor <= seq for seq in found.records)
        expected = [seq for seq in range(self.dropping, last + 1) if seq not in marks]
        assert [seq for seq in found.records if seq >= self.dropping] == expected
        for first, end in self.dead:
            assert not [seq for seq in range(first, end + 1) if seq in found.records]
        for first, end in marks:
            assert not [seq for seq in range(first, end + 1) if seq not in self.dead and seq not in self.maybe]
        self.head = max(last, self.dropping - 1)
        self.dead.update(marks)
        self.maybe = self.dead.copy()
        self._resume(loaded)

    def _resume(self, loaded: LoadedSegments) -> None:
        topic = self.topic
        topic.next_seq = topic.segment = self.head + 1
        topic.data_offset = topic.index_offset = 0
        if loaded.segments and not loaded.segments[-1].sealed:
            last = loaded.segments[-1]
            topic.segment, topic.data_offset, topic.index_offset = last.first_seq, last.data_bytes, last.count * 20

    def append(self, fs: Fs) -> None:
        jobs: list[AppendJob] = []
        for _ in range(self.random.choice([1, 1, 2, 3])):
            jobs.append(self.topic.job(self.random.randint(1, 9), seal=self.random.random() < 0.4))
        while jobs:
            for job, result in zip(list(jobs), run_checkpoint(fs, jobs), strict=True):
                if result.stored:
                    self.head += len(job.index) // 20
                    if job.seal is None or result.sealed is not None:
                        jobs.remove(job)
                    else:
                        # Stored but not sealed: its successor was written all the same; sealed at the next
                        # load.
                        jobs.remove(job)
            # What failed is repeated on a disk that works again.
            fs = MonitorFs(self.disk)

    def _segments(self) -> LoadedSegments:
        return load_segments(self.disk, self.topic.dir)

    def mark(self, fs: Fs) -> None:
        loaded = self._segments()
        if not loaded.segments:
            return
        info = self.random.choice(loaded.segments)
        first = self.random.randint(info.first_seq, info.last_seq)
        pair = (first, self.random.randint(first, info.last_seq))
        self.maybe.update([pair])
        append_marks(fs, self.topic.dir, info.first_seq, [pair])
        self.dead.update([pair])

    def rewrite(self, fs: Fs) -> None:
        loaded = self._segments()
        for info in loaded.segments:
            dead = loaded.marks.get(info.first_seq, Ranges())
            if info.sealed and 0 < dead.covered < info.count:
                rewrite_segment(fs, self.topic.dir, info, dead)

    def drop(self, fs: Fs) -> None:
        sealed = [info for info in self._segments().segments if info.sealed]
        doomed = sealed[: self.random.randint(0, 2)]
        if doomed:
            self.dropping = max(self.dropping, doomed[-1].last_seq + 1)
            drop_segments(fs, self.topic.dir, [info.first_seq for info in doomed])
            self.floor = doomed[-1].last_seq + 1


@pytest.mark.timeout(7200 if FULL else 120)
def test_no_life_breaks_a_promise() -> None:
    for seed in range(LIVES):
        life = Life(seed)
        try:
            life.run()
        except BaseException as error:
            error.add_note(f"life {seed}: {life.trace}")
            raise
