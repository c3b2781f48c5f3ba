"""What a checkpoint has done, brought into the topics: memory goes only for what is stored, and the dead stay dead."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.kit import make_topic
from topicd.model import TagMatch
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.storing.apply import Failures
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.jobs import JobResult
from topicd.shards.storage.segment.names import DATA, TAGS
from topicd.shards.storage.segment.places import resolve

DEAD = TagMatch(b"dead")


@pytest.fixture
def topic(desk: Desk) -> Topic:
    desk.serve()
    return desk.topic(durability="memory")


def kill(desk: Desk, topic: Topic) -> None:
    desk.parts.deletion.delete(topic, None, DEAD, lambda body, error: None)
    desk.settle()


def count(desk: Desk, topic: Topic) -> int:
    return desk.parts.reader.fetch(topic, 0, 1000, 1 << 20, NO_FILTER).count


def test_what_is_stored_leaves_memory(desk: Desk, topic: Topic) -> None:
    desk.write(topic, [b"x"] * 10)
    assert desk.parts.backlog.tail_bytes > 0
    desk.checkpoint()
    contents, backlog = topic.contents, desk.parts.backlog
    assert [(info.first_seq, info.count, info.sealed) for info in contents.segments] == [(1, 8, True), (9, 2, False)]
    assert (topic.seqs.stored, len(contents.tail), backlog.tail_bytes, backlog.dirty) == (10, 0, 0, {})
    assert list(backlog.active) == [topic.id]
    desk.write(topic, [b"x"] * 6)
    desk.checkpoint()
    assert [(info.first_seq, info.count, info.sealed) for info in contents.segments] == [(1, 8, True), (9, 8, True)]
    assert backlog.active == {}
    assert len(contents.recent_tags) == 0


def test_what_failed_stays_in_memory_and_is_stored_later(desk: Desk, topic: Topic) -> None:
    desk.write(topic, [b"x"] * 10)
    before = desk.parts.backlog.tail_bytes
    desk.fail_disk(lambda name, path: "topics" in path.parts)
    desk.checkpoint()
    assert (topic.seqs.stored, desk.parts.backlog.tail_bytes, list(desk.parts.backlog.dirty)) == (0, before, [topic.id])
    assert count(desk, topic) == 10
    desk.mend_disk()
    desk.checkpoint()
    assert (topic.seqs.stored, desk.parts.backlog.tail_bytes, count(desk, topic)) == (10, 0, 10)


def test_one_topic_that_fails_does_not_hold_up_another(desk: Desk, topic: Topic) -> None:
    other = desk.topic("other", durability="memory")
    for one in (topic, other):
        desk.write(one, [b"x"])
    bad = desk.parts.place.topic_dir(topic.id)
    desk.fail_disk(lambda name, path: path.parent == bad)
    desk.checkpoint()
    assert (topic.seqs.stored, other.seqs.stored, list(desk.parts.backlog.dirty)) == (0, 1, [topic.id])


def test_records_that_died_in_memory_are_dead_in_their_segment(desk: Desk, topic: Topic) -> None:
    desk.write(topic, [b"x"] * 5, tags=[b"dead", None, b"dead", None, None])
    kill(desk, topic)
    desk.checkpoint()
    [info] = topic.contents.segments
    assert (list(topic.contents.marks[1]), info.dead, info.dead_bytes > 0) == ([(1, 1), (3, 3)], 2, True)
    assert (len(topic.contents.tail_dead), topic.contents.unmarked, desk.parts.backlog.unmarked) == (0, {}, {})
    assert count(desk, topic) == 3


def test_what_dies_during_the_checkpoint_is_marked_by_the_next(desk: Desk, topic: Topic) -> None:
    desk.write(topic, [b"x"] * 3, tags=[b"dead", None, None])
    work = desk.parts.rounds._plan(full=True)
    results = work.store(desk.fs)
    kill(desk, topic)
    assert desk.parts.rounds._finish(work, results, [])  # the log has the delete behind what is absorbed
    assert {first: list(ranges) for first, ranges in topic.contents.unmarked.items()} == {1: [(1, 1)]}
    assert list(desk.parts.backlog.unmarked) == [topic.id]
    desk.checkpoint()
    assert (topic.contents.unmarked, desk.parts.backlog.unmarked, count(desk, topic)) == ({}, {}, 2)


def test_marks_that_failed_are_written_again_and_unsure_until_then(desk: Desk, topic: Topic) -> None:
    desk.write(topic, [b"x"] * 3, tags=[b"dead", None, None])
    desk.checkpoint()
    kill(desk, topic)
    desk.fail_disk(lambda name, path: path.suffix == ".del")
    desk.checkpoint()
    backlog = desk.parts.backlog
    assert (backlog.unsure_marks, list(backlog.unmarked)) == ({(topic.id, 1)}, [topic.id])
    desk.mend_disk()
    desk.checkpoint()
    assert (backlog.unsure_marks, backlog.unmarked, topic.contents.unmarked) == (set(), {}, {})


def test_a_seal_that_failed_leaves_the_segment_open(desk: Desk, topic: Topic) -> None:
    desk.write(topic, [b"x"] * 8)
    desk.fail_disk(lambda name, path: TAGS in path.name)
    desk.checkpoint()
    [info] = topic.contents.segments
    assert (info.sealed, topic.seqs.stored) == (False, 8)
    assert list(desk.parts.backlog.active) == [topic.id]
    assert count(desk, topic) == 8


def test_damage_found_by_a_seal_is_kept_from_readers(desk: Desk, topic: Topic) -> None:
    desk.write(topic, [b"x"] * 4)
    desk.checkpoint()
    file = desk.disk.open(resolve(desk.parts.place.topic_dir(topic.id), 1).file(DATA), write=True)
    file.pwrite([b"\xff" * 20], 60)
    file.close()
    desk.write(topic, [b"x"] * 4)
    desk.checkpoint()
    [place] = topic.contents.damaged
    assert (place.first_seq, place.where) == (2, resolve(desk.parts.place.topic_dir(topic.id), 1).file(DATA).name)


def test_of_a_topic_deleted_meanwhile_nothing_is_taken_over(desk: Desk, topic: Topic) -> None:
    desk.write(topic, [b"x"] * 3)
    work = desk.parts.rounds._plan(full=True)
    results = work.store(desk.fs)
    topic.live = False
    assert desk.parts.rounds._finish(work, results, [])
    assert (topic.contents.segments, topic.seqs.stored) == ([], 0)
    topic.live = True


# ---- direct writes ----


def test_direct_writes_that_were_stored_are_told_and_those_behind_are_refused(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(direct_bytes=1000, direct_writes="synced", segment_max_bytes=4096).serve()
    topic = desk.topic(durability="fsync")
    desk.parts.backlog.on_direct = lambda topic: None
    writer = desk.append(topic, [bytes(3000)], producer=7, number=1, request_id=1)
    desk.append(topic, [bytes(3000)], producer=7, number=2, request_id=2, writer=writer)
    desk.settle()
    second = resolve(desk.parts.place.topic_dir(topic.id), 2).file(DATA)
    desk.fail_disk(lambda name, path: path == second, errno.ENOSPC)
    desk.checkpoint()
    assert [(told.how, told.request_id) for told in writer.told] == [("appended", 1), ("storage_failed", 2)]
    assert (topic.seqs.visible, topic.seqs.head, topic.seqs.stored) == (1, 1, 1)
    assert desk.parts.pressure.failing == errno.ENOSPC


# ---- failures ----


def test_a_failure_is_said_once_until_a_round_goes_well(caplog: pytest.LogCaptureFixture) -> None:
    failures, topics = Failures(), [make_topic("a", 1), make_topic("b", 2)]
    full = JobResult(error=OSError(errno.ENOSPC, "full"))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            for topic in topics:
                failures.note(topic, full)
            failures.note_exception(OSError(errno.ENOSPC, "full"))
        assert len(caplog.records) == 3
        failures.clear()
        failures.note(topics[0], full)
        assert len(caplog.records) == 4
        failures.note_exception(ValueError("ours"))
        failures.note_exception(ValueError("ours"))
        assert len(caplog.records) == 6  # a fault of our own is said every time
    assert failures.errno == errno.ENOSPC
    failures.begin_round()
    assert failures.errno == errno.EIO


def test_a_disk_that_is_full_for_all_topics_is_no_line_for_each(caplog: pytest.LogCaptureFixture) -> None:
    failures, full = Failures(), JobResult(error=OSError(errno.ENOSPC, "full"))
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            for n in range(1, 1_001):
                failures.note(make_topic(f"t{n}", n), full)
    assert len(caplog.records) == 11 and caplog.messages[-1] == "checkpoints of more topics failed"
    assert failures.errno == errno.ENOSPC


def test_an_error_without_a_number_is_an_input_output_error() -> None:
    failures = Failures()
    failures.errno = 0
    failures.note(make_topic(), JobResult())
    assert failures.errno == errno.EIO
