"""Which bytes go to which segment: limits, holes, ages, going on with the active one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.delivery.kit import TS, make_topic, publish, stamped
from topicd.config import Settings
from topicd.frames import core
from topicd.shards.delivery.storing.segmenting import Draft, plan
from topicd.shards.delivery.topic import policy
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.index import ENTRY_BYTES, entry_at

SETTINGS = Settings(segment_max_records=10, segment_max_bytes=1 << 20, segment_max_age_ms=1000)
FRAME = len(stamped([bytes(100)]).view())


def shape(drafts: list[Draft]) -> list[tuple[int, int, bool]]:
    return [(draft.first_seq, draft.last_seq, draft.seal) for draft in drafts]


def bytes_of(draft: Draft) -> bytes:
    return b"".join(bytes(part) for part in draft.data)


def stored(topic: Topic, draft: Draft) -> None:
    """As after a successful checkpoint."""
    info = draft.info()
    info.sealed = draft.seal
    if topic.contents.segments and topic.contents.segments[-1].first_seq == info.first_seq:
        topic.contents.segments[-1] = info
    else:
        topic.contents.segments.append(info)
    topic.seqs.store(draft.last_seq)
    topic.contents.tail.drop_through(topic.seqs.stored)


def test_an_empty_tail_needs_nothing() -> None:
    assert plan(make_topic(), SETTINGS, TS) == []


def test_a_few_records_begin_a_segment_and_leave_it_open() -> None:
    topic = make_topic()
    publish(topic, [b"a", b"b", b"c"])
    [draft] = plan(topic, SETTINGS, TS)
    assert shape([draft]) == [(1, 3, False)]
    assert (draft.create, draft.old_bytes, draft.old_count) == (True, 0, 0)
    assert [row[5] for row in core.decode_frames(bytes_of(draft), 0, draft.bytes)] == [b"a", b"b", b"c"]


def test_planning_changes_nothing() -> None:
    topic = make_topic()
    publish(topic, [b"a"] * 25)
    assert shape(plan(topic, SETTINGS, TS)) == shape(plan(topic, SETTINGS, TS))
    assert (topic.seqs.stored, topic.contents.segments, len(topic.contents.tail)) == (0, [], 1)


def test_records_that_come_while_a_checkpoint_runs_are_not_in_its_bytes() -> None:
    topic = make_topic()
    publish(topic, [b"a"])
    [draft] = plan(topic, SETTINGS, TS)
    before = bytes_of(draft)
    publish(topic, [b"b"])
    assert bytes_of(draft) == before
    stored(topic, draft)
    assert [(blob.first_seq, blob.last_seq) for blob in topic.contents.tail] == [(2, 2)]
    assert shape(plan(topic, SETTINGS, TS)) == [(1, 2, False)]


def test_segments_are_full_at_their_number_of_records() -> None:
    topic = make_topic()
    publish(topic, [b"x"] * 25)
    assert shape(plan(topic, SETTINGS, TS)) == [(1, 10, True), (11, 20, True), (21, 25, False)]


def test_segments_are_full_at_their_size() -> None:
    topic = make_topic()
    publish(topic, [bytes(100)] * 9)
    drafts = plan(topic, SETTINGS.replace(segment_max_bytes=3 * FRAME), TS)
    assert shape(drafts) == [(1, 3, True), (4, 6, True), (7, 9, True)]


def test_a_record_larger_than_a_segment_has_one_for_itself() -> None:
    topic = make_topic()
    publish(topic, [bytes(100_000), b"small"])
    drafts = plan(topic, SETTINGS.replace(segment_max_bytes=4096), TS)
    assert shape(drafts) == [(1, 1, True), (2, 2, False)]


def test_every_record_is_in_exactly_one_segment_and_indexed_where_it_lies() -> None:
    topic = make_topic()
    for size in (1, 3, 17, 2, 40):
        publish(topic, [bytes([size]) * size] * size)
    seqs = []
    for draft in plan(topic, SETTINGS.replace(segment_max_bytes=500), TS):
        data, index = bytes_of(draft), draft.job(Path("topic")).index
        assert len(index) == draft.count * ENTRY_BYTES
        for number, row in enumerate(core.decode_frames(data, 0, len(data))):
            entry = entry_at(index, number)
            assert core.decode_frames(data, entry.offset, entry.offset + entry.length) == [row]
            seqs.append(row[0])
    assert seqs == list(range(1, 64))


def test_the_active_segment_goes_on_where_it_ended() -> None:
    topic = make_topic()
    publish(topic, [b"x"] * 4, TS)
    stored(topic, plan(topic, SETTINGS, TS)[0])
    publish(topic, [b"y"] * 3, TS + 5)
    [draft] = plan(topic, SETTINGS, TS + 5)
    assert shape([draft]) == [(1, 7, False)]
    assert (draft.create, draft.old_count, draft.first_ts, draft.last_ts) == (False, 4, TS, TS + 5)
    assert (
        entry_at(draft.job(Path("topic")).index, 0).offset == draft.old_bytes == topic.contents.segments[0].data_bytes
    )


def test_a_sealed_segment_is_not_touched() -> None:
    topic = make_topic()
    publish(topic, [b"x"] * 10)
    stored(topic, plan(topic, SETTINGS, TS)[0])
    publish(topic, [b"y"])
    [draft] = plan(topic, SETTINGS, TS)
    assert (draft.first_seq, draft.create) == (11, True)


def test_a_hole_in_the_seqs_seals_and_begins_anew() -> None:
    topic = make_topic()
    publish(topic, [b"x"] * 3)
    topic.seqs.reach(99)
    publish(topic, [b"y"] * 2)
    assert shape(plan(topic, SETTINGS, TS)) == [(1, 3, True), (100, 101, False)]


def test_the_active_segment_before_a_hole_is_sealed_without_new_bytes() -> None:
    topic = make_topic()
    publish(topic, [b"x"] * 3)
    stored(topic, plan(topic, SETTINGS, TS)[0])
    topic.seqs.reach(99)
    publish(topic, [b"y"])
    first, second = plan(topic, SETTINGS, TS)
    assert shape([first, second]) == [(1, 3, True), (100, 100, False)]
    assert first.data == []


@pytest.mark.parametrize(("age", "seal"), [(999, False), (1000, True)])
def test_an_aged_segment_is_sealed_also_when_nothing_came(age: int, seal: bool) -> None:
    topic = make_topic()
    publish(topic, [b"x"])
    stored(topic, plan(topic, SETTINGS, TS)[0])
    assert shape(plan(topic, SETTINGS, TS + age)) == ([(1, 1, True)] if seal else [])


def test_a_full_segment_that_could_not_be_sealed_is_sealed_and_takes_no_more() -> None:
    """The file of its successor may be there already, from an attempt that failed."""
    topic = make_topic()
    publish(topic, [b"a"] * 10)
    [draft] = plan(topic, SETTINGS, TS)
    stored(topic, draft)
    topic.contents.segments[-1].sealed = False
    publish(topic, [b"b"])
    assert shape(plan(topic, SETTINGS, TS)) == [(1, 10, True), (11, 11, False)]


def test_topicds_own_topics_are_sealed_by_what_a_file_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = make_topic()
    topic.policy.internal = True
    publish(topic, [b"a"] * 25)
    small = SETTINGS.replace(segment_max_bytes=5 * len(stamped([b"a"]).view()))
    assert shape(plan(topic, small, TS)) == [(1, 25, False)]
    monkeypatch.setattr(policy, "_UNLIMITED_BYTES", small.segment_max_bytes)
    assert all(draft.seal for draft in plan(topic, SETTINGS, TS))
