"""Frames without their data."""

from __future__ import annotations

import msgpack

from tests.unit.delivery.kit import TS, stamped
from topicd.frames import FrameFlag, core, parse_header
from topicd.limits import FRAME_OVERHEAD
from topicd.shards.delivery.reading.filters import without_data


def test_records_keep_their_names_and_lose_data_and_meta() -> None:
    meta = msgpack.packb({"k": "v"})
    full = stamped(
        [b"one", b"two", b""], 5, tags=[b"t", None, b"u"], nodes=[None, b"n", b"n"], metas=[meta, None, None]
    )
    short = without_data(full.view())
    assert core.decode_frames(short, 0, len(short)) == [
        (5, TS, None, b"t", None, b""),
        (6, TS, b"n", None, None, b""),
        (7, TS, b"n", b"u", None, b""),
    ]


def test_length_and_checksum_are_as_documented() -> None:
    short = without_data(stamped([b"data"], metas=[msgpack.packb({"k": 1})]).view())
    header = parse_header(short, 0)
    assert (header.data_len, header.size) == (0, FRAME_OVERHEAD)
    assert not header.flags & FrameFlag.META
    assert short[-8:] == bytes(8)


def test_nothing_gives_nothing() -> None:
    assert without_data(b"") == b""
