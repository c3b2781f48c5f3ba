"""Native and pure give the same result or the same refusal for the same input, valid or hostile."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_cases import (
    blank,
    client_batches,
    hostile_batches,
    hostile_frames,
    hostile_metas,
    letters,
    maps,
    maybe,
    native,
    outcome,
    short,
    small,
    stored_frames,
    words,
)

from topicd._native import pure
from topicd._native.interface import Core
from topicd.frames import producer_frame

if native is None:
    pytest.skip("the native core is not built", allow_module_level=True)
NATIVE: Core = native

many = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
kinds = st.sampled_from((bytes, bytearray, lambda data: memoryview(bytearray(data))))


def assert_same(name: str, *args: Any) -> None:
    assert outcome(getattr(NATIVE, name), *args) == outcome(getattr(pure, name), *args)


@st.composite
def spans(draw: st.DrawFn, bytes_of: st.SearchStrategy[bytes]) -> tuple[Any, int, int]:
    """A buffer and mostly all of it, sometimes a part, sometimes more than there is."""
    data = draw(bytes_of)
    buffer = draw(kinds)(data)
    match draw(st.sampled_from(("all", "all", "all", "part", "wild"))):
        case "all":
            return buffer, 0, len(data)
        case "part":
            end = draw(st.integers(0, len(data)))
            return buffer, draw(st.integers(0, end)), end
        case _:
            return buffer, draw(st.integers(-2, 200) | words), draw(st.integers(-2, 200) | words)


frames = spans(stored_frames() | hostile_frames)


@many
@given(frames)
def test_readers_agree(span: tuple[Any, int, int]) -> None:
    for name in ("scan_frames", "frame_offsets", "frame_tags", "decode_frames", "payloads", "columns"):
        assert_same(name, *span)


@many
@given(frames, small | words | st.just(2**32 - 200))
def test_index_entries_agree(span: tuple[Any, int, int], base: int) -> None:
    assert_same("index_entries", *span, base)


numbers = small | st.integers(0, 400) | words
dead_ranges = st.lists(small | words, max_size=6).map(lambda seqs: struct.pack(f"<{len(seqs)}Q", *seqs))


conditions = st.tuples(
    small | words,  # after_seq
    numbers,  # up_to_seq
    numbers,  # limit
    numbers,  # max_bytes
    small,  # min_ts
    st.none() | letters,  # tag_eq
    st.none() | letters,  # tag_prefix
    st.lists(letters, max_size=3),  # nodes
    dead_ranges,
)


@many
@given(frames, conditions)
def test_select_agrees(span: tuple[Any, int, int], conditions: tuple[Any, ...]) -> None:
    assert_same("select_frames", *span, *conditions)


@many
@given(spans(client_batches() | hostile_batches), words, small | words, small | words, st.booleans())
def test_stamp_agrees_on_result_and_on_what_was_written(
    span: tuple[Any, int, int], topic_id: int, first_seq: int, ts: int, durable: bool
) -> None:
    buffer, start, end = span
    ours, theirs = bytearray(buffer), bytearray(buffer)
    arguments = (start, end, topic_id, first_seq, ts, durable)
    said = outcome(NATIVE.stamp_frames, ours, *arguments)
    assert said == outcome(pure.stamp_frames, theirs, *arguments)
    assert ours == theirs
    if said[0] == "refused":
        assert ours == buffer
    else:
        assert NATIVE.scan_frames(ours, start, end).problem == ""


values = st.none() | letters


@many
@given(
    st.lists(st.binary(max_size=12) | st.binary(max_size=12).map(bytearray), max_size=5),
    st.data(),
)
def test_encode_agrees_and_its_batch_is_accepted(datas: list[bytes], data: st.DataObject) -> None:
    def column(value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.none() | st.lists(value, min_size=len(datas), max_size=len(datas)) | st.lists(value, max_size=3)

    tags = data.draw(column(values) | maybe)
    nodes = data.draw(column(values) | maybe)
    metas = data.draw(column(st.none() | hostile_metas))
    said = outcome(NATIVE.encode_batch, datas, tags, nodes, metas)
    assert said == outcome(pure.encode_batch, datas, tags, nodes, metas)
    if said[0] == "gave":
        batch = said[2]
        offsets = NATIVE.stamp_frames(batch, 0, len(batch), 1, 1, 1, False)
        assert len(offsets) == 4 * len(datas)
        assert NATIVE.payloads(batch, 0, len(batch)) == datas


def arrow_column(column: list[bytes | None], first: int = 0) -> tuple[bytes, bytes, bytes, int]:
    """As Arrow lays it out, behind `first` rows of something else."""
    column = [b"before"] * first + column
    bits = sum(1 << row for row, value in enumerate(column) if value is not None)
    at = [sum(len(value or b"") for value in column[:row]) for row in range(len(column) + 1)]
    packed = struct.pack(f"<{len(at)}i", *at)
    return bits.to_bytes(len(column) // 8 + 1, "little"), packed, b"".join(value or b"" for value in column), first


@many
@given(st.lists(st.binary(max_size=12), min_size=1, max_size=12), st.integers(0, 9), st.data())
def test_columns_are_encoded_like_the_same_values_in_lists(datas: list[bytes], first: int, data: st.DataObject) -> None:
    def column(value: st.SearchStrategy[bytes | None]) -> list[bytes | None] | None:
        return data.draw(st.none() | st.lists(value, min_size=len(datas), max_size=len(datas)))

    tags, nodes, metas = column(values), column(values), column(st.none() | maps)
    arrow = [None if labels is None else arrow_column(labels, first) for labels in (tags, nodes, metas)]
    labels = [None if labels is None else [value or None for value in labels] for labels in (tags, nodes, metas)]
    given_columns = (len(datas), arrow_column([*datas], first), *arrow)
    assert NATIVE.encode_columns(*given_columns) == NATIVE.encode_batch(datas, *labels)
    assert pure.encode_columns(*given_columns) == NATIVE.encode_batch(datas, *labels)


@st.composite
def hostile_columns(draw: st.DrawFn) -> Any:
    """A column with buffers that are cut, offsets that lie and a first row that is not there; or none at all."""
    kind = draw(st.sampled_from(("good", "good", "offsets", "cut", "wild", "none", "one", "shape")))
    if kind in ("none", "one", "shape"):
        return {"none": None, "one": draw(letters), "shape": (b"", b"")}[kind]
    valid, offsets, content, first = arrow_column(draw(st.lists(st.none() | hostile_metas | letters, max_size=5)))
    if kind == "offsets":
        lies = st.lists(st.integers(-3, 30) | st.sampled_from((-(2**31), 2**31 - 1)), min_size=1, max_size=7)
        offsets = b"".join(struct.pack("<i", at) for at in draw(lies))
    elif kind == "cut":
        valid, offsets = valid[: draw(small)], offsets[: draw(st.integers(0, 30))]
    elif kind == "wild":
        first = draw(st.integers(-1, 4) | words)
    return draw(st.sampled_from((valid, None))), draw(kinds)(offsets), draw(kinds)(content), first


@many
@given(st.integers(-1, 6) | words, hostile_columns(), hostile_columns(), hostile_columns(), hostile_columns())
def test_hostile_columns_are_judged_alike(count: int, datas: Any, tags: Any, nodes: Any, metas: Any) -> None:
    assert_same("encode_columns", count, datas, tags, nodes, metas)


@many
@given(hostile_metas)
def test_meta_is_judged_alike(meta: bytes) -> None:
    assert_same("encode_batch", [b"x"], None, None, [meta])


@many
@given(st.binary(max_size=600), st.integers(-1, 5) | words)
def test_checksums_agree(data: bytes, seed: int) -> None:
    assert_same("xxh3_64", data, seed)
    assert_same("xxh3_64", memoryview(data)[1:])


@many
@given(st.integers(0, 40), st.integers(-8, 48) | words, st.integers(-1, 2) | words)
def test_words_agree(size: int, offset: int, value: int) -> None:
    ours, theirs = bytearray(size), bytearray(size)
    for store, load in (("store", "load"), ("store_fence", "fence_load")):
        stored = outcome(getattr(NATIVE, store), ours, offset, value)
        assert stored == outcome(getattr(pure, store), theirs, offset, value)
        assert ours == theirs
        assert outcome(getattr(NATIVE, load), ours, offset) == outcome(getattr(pure, load), theirs, offset)


@many
@given(
    st.integers(0, 30),
    st.integers(-1, 12) | words,
    st.integers(-1, 20) | words,
    small | words,
    st.binary(max_size=24),
    st.integers(-1, 24),
    st.integers(-1, 26),
)
def test_ring_writes_agree(
    memory: int, body_at: int, capacity: int, head: int, data: bytes, start: int, end: int
) -> None:
    ours, theirs = bytearray(memory), bytearray(memory)
    arguments = (body_at, capacity, head, data, start, end)
    assert outcome(NATIVE.ring_write, ours, *arguments) == outcome(pure.ring_write, theirs, *arguments)
    assert ours == theirs


@given(st.integers(1, 24), st.integers(0, 100), short)
def test_ring_write_then_read_back(capacity: int, head: int, data: bytes) -> None:
    for core in (NATIVE, pure):
        memory = bytearray(b"#" * (capacity + 16))
        if len(data) <= capacity:
            assert core.ring_write(memory, 8, capacity, head, data, 0, len(data)) == head + len(data)
            assert bytes(memory[8 + (head + i) % capacity] for i in range(len(data))) == data
        assert memory[:8] == memory[8 + capacity :] == b"#" * 8


# ---- runs of single-record appends ----

RUN_OF = (7, 11, 5)  # topic id, producer id, first batch number


@st.composite
def append_messages(draw: st.DrawFn) -> bytes:
    """A run, often with something at its end or in its middle that does not belong to it."""
    topic_id, producer_id, number = RUN_OF
    out = b""
    for index in range(draw(st.integers(0, 6))):
        frame = blank(
            draw(st.binary(max_size=40)),
            tag=draw(st.none() | st.binary(min_size=1, max_size=4)),
            node=draw(st.none() | st.binary(min_size=1, max_size=4)),
            flags=draw(st.none() | st.none() | st.none() | st.integers(0, 255)),
            meta=draw(st.none() | st.none() | st.none() | st.just(b"\x80")),
            more=draw(st.sampled_from((False, False, False, True))),
        )
        odd = draw(st.sampled_from((None, None, None, None, "op", "flags", "topic", "producer", "number", "count")))
        fixed = struct.pack(
            "<QQQI",
            topic_id + (odd == "topic"),
            producer_id + (odd == "producer"),
            number + index + (odd == "number"),
            1 + (odd == "count"),
        )
        length = 6 + len(fixed) + len(frame) + draw(st.sampled_from((0, 0, 0, 0, 0, 1, -1, 2**31)))
        op, flags = 0x20 + (odd == "op"), 64 * (odd == "flags")
        out += struct.pack("<IBBI", length % 2**32, op, flags, draw(st.integers(0, 2**32 - 1))) + fixed + frame
    return out[: draw(st.integers(0, len(out)))] if draw(st.booleans()) else out


@many
@given(
    spans(append_messages()),
    st.sampled_from((1, 1, 1, 0, 500, 2**63 - 1, 2**63 - 513, 2**64)),
    st.sampled_from((9, 9, 0, 2**63)),
    st.booleans(),
    st.sampled_from((0, 1, 3, 512, 10**6)),
    st.sampled_from((0, 100, 2**20)),
)
def test_runs_agree(
    span: tuple[Any, int, int], first_seq: int, ts: int, durable: bool, most: int, max_bytes: int
) -> None:
    assert_same("take_run", *span, *RUN_OF, first_seq, ts, durable, most, max_bytes)


@many
@given(st.binary(max_size=41), small | words, small | words)
def test_answers_to_runs_agree(request_ids: bytes, first_seq: int, head_seq: int) -> None:
    assert_same("run_answers", request_ids, first_seq, head_seq)


def test_a_run_is_what_stamping_each_append_gives() -> None:
    topic_id, producer_id, number = RUN_OF
    frames = [blank(b"a" * 5), blank(b"", tag=b"t"), blank(b"c", node=b"n")]
    messages = b"".join(
        struct.pack("<IBBIQQQI", 34 + len(frame), 0x20, 0, 90 + i, topic_id, producer_id, number + i, 1) + frame
        for i, frame in enumerate(frames)
    )
    for core in (NATIVE, pure):
        taken = core.take_run(messages + b"\x01\x00", 0, len(messages) + 2, *RUN_OF, 40, 1_000, True, 512, 1 << 20)
        assert taken is not None
        used, stamped, offsets, wire, request_ids = taken
        expected, at, both = b"", [], b""
        for i, frame in enumerate(frames):
            copy = bytearray(frame)
            core.stamp_frames(copy, 0, len(copy), topic_id, 40 + i, 1_000, True)
            at.append(len(expected))
            expected += copy
            both += producer_frame(topic_id, 40 + i, 1_000, producer_id, number + i, 1) + copy
        assert (used, bytes(stamped), wire) == (len(messages), expected, both)
        assert struct.unpack("<3I", offsets) == tuple(at)
        assert struct.unpack("<3I", request_ids) == (90, 91, 92)
        answers = core.run_answers(request_ids, 40, 42)
        assert [*struct.iter_unpack("<IBBIQIQ", answers)] == [(26, 0xA0, 0, 90 + i, 40 + i, 1, 42) for i in range(3)]
