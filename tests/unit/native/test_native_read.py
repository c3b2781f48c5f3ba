"""Scanning and reading stored frames: what is believed, what is grouped, what is chosen."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from native_cases import META, blank, whole

from topicd._native.interface import Columns, Core, Run, Selection

EVERYTHING = (0, 2**63 - 1, 10**6, 2**40, 0, None, None, (), b"")


def refusal(function: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    with pytest.raises(ValueError) as caught:
        function(*args)
    return caught.value.args


# ---- scan ----


def test_scan_of_nothing_is_well(codec: Core) -> None:
    assert codec.scan_frames(b"", 0, 0) == ([], 0, "")
    assert codec.scan_frames(b"abc", 2, 2) == ([], 2, "")


def test_appends_join_while_topic_and_seq_continue(codec: Core) -> None:
    frames = [
        whole(b"a", topic_id=7, seq=1, ts=10, more=True),
        whole(b"b", topic_id=7, seq=2, ts=11),
        whole(b"c", topic_id=7, seq=3, ts=12, more=True),
        whole(b"d", topic_id=8, seq=4, ts=12),
        whole(b"e", topic_id=8, seq=6, ts=13, more=True),
    ]
    blob = b"__" + b"".join(frames) + b"__"
    scan = codec.scan_frames(blob, 2, len(blob) - 2)
    assert scan.runs == [
        Run(2, 143, 1, 7, 1, 3, 10, 12, 96, 2),
        Run(143, 190, 1, 8, 4, 1, 12, 12, 190, 1),
        Run(190, 237, 1, 8, 6, 1, 13, 13, 190, 0),
    ]
    assert (scan.end, scan.problem) == (237, "")


@pytest.mark.parametrize("kind", range(2, 64))
def test_frames_of_other_types_stay_alone(codec: Core, kind: int) -> None:
    blob = whole(type=kind, topic_id=7, seq=1) + whole(type=kind, topic_id=7, seq=2) + whole(topic_id=7, seq=3)
    scan = codec.scan_frames(blob, 0, len(blob))
    assert [(run.type, run.first_seq, run.count) for run in scan.runs] == [
        (kind, 1, 1),
        (kind, 2, 1),
        (1, 3, 1),
    ]
    assert scan.problem == ""


def test_producer_frame_and_its_batch_are_two_runs(codec: Core) -> None:
    blob = whole(bytes(28), type=14, seq=5, more=True) + whole(seq=5, more=True) + whole(seq=6)
    scan = codec.scan_frames(blob, 0, len(blob))
    assert [(run.type, run.count, run.whole_count) for run in scan.runs] == [(14, 1, 0), (1, 2, 2)]


def test_last_seq_has_no_successor(codec: Core) -> None:
    blob = whole(seq=2**64 - 1) + whole(seq=0)
    assert len(codec.scan_frames(blob, 0, len(blob)).runs) == 2


GOOD = whole(b"good", seq=1)
BAD_ENDS = {
    "three bytes": (b"abc", "torn"),
    "half a header": (GOOD[:20], "torn"),
    "all but one byte": (GOOD[:-1], "torn"),
    "overrun": (struct.pack("<I", 47) + GOOD[4:], "torn"),
    "largest claim": (b"\xff" * 60, "torn"),
    "zeros": (bytes(64), "layout"),
    "too small": (struct.pack("<I", 41) + GOOD[4:], "layout"),
    "type 0": (whole(type=0), "layout"),
    "type 64": (whole(type=64), "layout"),
    "unequal": (whole(b"x")[:30] + b"\x01" + whole(b"x")[31:], "layout"),
    "flipped": (GOOD[:38] + b"G" + GOOD[39:], "checksum"),
    "flipped checksum": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "checksum"),
    "blank": (blank(b"x"), "checksum"),
}


@pytest.mark.parametrize("what", BAD_ENDS)
def test_scan_stops_at_the_first_bad_frame(codec: Core, what: str) -> None:
    bad, problem = BAD_ENDS[what]
    blob = GOOD + bad
    scan = codec.scan_frames(blob, 0, len(blob))
    assert ([run.count for run in scan.runs], scan.end, scan.problem) == ([1], len(GOOD), problem)
    alone = codec.scan_frames(bad, 0, len(bad))
    assert alone == ([], 0, problem)


def test_every_flipped_bit_is_found(codec: Core) -> None:
    frame = whole(b"data", tag=b"t", node=b"n", topic_id=3, seq=4, ts=5)
    for bit in range(len(frame) * 8):
        spoiled = bytearray(frame)
        spoiled[bit // 8] ^= 1 << bit % 8
        scan = codec.scan_frames(spoiled, 0, len(spoiled))
        assert (scan.runs, scan.end) == ([], 0)
        assert scan.problem


def test_scan_of_more_than_the_size_that_frees_the_gil(codec: Core) -> None:
    blob = b"".join(whole(bytes(60_000), seq=seq) for seq in range(1, 11))
    scan = codec.scan_frames(blob, 0, len(blob))
    assert [(run.count, run.end) for run in scan.runs] == [(10, len(blob))]
    assert codec.columns(blob, 0, len(blob)).data == bytes(600_000)


# ---- trusted frames ----

NOTE = msgpack.packb({"n": 1})
MIXED = [
    whole(b"one", tag=b"red", seq=1, ts=10),
    whole(b"p" * 28, type=14, seq=2, ts=10),
    whole(b"two", node=b"n1", seq=2, ts=11, flags=2 | 8 | 4),
    whole(b"", tag=b"reddish", node=b"n2", meta=NOTE, seq=3, ts=12),
    whole(b"four", tag=b"blue", seq=4, ts=13),
]
BLOB = b"<>" + b"".join(MIXED) + b"<>"
SPAN = (BLOB, 2, len(BLOB) - 2)
STARTS = [2 + sum(map(len, MIXED[:i])) for i in range(len(MIXED) + 1)]


def test_offsets_of_every_frame(codec: Core) -> None:
    assert codec.frame_offsets(*SPAN) == struct.pack("<5I", *(start - 2 for start in STARTS[:-1]))


def test_index_entries_of_the_appends(codec: Core) -> None:
    expected = b"".join(
        struct.pack("<IIQBxxx", 1000 + STARTS[i] - 2, len(MIXED[i]), ts, flags)
        for i, ts, flags in ((0, 10, 1), (2, 11, 14), (3, 12, 19), (4, 13, 1))
    )
    assert codec.index_entries(*SPAN, 1000) == expected


def test_offsets_beyond_u32_are_refused(codec: Core) -> None:
    size = len(BLOB) - 4
    codec.index_entries(*SPAN, 2**32 - 1 - size)
    assert refusal(codec.index_entries, *SPAN, 2**32 - size) == (
        "invalid_request",
        f"{size} bytes at offset {2**32 - size} are beyond u32 offsets",
    )


def test_tags_with_their_seqs(codec: Core) -> None:
    assert codec.frame_tags(*SPAN) == [(b"red", 1), (b"reddish", 3), (b"blue", 4)]


def test_decoded_records(codec: Core) -> None:
    assert codec.decode_frames(*SPAN) == [
        (1, 10, None, b"red", None, b"one"),
        (2, 11, b"n1", None, None, b"two"),
        (3, 12, b"n2", b"reddish", NOTE, b""),
        (4, 13, None, b"blue", None, b"four"),
    ]
    assert codec.payloads(*SPAN) == [b"one", b"two", b"", b"four"]


def test_neighbouring_tags_that_begin_alike_stay_apart(codec: Core) -> None:
    tags = [b"red", b"reddish", b"red", b"re", b"", b"red", b"red"]
    blob = b"".join(whole(b"dish", tag=tag, node=tag) for tag in tags)
    assert [tag for tag, _ in codec.frame_tags(blob, 0, len(blob))] == tags
    assert [(node, tag) for _, _, node, tag, *_ in codec.decode_frames(blob, 0, len(blob))] == list(
        zip(tags, tags, strict=True)
    )


def test_decoded_bytes_are_copies(codec: Core) -> None:
    buffer = bytearray(whole(b"data", tag=b"t"))
    [(*_, tag, _, data)] = codec.decode_frames(buffer, 0, len(buffer))
    buffer[:] = bytes(len(buffer))
    assert (tag, data) == (b"t", b"data")


def test_columns_are_ready_for_arrow(codec: Core) -> None:
    columns = codec.columns(*SPAN)
    assert type(columns) is Columns
    assert columns == Columns(
        count=4,
        seq=struct.pack("<4q", 1, 2, 3, 4),
        ts_ms=struct.pack("<4q", 10, 11, 12, 13),
        data_offsets=struct.pack("<5i", 0, 3, 6, 6, 10),
        data=b"onetwofour",
        tag_offsets=struct.pack("<5i", 0, 3, 3, 10, 14),
        tag=b"redreddishblue",
        tag_valid=bytes([0b1101]),
        node_offsets=struct.pack("<5i", 0, 0, 2, 4, 4),
        node=b"n1n2",
        node_valid=bytes([0b0110]),
        meta_offsets=struct.pack("<5i", 0, 0, 0, len(NOTE), len(NOTE)),
        meta=NOTE,
        meta_valid=bytes([0b0100]),
    )


def test_columns_of_nothing(codec: Core) -> None:
    empty = codec.columns(b"", 0, 0)
    assert (empty.count, empty.data_offsets, empty.tag_valid, empty.seq) == (0, bytes(4), b"", b"")


def test_validity_of_nine_rows_takes_two_bytes(codec: Core) -> None:
    blob = b"".join(whole(tag=b"t" if i in (0, 8) else None) for i in range(9))
    assert codec.columns(blob, 0, len(blob)).tag_valid == bytes([1, 1])


READERS = ["frame_offsets", "frame_tags", "decode_frames", "payloads", "columns"]


@pytest.mark.parametrize("name", READERS)
def test_bad_lengths_of_trusted_frames_are_refused(codec: Core, name: str) -> None:
    read = getattr(codec, name)
    blob = GOOD + GOOD[:-1]
    assert refusal(read, blob, 0, len(blob)) == (
        "format_error",
        f"frame at offset 50: a frame of 50 bytes overruns the {len(GOOD) - 1} that remain",
    )
    assert refusal(read, GOOD, 0, 51) == ("invalid_request", "range 0 to 51 is outside a buffer of 50 bytes")
    assert refusal(read, GOOD, -1, 5) == ("invalid_request", "start is outside 0 to 18446744073709551615")


@pytest.mark.parametrize("name", ["decode_frames", "payloads", "columns"])
def test_meta_longer_than_its_data_is_refused(codec: Core, name: str) -> None:
    for data in (b"", b"\x00", b"\x02\x00x"):
        blob = GOOD + whole(data, flags=META)
        assert refusal(getattr(codec, name), blob, 0, len(blob)) == (
            "format_error",
            f"frame at offset 50: data of {len(data)} bytes is too short for its meta",
        )


# ---- select ----


def select(codec: Core, **changed: Any) -> Selection:
    names = [
        "after_seq",
        "up_to_seq",
        "limit",
        "max_bytes",
        "min_ts",
        "tag_eq",
        "tag_prefix",
        "nodes",
        "dead",
    ]
    arguments = dict(zip(names, EVERYTHING, strict=True)) | changed
    return codec.select_frames(*SPAN, *arguments.values())


def chosen(*ranges: tuple[int, int]) -> list[tuple[int, int]]:
    return [(STARTS[first], STARTS[behind]) for first, behind in ranges]


def test_select_everything_merges_neighbours_around_other_types(codec: Core) -> None:
    selection = select(codec)
    assert type(selection) is Selection
    assert selection == Selection(chosen((0, 1), (2, 5)), 4, 4, 4, STARTS[5])


@pytest.mark.parametrize(
    ("changed", "ranges", "count", "last_seq", "examined", "end"),
    [
        ({"after_seq": 2}, [(3, 5)], 2, 4, 2, 5),
        ({"after_seq": 9}, [], 0, 0, 0, 5),
        ({"up_to_seq": 2}, [(0, 1), (2, 3)], 2, 2, 2, 3),
        ({"up_to_seq": 0}, [], 0, 0, 0, 0),
        ({"limit": 2}, [(0, 1), (2, 3)], 2, 2, 2, 3),
        ({"limit": 0}, [(0, 1)], 1, 1, 1, 2),
        ({"max_bytes": 0}, [(0, 1)], 1, 1, 1, 2),
        ({"max_bytes": len(MIXED[0]) + len(MIXED[2])}, [(0, 1), (2, 3)], 2, 2, 2, 3),
        ({"max_bytes": len(MIXED[0]) + len(MIXED[2]) - 1}, [(0, 1)], 1, 1, 1, 2),
        ({"min_ts": 12}, [(3, 5)], 2, 4, 4, 5),
        ({"tag_eq": b"red"}, [(0, 1)], 1, 4, 4, 5),
        ({"tag_eq": b""}, [], 0, 4, 4, 5),
        ({"tag_prefix": b"red"}, [(0, 1), (3, 4)], 2, 4, 4, 5),
        ({"tag_prefix": b""}, [(0, 1), (3, 5)], 3, 4, 4, 5),
        ({"tag_eq": b"red", "tag_prefix": b"b"}, [], 0, 4, 4, 5),
        ({"nodes": [b"n1"]}, [(0, 1), (3, 5)], 3, 4, 4, 5),
        ({"nodes": (b"n2", b"n1")}, [(0, 1), (4, 5)], 2, 4, 4, 5),
        ({"nodes": [b"n"]}, [(0, 1), (2, 5)], 4, 4, 4, 5),
        ({"dead": struct.pack("<2Q", 2, 3)}, [(0, 1), (4, 5)], 2, 4, 4, 5),
        ({"dead": struct.pack("<4Q", 1, 1, 3, 2**64 - 1)}, [(2, 3)], 1, 4, 4, 5),
        # What is left out does not fill the answer: the cursor moves past it.
        ({"limit": 1, "tag_eq": b"red"}, [(0, 1)], 1, 4, 4, 5),
    ],
)
def test_select(
    codec: Core,
    changed: dict[str, Any],
    ranges: list[tuple[int, int]],
    count: int,
    last_seq: int,
    examined: int,
    end: int,
) -> None:
    assert select(codec, **changed) == Selection(chosen(*ranges), count, last_seq, examined, STARTS[end])


def test_prefix_longer_than_the_tag_does_not_match_the_data_behind_it(codec: Core) -> None:
    blob = whole(b"d", tag=b"re", seq=1) + whole(b"", tag=b"red", seq=2)
    selection = codec.select_frames(blob, 0, len(blob), 0, 9, 9, 999, 0, None, b"red", (), b"")
    assert (selection.count, selection.ranges) == (1, [(49, 98)])


def test_select_resumed_where_it_stopped_misses_nothing(codec: Core) -> None:
    seen, at = [], 2
    while at < SPAN[2]:
        selection = codec.select_frames(BLOB, at, SPAN[2], 0, 2**63, 1, 2**40, 0, None, None, (), b"")
        seen += [seq for a, b in selection.ranges for seq, *_ in codec.decode_frames(BLOB, a, b)]
        assert selection.end > at
        at = selection.end
    assert seen == [1, 2, 3, 4]


def test_select_refuses_half_a_pair_and_other_types(codec: Core) -> None:
    assert refusal(lambda: select(codec, dead=bytes(8))) == (
        "invalid_request",
        "dead has 8 bytes, not a multiple of 16",
    )
    for wrong in ({"tag_eq": "red"}, {"nodes": ["n1"]}, {"nodes": None}, {"limit": 1.0}, {"dead": None}):
        with pytest.raises(TypeError):
            select(codec, **wrong)
