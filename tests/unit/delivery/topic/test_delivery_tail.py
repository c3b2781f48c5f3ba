"""The newest records in memory: order, gathering of small batches, look-up, forgetting."""

from __future__ import annotations

import random

import pytest

from tests.unit.delivery.kit import TS, seqs_of, stamped
from topicd.frames import core
from topicd.limits import FRAME_OVERHEAD
from topicd.shards.delivery.topic.tail import Tail

LARGE = bytes(20_000)


def filled(*sizes: int, data: bytes = b"x") -> Tail:
    tail, first = Tail(), 1
    for number, count in enumerate(sizes):
        tail.append(stamped([data] * count, first, TS + number))
        first += count
    return tail


def test_an_empty_tail_has_nothing() -> None:
    tail = Tail()
    assert (len(tail), tail.bytes, tail.first(), list(tail.from_seq(1))) == (0, 0, None, [])
    tail.drop_through(100)
    assert len(tail) == 0


def test_small_batches_share_one_blob() -> None:
    tail = filled(1, 3, 2, 1)
    assert len(tail) == 1
    blob = tail.first()
    assert blob is not None
    assert (blob.first_seq, blob.last_seq, blob.count) == (1, 7, 7)
    assert (blob.first_ts, blob.last_ts) == (TS, TS + 3)
    assert seqs_of(tail) == [1, 2, 3, 4, 5, 6, 7]


def test_large_batches_stay_where_they_are() -> None:
    batch = stamped([LARGE])
    tail = Tail()
    tail.append(batch)
    assert tail.first() is batch


def test_a_small_batch_behind_a_large_one_opens_a_blob_of_its_own() -> None:
    tail = filled(1)
    tail.append(stamped([LARGE], 2))
    tail.append(stamped([b"y"], 3))
    assert [(blob.first_seq, blob.last_seq) for blob in tail] == [(1, 1), (2, 2), (3, 3)]


def test_a_hole_in_the_seqs_begins_a_new_blob() -> None:
    tail = filled(2)
    tail.append(stamped([b"y"], 10))
    assert [(blob.first_seq, blob.last_seq) for blob in tail] == [(1, 2), (10, 10)]
    assert [blob.first_seq for blob in tail.from_seq(5)] == [10]


def test_a_closed_blob_takes_nothing_more() -> None:
    """A checkpoint thread reads its frames: they must not grow under it."""
    tail = filled(2)
    before = tail.first()
    assert before is not None
    end = before.end
    tail.close_open()
    tail.append(stamped([b"y"], 3))
    assert (before.end, before.last_seq) == (end, 2)
    assert [blob.first_seq for blob in tail] == [1, 3]


def test_a_view_into_the_open_blob_survives_later_appends() -> None:
    tail = filled(1)
    blob = tail.first()
    assert blob is not None
    view = memoryview(blob.data)[blob.start : blob.end]
    copy = bytes(view)
    for seq in range(2, 500):
        tail.append(stamped([b"more"], seq))
    assert bytes(view) == copy


@pytest.mark.parametrize("seq", range(1, 12))
def test_from_seq_begins_with_the_blob_that_holds_it(seq: int) -> None:
    tail = Tail()
    for first, count in ((1, 3), (4, 1), (5, 6)):
        tail.append(stamped([LARGE] * count, first))
    found = list(tail.from_seq(seq))
    if seq > 10:
        assert found == []
    else:
        assert found[0].first_seq <= seq <= found[0].last_seq
        assert found[-1].last_seq == 10


def test_from_a_seq_before_the_first_gives_everything() -> None:
    tail = Tail()
    tail.append(stamped([b"x"] * 3, 100))
    assert [blob.first_seq for blob in tail.from_seq(1)] == [100]


def test_offsets_point_to_the_frames() -> None:
    tail = filled(1, 2, 1)
    blob = tail.first()
    assert blob is not None
    for seq in range(blob.first_seq, blob.last_seq + 1):
        rows = core.decode_frames(blob.data, blob.offset_of(seq), blob.offset_of(seq + 1))
        assert [row[0] for row in rows] == [seq]
    assert blob.offset_of(blob.last_seq + 1) == blob.end


def test_content_leaves_out_the_overhead_of_frames() -> None:
    batch = stamped([b"abc", b"de"], tags=b"t", nodes=[None, b"n1"])
    assert batch.content_bytes() == 3 + 2 + 2 * 1 + 2
    assert batch.end - batch.start == batch.content_bytes() + 2 * FRAME_OVERHEAD


def test_drop_through_forgets_whole_blobs_only() -> None:
    tail = Tail()
    for first in (1, 4, 7):
        tail.append(stamped([LARGE] * 3, first))
    whole = tail.bytes
    tail.drop_through(5)
    assert seqs_of(tail) == [4, 5, 6, 7, 8, 9]
    assert tail.bytes == whole // 3 * 2
    tail.drop_through(9)
    assert (len(tail), tail.bytes) == (0, 0)


def test_dropping_the_open_blob_closes_it() -> None:
    tail = filled(3)
    tail.drop_through(3)
    tail.append(stamped([b"y"], 4))
    assert seqs_of(tail) == [4]
    assert tail.bytes == sum(blob.end - blob.start for blob in tail)


@pytest.mark.parametrize("seed", range(5))
def test_any_mix_of_batches_reads_back_in_order(seed: int) -> None:
    chance = random.Random(seed)
    tail, written, first = Tail(), {}, 1
    for _ in range(300):
        datas = [chance.randbytes(chance.choice([0, 1, 30, 400, 9_000])) for _ in range(chance.randint(1, 5))]
        tail.append(stamped(datas, first))
        written |= {first + i: data for i, data in enumerate(datas)}
        first += len(datas)
        if chance.random() < 0.05:
            tail.close_open()
        if chance.random() < 0.02:
            tail.drop_through(chance.randint(1, first - 1))
            kept = tail.first()
            written = {seq: data for seq, data in written.items() if kept is not None and seq >= kept.first_seq}
        assert tail.bytes == sum(blob.end - blob.start for blob in tail)
    rows = [row for blob in tail for row in core.decode_frames(blob.data, blob.start, blob.end)]
    assert {row[0]: row[5] for row in rows} == written
    assert [row[0] for row in rows] == sorted(written)
    for blob in tail:
        assert core.scan_frames(blob.data, blob.start, blob.end).problem == ""


def test_the_blob_of_a_seq_is_the_one_that_holds_it() -> None:
    tail = filled(*[4] * 3)
    first = tail.first()
    assert first is not None and tail.blob_of(0) is None and tail.blob_of(tail.last().last_seq + 1) is None  # type: ignore[union-attr]
    for blob in tail:
        assert all(tail.blob_of(seq) is blob for seq in range(blob.first_seq, blob.last_seq + 1))
        parts = [blob.content_of(seq, seq) for seq in range(blob.first_seq, blob.last_seq + 1)]
        assert sum(parts) == blob.content_of(blob.first_seq, blob.last_seq) == blob.content_bytes()
