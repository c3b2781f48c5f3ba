"""What is done to frames that are there already: read in place, joined, cut short."""

from __future__ import annotations

import msgpack

from tests.unit.delivery.kit import TS, stamped
from topicd.frames import FrameFlag, continue_batch, core, parse_header, ts_at, without_data
from topicd.limits import FRAME_OVERHEAD


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


def test_the_time_of_each_frame_is_read_where_it_stands() -> None:
    one, two = stamped([b"one"], 1, TS + 5), stamped([b"two"], 2, TS + 9)
    both = bytes(one.view()) + bytes(two.view())
    assert [ts_at(both, 0), ts_at(both, len(one.view()))] == [TS + 5, TS + 9]


def test_two_batches_become_one() -> None:
    first, second = core.encode_batch([b"a", b"b"], None, None, None), core.encode_batch([b"c"], None, None, None)
    offsets = memoryview(core.frame_offsets(first, 0, len(first))).cast("I")
    continue_batch(first, offsets[-1])
    joined = first + second
    core.stamp_frames(joined, 0, len(joined), 7, 1, TS, False)
    [run] = core.scan_frames(joined, 0, len(joined)).runs
    assert (run.count, run.whole_count) == (3, 3)
    continued = core.scan_frames(joined, 0, len(first)).runs[0]
    assert (continued.count, continued.whole_count) == (2, 0)
