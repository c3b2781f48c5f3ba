"""Records of this shard's topics as one batch: exactly those that were asked for, or nothing."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk, Writer
from topicd.errors import BatchTooLarge, Conflict, InvalidRequest
from topicd.frames import core
from topicd.ipc.protocol.wire import APPEND, COPIED, FLAG_COPY
from topicd.limits import MAX_COPY_RANGES, MAX_SEQ
from topicd.model import TagMatch
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing import copy_ranges
from topicd.shards.delivery.writing.copy_ranges import CopyRange, ranges_of


def packed(*ranges: tuple[int, int, int]) -> bytes:
    return b"".join(COPIED.pack(*one) for one in ranges)


def copy(desk: Desk, target: Topic, *ranges: tuple[int, int, int], count: int | None = None) -> Writer:
    total = sum(one[2] for one in ranges) if count is None else count
    writer = Writer()
    body = APPEND.pack(target.id, 0, 0, total) + packed(*ranges)
    desk.parts.appender.append(writer, 1, FLAG_COPY, memoryview(body))
    desk.parts.turn.end()
    desk.settle()
    return writer


def datas(topic: Topic) -> list[bytes]:
    return [
        bytes(row[5]) for blob in topic.contents.tail for row in core.decode_frames(blob.data, blob.start, blob.end)
    ]


@pytest.fixture
def source(desk: Desk) -> Topic:
    topic = desk.topic("source")
    desk.serve()
    desk.write(topic, [b"1", b"2", b"3"])
    desk.checkpoint()  # these are in a segment, the others in memory
    desk.write(topic, [b"4", b"5"])
    assert topic.seqs.stored == 3
    return topic


@pytest.fixture
def target(desk: Desk, source: Topic) -> Topic:
    return desk.topic("target")


@pytest.mark.parametrize("body", [b"", bytes(COPIED.size - 1), bytes(COPIED.size + 1)])
def test_ranges_come_whole(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        ranges_of(body)


def test_ranges_are_bounded_in_number() -> None:
    most = packed(*[(1, 2, 3)] * MAX_COPY_RANGES)
    assert ranges_of(most) == [CopyRange(1, 2, 3)] * MAX_COPY_RANGES
    with pytest.raises(BatchTooLarge):
        ranges_of(most + packed((1, 2, 3)))


def test_a_copy_is_the_records_in_the_order_asked_for(desk: Desk, source: Topic, target: Topic) -> None:
    told = copy(desk, target, (source.id, 3, 2), (source.id, 1, 2), (source.id, 0, 3)).told
    assert [(one.how, one.first_seq, one.records) for one in told] == [("appended", 1, 7)]
    assert datas(target) == [b"4", b"5", b"2", b"3", b"1", b"2", b"3"]


@pytest.mark.parametrize(("from_seq", "count"), [(0, 2), (2, 2), (0, 5)])
def test_a_range_is_one_batch_or_its_last_records(
    desk: Desk, source: Topic, target: Topic, from_seq: int, count: int
) -> None:
    with pytest.raises(InvalidRequest):
        copy(desk, target, (source.id, from_seq, count))
    assert (target.seqs.head, target.flight.count) == (0, 0)


def test_a_copy_is_one_batch(desk: Desk, source: Topic, target: Topic) -> None:
    """Only its last frame ends a batch: half a copy in the log is none."""
    desk.wal.log = b""
    copy(desk, target, (source.id, 0, 3), (source.id, 3, 2), (source.id, 4, 1))
    scan = core.scan_frames(desk.wal.log, 0, len(desk.wal.log))
    [run] = [run for run in scan.runs if run.topic_id == target.id]
    assert (run.count, run.whole_count) == (6, 6)
    half = desk.wal.log[run.start : run.end - 50]
    cut = core.scan_frames(half, 0, len(half)).runs
    assert all(one.whole_count == 0 for one in cut)


@pytest.mark.parametrize(
    ("from_seq", "count"), [(0, 6), (5, 1), (4, 2), (100, 1)], ids=["one too many", "behind", "half", "far behind"]
)
def test_records_that_are_not_there_are_a_conflict(
    desk: Desk, source: Topic, target: Topic, from_seq: int, count: int
) -> None:
    with pytest.raises(Conflict):
        copy(desk, target, (source.id, 0, 3), (source.id, from_seq, count))
    assert (target.seqs.head, target.flight.count) == (0, 0)


def test_a_deleted_record_is_not_copied_and_not_passed_over(desk: Desk, source: Topic, target: Topic) -> None:
    desk.write(source, [b"6"], tags=b"t")
    desk.write(source, [b"7"])
    desk.parts.deletion.delete(source, None, TagMatch(b"t"), lambda body, error: None)
    desk.settle()
    with pytest.raises(Conflict):
        copy(desk, target, (source.id, 4, 3))
    assert copy(desk, target, (source.id, 6, 1)).told[0].how == "appended"


def test_what_a_cap_took_is_not_passed_over(desk: Desk, target: Topic) -> None:
    capped = desk.topic("capped", cap_records=2)
    desk.write(capped, [b"1"])
    desk.write(capped, [b"2", b"3"])
    with pytest.raises(Conflict):
        copy(desk, target, (capped.id, 0, 2))


def test_an_unknown_source_is_a_conflict(desk: Desk, target: Topic) -> None:
    with pytest.raises(Conflict):
        copy(desk, target, (99, 0, 1))


def test_the_write_says_how_many_there_are(desk: Desk, source: Topic, target: Topic) -> None:
    with pytest.raises(InvalidRequest):
        copy(desk, target, (source.id, 0, 3), count=2)


@pytest.mark.parametrize(("from_seq", "count"), [(0, 0), (MAX_SEQ, 1)])
def test_a_range_that_is_none_is_refused(desk: Desk, source: Topic, target: Topic, from_seq: int, count: int) -> None:
    with pytest.raises(InvalidRequest):
        copy(desk, target, (source.id, 0, 3), (source.id, from_seq, count))


def test_a_copy_is_bounded_in_bytes(desk: Desk, source: Topic, target: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    size = desk.parts.reader.fetch(source, 0, 5, 10_000, NO_FILTER).bytes
    monkeypatch.setattr(copy_ranges, "MAX_COPY_BYTES", size)
    assert copy(desk, target, (source.id, 0, 3), (source.id, 3, 2)).told[0].how == "appended"
    with pytest.raises(BatchTooLarge):
        copy(desk, target, (source.id, 0, 3), (source.id, 3, 2), (source.id, 4, 1))
