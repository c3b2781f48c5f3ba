"""Where records are and which are dead: counts, marks, what is gone and what nothing explains."""

from __future__ import annotations

import pytest

from tests.unit.delivery.kit import TS, stamped
from topicd.limits import MAX_SEQ
from topicd.model import TagMatch
from topicd.shards.delivery.topic.contents import Contents, Damaged
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.info import SegmentInfo

TAG = TagMatch(b"t")


def segment(first: int, count: int, *, sealed: bool = True, last_ts: int = TS) -> SegmentInfo:
    return SegmentInfo(first, count, 100 * count, TS, last_ts, TS, sealed)


def test_records_that_come_and_go_are_counted() -> None:
    contents = Contents()
    contents.add(stamped([b"abc", b"de"]), 2, 5, untagged=True)
    contents.remove(1, 3)
    assert (contents.count, contents.bytes, len(contents.tail)) == (1, 2, 1)


@pytest.mark.parametrize(("untagged", "found"), [(False, [1]), (True, [])])
def test_tags_are_noted_unless_it_is_known_that_there_are_none(untagged: bool, found: list[int]) -> None:
    contents = Contents()
    contents.add(stamped([b"x"], tags=b"t"), 1, 1, untagged=untagged)
    assert contents.recent_tags.matching(TAG, 1, 9) == found


def test_a_record_of_a_segment_that_was_dropped_comes_back_from_the_log_dead() -> None:
    contents = Contents()
    contents.gone = Ranges([(2, 3)])
    contents.replay(stamped([b"x"] * 4, tags=b"t"))
    assert list(contents.tail_dead) == [(2, 3)]
    assert (contents.count, contents.bytes) == (0, 0)  # counted at the end of recovery
    assert contents.recent_tags.matching(TAG, 1, 9) == [1, 2, 3, 4]


# ---- marks ----


def test_a_mark_is_counted_once_and_waits_for_its_file() -> None:
    contents, info = Contents(), segment(1, 10)
    contents.segments.append(info)
    contents.mark(info, [(2, 4)], 30)
    contents.mark(info, [(4, 5)], 10)
    assert (info.dead, info.dead_bytes) == (4, 40)
    assert list(contents.marks[1]) == list(contents.unmarked[1]) == [(2, 5)]


def test_marks_that_came_while_the_file_was_written_still_wait() -> None:
    contents, info = Contents(), segment(1, 10)
    contents.mark(info, [(2, 2)], 10)
    writing = contents.unmarked[1].copy()
    contents.mark(info, [(3, 3)], 10)
    assert not contents.marked(1, writing)
    assert list(contents.unmarked[1]) == [(3, 3)]
    assert contents.marked(1, Ranges([(3, 3)]))
    assert contents.unmarked == {}


def test_one_segment_that_waits_keeps_the_topic_waiting() -> None:
    contents = Contents()
    for first in (1, 11):
        contents.mark(segment(first, 10), [(first, first)], 10)
    assert not contents.marked(1, Ranges([(1, 1)]))
    assert not contents.marked(1, Ranges([(1, 1)]))  # of a segment that waits for nothing
    assert contents.marked(11, Ranges([(11, 11)]))


def test_a_dropped_segment_leaves_only_the_memory_of_its_seqs() -> None:
    contents, info = Contents(), segment(1, 10)
    contents.segments = [info, segment(11, 10)]
    contents.mark(info, [(1, 10)], 1000)
    contents.drop(info)
    assert [one.first_seq for one in contents.segments] == [11]
    assert (contents.marks, contents.unmarked, list(contents.gone)) == ({}, {}, [(1, 10)])
    contents.forget_gone(earliest=6, head=20)
    assert list(contents.gone) == [(6, 10)]


def test_dead_records_of_the_tail_are_forgotten_outside_of_it() -> None:
    contents = Contents()
    contents.tail_dead = Ranges([(1, 4), (8, 9)])
    contents.keep_tail_dead(3, 8)
    assert list(contents.tail_dead) == [(3, 4), (8, 8)]


# ---- questions ----


def test_the_oldest_end_is_that_of_the_first_segment_or_blob() -> None:
    contents = Contents()
    assert contents.oldest_end_ms == MAX_SEQ
    contents.add(stamped([b"x"], 11, ts=TS + 9), 1, 1, untagged=True)
    assert contents.oldest_end_ms == TS + 9
    contents.segments = [segment(1, 5, last_ts=TS + 1), segment(6, 5, last_ts=TS + 2)]
    assert contents.oldest_end_ms == TS + 1


def test_only_the_last_segment_takes_more_and_only_unsealed() -> None:
    contents = Contents()
    assert contents.active is None
    contents.segments = [segment(1, 5), segment(6, 5, sealed=False)]
    assert contents.active is contents.segments[1]
    contents.segments[1].sealed = True
    assert contents.active is None


@pytest.mark.parametrize(
    ("first", "last", "damaged"), [(1, 4, False), (1, 5, True), (6, 6, True), (7, 9, True), (8, 9, False)]
)
def test_damage_concerns_what_it_overlaps(first: int, last: int, damaged: bool) -> None:
    contents = Contents()
    contents.damaged = [Damaged(5, 7, "file")]
    assert contents.is_damaged(first, last) is damaged


def test_unexplained_is_what_neither_a_delete_nor_power_loss_took() -> None:
    contents = Contents()
    contents.gone, contents.lost = Ranges([(3, 4)]), Ranges([(7, 8)])
    assert contents.unexplained(1, 10) == [(1, 2), (5, 6), (9, 10)]
    assert contents.unexplained(3, 4) == []
    assert contents.unexplained(5, 4) == []
