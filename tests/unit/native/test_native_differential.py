"""Native and pure give the same result or the same refusal for the same input, valid or hostile."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from native_cases import (
    client_batches,
    hostile_batches,
    hostile_frames,
    hostile_metas,
    letters,
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
