"""One checkpoint: what it stores, and that nothing is left of a direct write that failed, or it is known where."""

from __future__ import annotations

from array import array
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from tests.support.faultfs import FaultFs
from tests.unit.delivery.kit import ROOT, TS, make_disk, make_topic, publish, stamped
from topicd.config import Settings
from topicd.shards.delivery.storing.checkpoint_round import CheckpointRound
from topicd.shards.delivery.topic.flight import InFlight
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.jobs import JobResult
from topicd.shards.storage.segment.load import load_segments

SETTINGS = Settings(segment_max_records=8, segment_max_bytes=1 << 20)
PLACE = ROOT / "topics" / "one"


def direct(topic: Topic, count: int) -> InFlight:
    made, blob = InFlight(Need.STORED, topic.seqs.head + 1, TS), stamped([b"d"] * count, topic.seqs.head + 1)
    made.frames += bytes(blob.view())
    made.offsets = array("I", blob.offsets)
    topic.seqs.give_out(count, TS)
    return made


def work_of(topic: Topic, entries: list[InFlight] | None = None, place: Path = PLACE, **more: Any) -> CheckpointRound:
    work = CheckpointRound(full=more.get("full", True))
    work.add(topic, place, entries or [], SETTINGS, TS, more.get("unsure", set()))
    return work


def on_disk(fs: Any) -> list[tuple[int, int]]:
    return [(info.first_seq, info.last_seq) for info in load_segments(fs, PLACE).segments]


def test_the_tail_and_the_direct_writes_behind_it_are_stored_in_order() -> None:
    disk, topic = make_disk(), make_topic()
    publish(topic, [b"x"] * 5)
    work = work_of(topic, [direct(topic, 3), direct(topic, 4)])
    assert all(result.stored for result in work.store(disk))
    assert on_disk(disk) == [(1, 8), (9, 12)]
    assert work.unclear == set()


def test_what_died_in_memory_is_marked_with_its_segment() -> None:
    topic = make_topic()
    publish(topic, [b"x"] * 10)
    topic.contents.tail_dead = Ranges([(2, 3), (8, 9)])
    work = work_of(topic, unsure={(topic.id, 9)})
    assert [(job.first_seq, job.ranges, job.again) for job in work.mark_jobs] == [
        (1, [(2, 3), (8, 8)], False),
        (9, [(9, 9)], True),
    ]
    topic.contents.tail_dead.add(5)
    assert [list(ranges) for _, _, ranges in work.marked] == [[(2, 3), (8, 8)], [(9, 9)]]  # as they were


def test_without_marks_there_is_no_job_for_them() -> None:
    topic = make_topic()
    work = work_of(topic)
    work.add_marks(PLACE, topic, 1, Ranges(), set())
    assert (work.mark_jobs, work.marked, work.drafts) == ([], [], [])


@pytest.mark.parametrize(("full", "tail", "holds"), [(True, False, True), (False, False, False), (False, True, True)])
def test_the_log_is_synced_first_where_it_has_the_records_too(full: bool, tail: bool, holds: bool) -> None:
    topic = make_topic()
    if tail:
        publish(topic, [b"x"])
    assert work_of(topic, [direct(topic, 1)], full=full).holds_log is holds


def calls_of(make: Any) -> int:
    """How many calls that change the disk a round takes."""
    fs = FaultFs(make_disk())
    make(fs)[1].store(fs)
    return fs.count


def going_on(fs: Any) -> tuple[Topic, CheckpointRound]:
    """A topic with a segment on the disk, and two direct writes: one to that segment, one behind it."""
    topic = make_topic()
    publish(topic, [b"x"] * 3)
    first = work_of(topic)
    first.store(fs)
    topic.contents.segments.append(first.drafts[0][1].info())
    topic.seqs.store(3)
    topic.contents.tail.drop_through(3)
    if isinstance(fs, FaultFs):
        fs.calls.clear()
    return topic, work_of(topic, [direct(topic, 3), direct(topic, 4)])


def reached(work: CheckpointRound, results: list[JobResult]) -> int:
    """The last seq before the first draft that failed: what is behind that one does not count."""
    whole = takewhile(lambda pair: pair[1].stored, zip(work.drafts, results, strict=True))
    return max((draft.last_seq for (_, draft), _ in whole), default=3)


@pytest.mark.parametrize("call", range(1, calls_of(going_on) + 1))
def test_of_a_direct_write_that_failed_nothing_is_left(call: int) -> None:
    disk = make_disk()
    fs = FaultFs(disk)
    _, work = going_on(fs)
    fs.fail_at, fs.short = call, True
    results = work.store(fs)
    stored = reached(work, results)
    assert work.unclear == set()
    found = load_segments(disk, PLACE)
    assert (found.segments[-1].last_seq, found.damage, found.cuts) == (stored, [], [])


@pytest.mark.parametrize("call", range(1, calls_of(going_on) + 1))
def test_or_it_is_known_where_and_the_next_round_clears_it(call: int) -> None:
    disk = make_disk()
    fs = FaultFs(disk)
    topic, work = going_on(fs)
    fs.fail_at, fs.always, fs.short = call, True, True
    results = work.store(fs)
    if all(result.stored for result in results):
        return  # nothing behind it was needed
    fs.fail_at = None
    stored = reached(work, results)
    left = load_segments(disk.image(1), PLACE).segments[-1].last_seq  # seed 1: as after SIGKILL
    assert work.unclear == {topic.id} or left == stored
    if stored == 3:
        topic.flight.debris = bool(work.unclear)
        again = work_of(topic)
        again.store(fs)
        assert again.unclear == set()
        assert load_segments(disk, PLACE).segments[-1].last_seq == 3
