"""topicd.frames: control and producer frames, headers, and the translation of refusals."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from typing import Any

import pytest
from native_cases import whole

from topicd import frames, limits
from topicd.errors import BatchTooLarge, FormatError, Internal, InvalidRequest, RecordTooLarge
from topicd.frames import FrameFlag, FrameType


def test_header_and_its_offsets_are_those_of_the_design() -> None:
    assert frames.HEADER.size == limits.FRAME_HEADER
    assert (frames.TYPE_AT, frames.FLAGS_AT, frames.TOPIC_ID_AT, frames.SEQ_AT, frames.TS_AT) == (
        4,
        5,
        6,
        14,
        22,
    )
    assert (frames.NODE_LEN_AT, frames.HOPS_AT, frames.TAG_LEN_AT, frames.DATA_LEN_AT) == (30, 31, 32, 34)
    assert [int(kind) for kind in FrameType] == [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]
    assert [int(flag) for flag in FrameFlag] == [1, 2, 4, 8, 16]


def test_control_frame_has_the_documented_bytes() -> None:
    frame = frames.control_frame(FrameType.CURSOR, 5, 6, 7, b"raw", durable=True, more=True)
    assert frame == whole(b"raw", type=12, flags=4 | 8, topic_id=5, seq=6, ts=7)


@pytest.mark.parametrize("body", [{}, {"name": "t", "cap": 5, "raw": b"\xff", "list": [1, None]}, {1: 2}])
def test_control_body_gives_back_what_was_packed(body: dict[Any, Any]) -> None:
    frame = frames.control_frame(FrameType.TOPIC_CREATE, 1, 0, 3, body)
    buffer = b"##" + frame + b"##"
    scan = frames.core.scan_frames(buffer, 2, 2 + len(frame))
    assert (scan.problem, scan.runs[0].type, scan.runs[0].topic_id) == ("", FrameType.TOPIC_CREATE, 1)
    assert frames.control_body(buffer, 2, 2 + len(frame)) == body


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x81", b"\x80\x80", b"\xdf\xff\xff\xff\xff", b"\x91" * 5000])
def test_control_body_refuses_garbage(data: bytes) -> None:
    frame = frames.control_frame(FrameType.LEASE, 1, 0, 3, data)
    with pytest.raises(FormatError):
        frames.control_body(frame, 0, len(frame))


def test_range_that_is_not_one_frame_is_refused() -> None:
    frame = frames.control_frame(FrameType.LEASE, 1, 0, 3, {})
    two = frame + frame
    for buffer, start, end in (
        (frame, 0, len(frame) - 1),
        (frame, 0, len(frame) + 1),
        (frame, 1, len(frame)),
        (two, 0, len(two)),
        (frame[:-1], 0, len(frame)),
        (b"", 0, 0),
        (frame[:20], 0, 20),
    ):
        with pytest.raises(FormatError):
            frames.control_body(buffer, start, end)


def test_producer_frame_opens_a_batch() -> None:
    frame = frames.producer_frame(9, 100, 5, producer_id=2**64 - 1, batch_no=3, count=10)
    body = struct.pack("<QQQI", 2**64 - 1, 3, 100, 10)
    assert frame == whole(body, type=14, flags=8, topic_id=9, seq=100, ts=5)
    assert frames.parse_producer(b"#" + frame, 1, 1 + len(frame)) == (2**64 - 1, 3, 100, 10)
    batch = frames.core.encode_batch([b"a"], None, None, None)
    frames.core.stamp_frames(batch, 0, len(batch), 9, 100, 5, False)
    runs = frames.core.scan_frames(frame + batch, 0, len(frame) + len(batch)).runs
    assert [(run.type, run.whole_count) for run in runs] == [(14, 0), (1, 1)]


def test_producer_frame_of_another_size_is_refused() -> None:
    frame = frames.control_frame(FrameType.PRODUCER, 1, 1, 1, bytes(27))
    with pytest.raises(FormatError):
        frames.parse_producer(frame, 0, len(frame))


def test_parse_header() -> None:
    frame = whole(b"data", tag=b"t", node=b"nn", type=6, topic_id=1, seq=2, ts=3)
    header = frames.parse_header(b"#" + frame, 1)
    assert header == (len(frame) - 4, 6, 3, 1, 2, 3, 2, 0, 1, 4)
    assert header.size == len(frame)
    with pytest.raises(FormatError):
        frames.parse_header(frame[:37], 0)
    with pytest.raises(FormatError):
        frames.parse_header(frame, len(frame))


def test_refusals_become_errors_of_the_contract() -> None:
    for call, expected in (
        (lambda: frames.core.encode_batch([], None, None, None), InvalidRequest),
        (lambda: frames.core.encode_batch([b""], bytes(257), None, None), RecordTooLarge),
        (lambda: frames.core.encode_batch([b""] * 10_001, None, None, None), BatchTooLarge),
        (lambda: frames.core.payloads(b"x", 0, 1), FormatError),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        error = frames.codec_error(caught.value)
        assert type(error) is expected
        assert error.message == caught.value.args[1]
    assert type(frames.codec_error(ValueError("something else"))) is Internal


@pytest.mark.parametrize(("wanted", "name"), [("1", "pure"), ("0", "native")])
def test_environment_chooses_the_codec(wanted: str, name: str) -> None:
    program = "import topicd._native as n; print(n.core.name, n.is_native, n.why_pure)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"TOPICD_PURE": wanted},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    if name == "native" and done.stdout.startswith("pure"):
        pytest.skip(done.stdout)
    expected = {"pure": "pure False TOPICD_PURE=1 is set\n", "native": "native True \n"}
    assert done.stdout == expected[name]


def test_pure_serves_when_the_native_core_cannot_be_imported() -> None:
    program = (
        "import sys; sys.modules['topicd._native._core'] = None; import topicd._native as n; "
        "print(n.core.name, n.is_native, n.why_pure)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("pure False the native core cannot be imported (")
