"""The bytes themselves, computed by hand, and the limits both implementations were built with."""

from __future__ import annotations

import struct

import msgpack
import pytest
import xxhash
from native_cases import HEADER, blank, native, whole

from topicd import limits
from topicd._native import pure, pure_write
from topicd._native.interface import Core, Run, Scan


def test_encoded_and_stamped_frame_has_the_documented_bytes(codec: Core) -> None:
    meta = msgpack.packb({"k": 1})
    batch = codec.encode_batch([b"payload"], b"tag", b"node!", [meta])
    assert type(batch) is bytearray
    content = b"node!" + b"tag" + struct.pack("<H", len(meta)) + meta + b"payload"
    data_len = 2 + len(meta) + 7
    header = struct.pack("<I BB QQQ HHI", 42 + 5 + 3 + data_len, 1, 1 | 2 | 16, 0, 0, 0, 5, 3, data_len)
    assert len(header) == 38
    assert batch == header + content + bytes(8)

    offsets = codec.stamp_frames(batch, 0, len(batch), 0x1122334455667788, 41, 1_700_000_000_000, True)
    assert offsets == bytes(4)
    header = struct.pack(
        "<I BB QQQ HHI",
        42 + 5 + 3 + data_len,
        1,
        1 | 2 | 4 | 16,
        0x1122334455667788,
        41,
        1_700_000_000_000,
        5,
        3,
        data_len,
    )
    covered = header[4:] + content
    assert batch == header + content + struct.pack("<Q", xxhash.xxh3_64_intdigest(covered))


def test_every_byte_of_a_small_frame_is_known(codec: Core) -> None:
    batch = codec.encode_batch([b"hi"], None, None, None)
    codec.stamp_frames(batch, 0, len(batch), 1, 2, 3, False)
    assert batch.hex(" ", 1) == (
        "2c 00 00 00 01 00 01 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 "
        "00 00 00 00 02 00 00 00 68 69 " + struct.pack("<Q", xxhash.xxh3_64_intdigest(batch[4:-8])).hex(" ", 1)
    )


def test_batch_carries_more_on_all_but_the_last_and_contiguous_seqs(codec: Core) -> None:
    batch = codec.encode_batch([b"a", memoryview(b"bb"), bytearray()], [b"t", None, b"u"], None, None)
    assert batch == (blank(b"a", tag=b"t", more=True) + blank(b"bb", more=True) + blank(b"", tag=b"u"))
    padded = bytearray(b"??") + batch + b"!"
    offsets = codec.stamp_frames(padded, 2, len(padded) - 1, 9, 100, 5, False)
    assert struct.unpack("<3I", offsets) == (0, 48, 48 + 48)
    assert padded == (
        b"??"
        + whole(b"a", tag=b"t", more=True, topic_id=9, seq=100, ts=5)
        + whole(b"bb", more=True, topic_id=9, seq=101, ts=5)
        + whole(b"", tag=b"u", topic_id=9, seq=102, ts=5)
        + b"!"
    )


def test_durable_flag_is_as_told_whatever_the_client_sent(codec: Core) -> None:
    for sent in (0, 4):
        for durable in (False, True):
            batch = bytearray(blank(b"x", flags=sent))
            codec.stamp_frames(batch, 0, len(batch), 1, 1, 1, durable)
            assert batch == whole(b"x", flags=4 if durable else 0, topic_id=1, seq=1, ts=1)


def test_stamping_twice_gives_the_second_stamp(codec: Core) -> None:
    batch = codec.encode_batch([b"a", b"b"], None, b"n", None)
    codec.stamp_frames(batch, 0, len(batch), 1, 1, 1, True)
    codec.stamp_frames(batch, 0, len(batch), 2, 5, 9, False)
    assert batch == whole(b"a", node=b"n", more=True, topic_id=2, seq=5, ts=9) + whole(
        b"b", node=b"n", topic_id=2, seq=6, ts=9
    )


@pytest.mark.parametrize("size", [0, 1, 16, 17, 128, 129, 240, 241, 1024, 300_000])
@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_xxh3_is_that_of_the_reference(codec: Core, size: int, seed: int) -> None:
    data = bytes(i * 31 % 251 for i in range(size))
    assert codec.xxh3_64(data, seed) == xxhash.xxh3_64_intdigest(data, seed)
    assert codec.xxh3_64(memoryview(data)) == xxhash.xxh3_64_intdigest(data)


def test_scan_gives_the_types_of_the_interface(codec: Core) -> None:
    scan = codec.scan_frames(whole(b"a", seq=1, ts=4), 0, 47)
    assert type(scan) is Scan
    assert type(scan.runs[0]) is Run
    assert scan == Scan([Run(0, 47, 1, 0, 1, 1, 4, 4, 47, 1)], 47, "")


def test_native_core_was_built_with_the_limits_of_the_contract() -> None:
    if native is None:
        pytest.skip("the native core is not built")
    built = {key: value for key, value in vars(native).items() if key.isupper() and key != "MAX_META_DEPTH"}
    assert len(built) == 11
    assert built == {key: getattr(limits, key) for key in built}
    assert vars(native)["MAX_META_DEPTH"] == pure_write.MAX_META_DEPTH
    assert struct.calcsize(HEADER) == limits.FRAME_HEADER
    assert (native.name, pure.name) == ("native", "pure")


def test_functions_take_no_keywords(codec: Core) -> None:
    with pytest.raises(TypeError):
        codec.load(memory=bytes(8), offset=0)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        codec.scan_frames(b"", 0)  # type: ignore[call-arg]
