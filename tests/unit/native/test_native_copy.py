"""Copies of records for another topic: the same from both cores."""

from __future__ import annotations

import random

import pytest

from topicd._native import pure
from topicd._native.interface import Core
from topicd.frames import FLAGS_AT, HOPS_AT, TS_AT, FrameFlag, copied_frame
from topicd.limits import HOPS_MAX, MAX_DATA_AND_META, MAX_STAMP


def stored(codec: Core, chance: random.Random, count: int) -> bytearray:
    datas = [chance.randbytes(chance.randrange(40)) for _ in range(count)]
    tags = [chance.choice([None, b"t", b"tag:1"]) for _ in range(count)]
    nodes = [chance.choice([None, b"n", b"x" * 128]) for _ in range(count)]
    metas = [chance.choice([None, b"\x81\xa1a\x01"]) for _ in range(count)]
    frames = codec.encode_batch(datas, tags, nodes, metas)
    for offset in memoryview(codec.frame_offsets(frames, 0, len(frames))).cast("I"):
        frames[offset + HOPS_AT] = chance.randrange(HOPS_MAX + 2)
    codec.stamp_frames(frames, 0, len(frames), 7, 1, 1_000, chance.random() < 0.5, True)
    return frames


@pytest.mark.parametrize("seed", range(20))
def test_both_cores_make_the_same(codec: Core, seed: int) -> None:
    chance = random.Random(seed)
    frames = stored(codec, chance, chance.randrange(1, 60))
    for node, tag in ((True, True), (False, True), (True, False), (False, False)):
        made = codec.copy_frames(frames, 0, len(frames), HOPS_MAX, node, tag)
        assert made == pure.copy_frames(frames, 0, len(frames), HOPS_MAX, node, tag)
        if not made:
            continue
        codec.stamp_frames(made, 0, len(made), 8, 1, 2_000, False, True)
        before = [
            (None if not node else row[2], None if not tag else row[3], *row[4:])
            for row, offset in zip(codec.decode_frames(frames, 0, len(frames)), offsets(codec, frames), strict=True)
            if frames[offset + HOPS_AT] < HOPS_MAX
        ]
        assert [row[2:] for row in codec.decode_frames(made, 0, len(made))] == before


def offsets(codec: Core, frames: bytearray) -> list[int]:
    return list(memoryview(codec.frame_offsets(frames, 0, len(frames))).cast("I"))


def test_hops_go_up_by_one_and_the_last_frame_ends_the_batch(codec: Core) -> None:
    frames = codec.encode_batch([b"a", b"b"], None, None, None)
    codec.stamp_frames(frames, 0, len(frames), 7, 1, 1_000, True)
    made = codec.copy_frames(frames, 0, len(frames), 1, True, True)
    first, second = offsets(codec, made)
    assert (made[first + HOPS_AT], made[second + HOPS_AT]) == (1, 1)
    assert (made[first + FLAGS_AT], made[second + FLAGS_AT]) == (FrameFlag.MORE, 0)
    assert codec.copy_frames(made, 0, len(made), 1, True, True) == b""


def test_only_routers_count_hops(codec: Core) -> None:
    frames = codec.encode_batch([b"a"], None, None, None)
    frames[HOPS_AT] = 1
    with pytest.raises(ValueError, match="only routers count them"):
        codec.stamp_frames(bytearray(frames), 0, len(frames), 7, 1, 1_000, False)
    codec.stamp_frames(frames, 0, len(frames), 7, 1, 1_000, False, True)


def test_a_copy_may_be_larger_by_a_stamp_and_no_more(codec: Core) -> None:
    for extra, fits in ((0, True), (1, False)):
        meta = b"\xc4\xff" + bytes(MAX_STAMP - 2)
        frame = bytearray(copied_frame(b"", b"", meta, bytes(MAX_DATA_AND_META + extra), 1, more=False))
        if fits:
            codec.stamp_frames(frame, 0, len(frame), 7, 1, 1_000, False, True)
        else:
            with pytest.raises(ValueError, match="data with meta"):
                codec.stamp_frames(frame, 0, len(frame), 7, 1, 1_000, False, True)


def test_frames_that_are_none_are_refused(codec: Core) -> None:
    with pytest.raises(ValueError, match="frame at offset"):
        codec.copy_frames(b"\x00" * 50, 0, 50, 8, True, True)


@pytest.mark.parametrize("seed", range(10))
def test_copies_keep_their_times_which_never_go_back(codec: Core, seed: int) -> None:
    chance = random.Random(seed)
    frames = codec.encode_batch([chance.randbytes(9) for _ in range(20)], b"t", None, None)
    times = [chance.randrange(1_000, 1_010) for _ in range(20)]
    for offset, ts in zip(offsets(codec, frames), times, strict=True):
        frames[offset + TS_AT : offset + TS_AT + 8] = ts.to_bytes(8, "little")
    twin = bytearray(frames)
    packed = codec.stamp_copies(frames, 0, len(frames), 9, 5, 1_003)
    assert (packed, frames) == (pure.stamp_copies(twin, 0, len(twin), 9, 5, 1_003), twin)
    rows = codec.decode_frames(frames, 0, len(frames))
    assert [row[0] for row in rows] == list(range(5, 25))
    assert [row[1] for row in rows] == [max(1_003, *times[: n + 1]) for n in range(20)]
    assert {frames[offset + FLAGS_AT] for offset in offsets(codec, frames)} == {FrameFlag.TAG}
    assert codec.scan_frames(frames, 0, len(frames)).problem == ""


def test_a_copy_looks_the_same_whatever_it_was_copied_with(codec: Core) -> None:
    frames = codec.encode_batch([b"a", b"b", b"c"], None, None, None)
    codec.stamp_frames(frames, 0, len(frames), 7, 1, 1_000, True)
    whole = codec.copy_frames(frames, 0, len(frames), 8, True, True)
    codec.stamp_copies(whole, 0, len(whole), 9, 1, 0)
    _, second, _ = offsets(codec, frames)
    apart = [codec.copy_frames(frames, *part, 8, True, True) for part in ((0, second), (second, len(frames)))]
    for first_seq, part in zip((1, 2), apart, strict=True):
        codec.stamp_copies(part, 0, len(part), 9, first_seq, 0)
    assert b"".join(apart) == whole


def test_bad_copies_are_refused_and_not_touched(codec: Core) -> None:
    frames = codec.encode_batch([b"a", b"b"], None, None, None)
    for bad, seq in ((frames[:-1], 1), (frames, 0), (bytearray(), 1)):
        before = bytearray(bad)
        with pytest.raises(ValueError):
            codec.stamp_copies(bad, 0, len(bad), 9, seq, 0)
        assert bad == before
