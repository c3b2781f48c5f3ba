"""What becomes of records on the way, with both cores."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from topicd.frames import HOPS_AT, core
from topicd.limits import HOPS_MAX, MAX_DATA_AND_META, MAX_META_KEYS, MAX_TAG
from topicd.shards.delivery.routing.copies import ORIGINAL, STAMP, make
from topicd.shards.delivery.routing.definition import Definition

ONE = Definition("r", "orders", "audit", id=1, source_id=7, dest_id=8)


def stored(
    count: int, *, first: int = 1, hops: int = 0, meta: dict[str, Any] | None = None, tag: bytes = b"t%d"
) -> bytearray:
    tags, nodes = [tag % n if b"%" in tag else tag for n in range(count)], [b"n%d" % n for n in range(count)]
    metas = None if meta is None else [msgpack.packb(meta)] * count
    frames = core.encode_batch([b"data %d" % n for n in range(count)], tags, nodes, metas)
    for offset in memoryview(core.frame_offsets(frames, 0, len(frames))).cast("I"):
        frames[offset + HOPS_AT] = hops
    core.stamp_frames(frames, 0, len(frames), 7, first, 1_000, False, True)
    return frames


def records(frames: bytearray) -> list[Any]:
    """As they lie in the destination."""
    core.stamp_frames(frames, 0, len(frames), 8, 1, 2_000, False, True)
    assert core.scan_frames(frames, 0, len(frames)).problem == ""
    return [row[2:] for row in core.decode_frames(frames, 0, len(frames))]


def copies_of(frames: bytearray, one: Definition = ONE, after: int = 0, limit: int = 100) -> list[Any]:
    made = make(one, frames, 0, len(frames), after, limit)
    rows = records(made.frames) if made.records else []
    assert made.records == len(rows)
    return rows


def test_a_plain_copy_has_everything() -> None:
    assert copies_of(stored(2)) == [(b"n0", b"t0", None, b"data 0"), (b"n1", b"t1", None, b"data 1")]


def test_node_and_tag_may_stay_behind() -> None:
    assert copies_of(stored(1), replace(ONE, preserve_node=False)) == [(None, b"t0", None, b"data 0")]
    assert copies_of(stored(1, meta={"a": 1}), replace(ONE, preserve_tag=False, preserve_node=False)) == [
        (None, None, msgpack.packb({"a": 1}), b"data 0")
    ]


def test_a_batch_is_cut_and_says_where() -> None:
    frames = stored(5, first=11)
    made = make(ONE, frames, 0, len(frames), 11, 2)
    assert (made.records, made.last_seq, made.complete) == (2, 13, False)
    made = make(ONE, frames, 0, len(frames), 13, 2)
    assert (made.records, made.last_seq, made.complete) == (2, 15, True)


@pytest.mark.parametrize("plain", [True, False])
def test_hops_are_counted_and_end(plain: bool) -> None:
    one = ONE if plain else replace(ONE, set_tag="{tag}")
    frames = stored(1)
    for hop in range(1, HOPS_MAX + 1):
        made = make(one, frames, 0, len(frames), 0, 10)
        assert made.records == 1
        frames = made.frames
        core.stamp_frames(frames, 0, len(frames), 7, 1, 1_000, False, True)
        assert frames[HOPS_AT] == hop
    made = make(one, frames, 0, len(frames), 0, 10)
    assert (made.records, bytes(made.frames), made.last_seq, made.complete) == (0, b"", 1, True)


def test_templates_know_tag_node_and_source() -> None:
    one = replace(ONE, set_tag="copy:{tag}", set_node="{source}/{node}")
    assert copies_of(stored(1), one) == [(b"orders/n0", b"copy:t0", None, b"data 0")]
    long = copies_of(stored(1), replace(ONE, set_tag="é" * 200))
    assert len(long[0][1]) == MAX_TAG
    assert long[0][1].decode() == "é" * 128


def test_a_sample_is_the_same_every_time() -> None:
    one = replace(ONE, sample=4)
    chosen = copies_of(stored(400), one, limit=1_000)
    assert 50 < len(chosen) < 150
    assert copies_of(stored(400), one, limit=1_000) == chosen


def test_a_stamp_says_whose_copy_it_is() -> None:
    (row,) = copies_of(stored(1, first=41, meta={"unit": "C"}), replace(ONE, guarantee="exactly_once"))
    meta = msgpack.unpackb(row[2])
    assert meta["unit"] == "C"
    assert meta[STAMP] == {
        "idempotency_key": "router:r:7:7:41",
        "router": "r",
        "source_topic": "orders",
        "source_topic_id": 7,
        "source_epoch": 7,
        "source_seq": 41,
    }


def test_a_full_meta_goes_one_level_down() -> None:
    full = {f"k{n:02d}": n for n in range(MAX_META_KEYS)}
    (row,) = copies_of(stored(1, meta=full), replace(ONE, guarantee="exactly_once"))
    meta = msgpack.unpackb(row[2])
    assert set(meta) == {STAMP, ORIGINAL}
    assert meta[ORIGINAL] == full


def test_a_stamp_fits_on_the_largest_record() -> None:
    frames = core.encode_batch([b"x" * MAX_DATA_AND_META], None, None, None)
    core.stamp_frames(frames, 0, len(frames), 7, 1, 1_000, False)
    long = replace(ONE, router="r" * 255, source="s" * 255, guarantee="exactly_once")
    (row,) = copies_of(frames, long)
    assert len(row[3]) == MAX_DATA_AND_META


@pytest.mark.parametrize("mine", ["mine", 7, {"idempotency_key": "of my own"}, {}])
def test_what_somebody_else_has_in_the_place_of_the_stamp_is_kept(mine: object) -> None:
    (row,) = copies_of(stored(1, meta={STAMP: mine, "unit": "C"}), replace(ONE, guarantee="exactly_once"))
    meta = msgpack.unpackb(row[2])
    assert set(meta) == {STAMP, ORIGINAL}
    assert meta[STAMP]["router"] == "r"
    assert meta[ORIGINAL] == {STAMP: mine, "unit": "C"}


def test_a_second_stamp_takes_the_place_of_the_first() -> None:
    (first,) = copies_of(stored(1, meta={"unit": "C"}), replace(ONE, guarantee="exactly_once"))
    (row,) = copies_of(stored(1, meta=msgpack.unpackb(first[2])), replace(ONE, router="q", guarantee="exactly_once"))
    meta = msgpack.unpackb(row[2])
    assert set(meta) == {STAMP, "unit"} and meta[STAMP]["router"] == "q"


def test_a_tag_that_looks_like_a_template_is_none() -> None:
    (row,) = copies_of(stored(1, tag=b"{source}{node}"), replace(ONE, set_tag="copy:{tag}:{source}"))
    assert row[1] == b"copy:{source}{node}:orders"


@pytest.mark.parametrize(
    ("tag", "left"),
    [
        (b"x" * 250 + "\u00e4".encode() * 3, b"c:" + b"x" * 250 + "\u00e4\u00e4".encode()),
        (b"x" * 251 + "\u00e4".encode() * 2, b"c:" + b"x" * 251 + "\u00e4".encode()),
        (b"\xff" * 256, b"c:" + b"\xff" * 254),
    ],
)
def test_what_is_too_long_is_cut_behind_a_character_and_loses_nothing_before(tag: bytes, left: bytes) -> None:
    (row,) = copies_of(stored(1, tag=tag), replace(ONE, set_tag="c:{tag}"))
    assert row[1] == left
