"""encode_batch and stamp_frames: each limit and one beyond it, each refusal, nothing touched on failure."""

from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from native_cases import META, MORE, NODE, TAG, blank

from topicd._native.interface import Core
from topicd.limits import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_DATA_AND_META,
    MAX_META,
    MAX_META_KEYS,
    MAX_NODE,
    MAX_SEQ,
    MAX_TAG,
)


def stamp(codec: Core, batch: bytes, first_seq: int = 1, ts: int = 1) -> bytes:
    return codec.stamp_frames(bytearray(batch), 0, len(batch), 7, first_seq, ts, True)


def refusal(codec: Core, batch: bytes, first_seq: int = 1, ts: int = 1) -> tuple[str, str]:
    """(code, message) of the refusal; the batch must be untouched."""
    held = bytearray(batch)
    with pytest.raises(ValueError) as caught:
        codec.stamp_frames(held, 0, len(held), 7, first_seq, ts, True)
    assert held == batch
    code, message = caught.value.args
    return code, message


def encode_refusal(codec: Core, *args: Any) -> tuple[str, str]:
    with pytest.raises(ValueError) as caught:
        codec.encode_batch(*args)
    code, message = caught.value.args
    return code, message


def meta_of(size: int) -> bytes:
    """A map of exactly size bytes."""
    meta: bytes = msgpack.packb({"k": bytes(size - 6)})
    assert len(meta) == size
    return meta


def meta_with(keys: int) -> bytes:
    meta: bytes = msgpack.packb(dict.fromkeys(range(keys), 0))
    return meta


def nested(depth: int, opener: bytes = b"\x91") -> bytes:
    """A map nested depth deep, itself included."""
    return b"\x81\x00" + opener * (depth - 2) + b"\x80" if depth > 1 else b"\x80"


# ---- limits ----

AT_LIMIT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "data": (
        {"payload": bytes(MAX_DATA_AND_META)},
        {"payload": bytes(MAX_DATA_AND_META + 1)},
        "data with meta has 1048577 bytes, at most 1048576 are allowed",
    ),
    "data with meta": (
        {"payload": bytes(MAX_DATA_AND_META - 300), "meta": meta_of(300)},
        {"payload": bytes(MAX_DATA_AND_META - 300), "meta": meta_of(301)},
        "data with meta has 1048577 bytes, at most 1048576 are allowed",
    ),
    "tag": (
        {"tag": bytes(MAX_TAG)},
        {"tag": bytes(MAX_TAG + 1)},
        "tag has 257 bytes, at most 256 are allowed",
    ),
    "node": (
        {"node": bytes(MAX_NODE)},
        {"node": bytes(MAX_NODE + 1)},
        "node has 129 bytes, at most 128 are allowed",
    ),
    "meta": (
        {"meta": meta_of(MAX_META)},
        {"meta": meta_of(MAX_META + 1)},
        "meta has 16385 bytes, at most 16384 are allowed",
    ),
    "meta keys": (
        {"meta": meta_with(MAX_META_KEYS)},
        {"meta": meta_with(MAX_META_KEYS + 1)},
        "meta has 65 keys, at most 64 are allowed",
    ),
}


@pytest.mark.parametrize("field", AT_LIMIT)
def test_stamp_takes_the_limit_and_refuses_one_more(codec: Core, field: str) -> None:
    allowed, beyond, message = AT_LIMIT[field]
    first = blank(b"first", more=True)
    assert len(stamp(codec, first + blank(**{"payload": b"", **allowed}))) == 8
    expected = ("record_too_large", f"record 1: {message}")
    assert refusal(codec, first + blank(**{"payload": b"", **beyond})) == expected


@pytest.mark.parametrize("field", AT_LIMIT)
def test_encode_takes_the_limit_and_refuses_one_more(codec: Core, field: str) -> None:
    def columns(fields: dict[str, Any]) -> tuple[Any, ...]:
        return (
            [b"first", fields.get("payload", b"")],
            *([None, fields.get(name)] for name in ("tag", "node", "meta")),
        )

    allowed, beyond, message = AT_LIMIT[field]
    stamp(codec, codec.encode_batch(*columns(allowed)))
    assert encode_refusal(codec, *columns(beyond)) == ("record_too_large", f"record 1: {message}")


def test_batch_of_most_records_is_taken_and_one_more_refused(codec: Core) -> None:
    datas = [b""] * MAX_BATCH_RECORDS
    batch = codec.encode_batch(datas, None, None, None)
    assert len(stamp(codec, batch)) == 4 * MAX_BATCH_RECORDS
    assert refusal(codec, blank(more=True) + batch) == (
        "batch_too_large",
        "the batch has more than 10000 records, at most 10000 are allowed",
    )
    assert encode_refusal(codec, [*datas, b""], None, None, None) == (
        "batch_too_large",
        "the batch has 10001 records, at most 10000 are allowed",
    )


def test_batch_of_most_bytes_is_taken_and_one_more_refused(codec: Core) -> None:
    most = [bytes(MAX_DATA_AND_META)] * (MAX_BATCH_BYTES // MAX_DATA_AND_META)
    batch = codec.encode_batch(most, None, None, None)
    stamp(codec, batch)
    expected = ("batch_too_large", "the batch has 67108865 bytes, at most 67108864 are allowed")
    assert refusal(codec, blank(b"x", more=True) + batch) == expected
    assert encode_refusal(codec, [b"x", *most], None, None, None) == expected


def test_batch_beyond_any_allowed_size_is_refused_before_it_is_read(codec: Core) -> None:
    size = MAX_BATCH_BYTES + MAX_BATCH_RECORDS * 46 + 1
    code, message = refusal(codec, bytes(size))
    assert (code, message) == (
        "batch_too_large",
        f"a batch of {size} bytes with framing exceeds any that is allowed",
    )


def test_seqs_and_time_stay_in_range(codec: Core) -> None:
    two = blank(more=True) + blank()
    stamp(codec, two, MAX_SEQ - 1, MAX_SEQ)
    for first_seq, ts in ((0, 1), (MAX_SEQ, 1), (2**64 - 1, 1), (1, MAX_SEQ + 1)):
        assert refusal(codec, two, first_seq, ts)[0] == "invalid_request"
    assert refusal(codec, two, 2**64) == (
        "invalid_request",
        "first_seq is outside 0 to 18446744073709551615",
    )
    assert refusal(codec, two, 1, -1) == ("invalid_request", "ts is outside 0 to 18446744073709551615")


# ---- refusals of stamp ----


def lengths(frame_len: int | None = None, node: int = 0, tag: int = 0, data: int = 0, size: int = 46) -> bytes:
    """A frame of size bytes whose header claims these lengths."""
    claimed = size - 4 if frame_len is None else frame_len
    return struct.pack("<IBBQQQHHI", claimed, 1, 0, 0, 0, 0, node, tag, data) + bytes(size - 38)


def meta_frame(data: bytes) -> bytes:
    return blank(data, flags=META)


REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the batch is empty"),
    "short": (bytes(37), "record 0: 37 bytes remain, a frame has at least 46"),
    "tail": (blank(more=True) + bytes(3), "record 1: 3 bytes remain, a frame has at least 46"),
    "small": (lengths(41), "record 0: frame_len is 41, at least 42 is needed"),
    "zeros": (bytes(100), "record 0: frame_len is 0, at least 42 is needed"),
    "overrun": (lengths(43), "record 0: a frame of 47 bytes overruns the 46 that remain"),
    "huge": (lengths(2**32 - 1), "record 0: a frame of 4294967299 bytes overruns the 46 that remain"),
    "unequal": (lengths(tag=1), "record 0: node 0, tag 1 and data 0 bytes do not make a frame of 46"),
    "wrapping": (
        lengths(data=2**32 - 1),
        "record 0: node 0, tag 0 and data 4294967295 bytes do not make a frame of 46",
    ),
    "type": (blank(type=14), "record 0: frame type 14, only 1 (append) is allowed"),
    "flags": (blank(flags=32), "record 0: flags 32, only bits of 31 are known"),
    "tag flag clear": (blank(tag=b"t", flags=0), "record 0: the tag flag is clear but the tag has 1 bytes"),
    "tag flag set": (blank(flags=TAG), "record 0: the tag flag is set but the tag has 0 bytes"),
    "node flag clear": (
        blank(node=b"n", flags=0),
        "record 0: the node flag is clear but the node has 1 bytes",
    ),
    "node flag set": (blank(flags=NODE), "record 0: the node flag is set but the node has 0 bytes"),
    "meta without length": (meta_frame(b"\x00"), "record 0: data of 1 bytes is too short for its meta"),
    "meta overruns": (meta_frame(b"\x02\x00\x80"), "record 0: data of 3 bytes is too short for its meta"),
    "meta flag set": (meta_frame(b"\x00\x00x"), "record 0: the meta flag is set but the meta has 0 bytes"),
    "more on last": (blank(more=True), "record 0: the more flag is set on the last record"),
    "more missing": (blank() + blank(), "record 0: the more flag is clear but records follow"),
    "more late": (
        blank(more=True) + blank(flags=MORE),
        "record 1: the more flag is set on the last record",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_stamp_refuses(codec: Core, why: str) -> None:
    batch, message = REFUSED[why]
    assert refusal(codec, batch) == ("invalid_request", message)


def test_a_late_refusal_leaves_the_earlier_records_blank(codec: Core) -> None:
    good = blank(b"good", more=True) * 50
    assert refusal(codec, good + blank(type=2)) == (
        "invalid_request",
        "record 50: frame type 2, only 1 (append) is allowed",
    )


def test_stamp_refuses_a_read_only_batch_and_a_range_outside(codec: Core) -> None:
    frame = blank()
    with pytest.raises(ValueError) as caught:
        codec.stamp_frames(frame, 0, len(frame), 1, 1, 1, True)
    assert caught.value.args == ("invalid_request", "the buffer is read-only")
    for start, end in ((0, 47), (2, 1), (0, 2**63)):
        with pytest.raises(ValueError) as caught:
            codec.stamp_frames(bytearray(frame), start, end, 1, 1, 1, True)
        assert caught.value.args == (
            "invalid_request",
            f"range {start} to {end} is outside a buffer of 46 bytes",
        )


# ---- meta ----

GOOD_METAS = {
    "empty map": b"\x80",
    "every scalar": b"\xdf\x00\x00\x00\x08"
    + b"\x01\xc0"
    + b"\xe0\xc2"
    + b"\xcc\x01\xcd\x01\x02"
    + b"\xce\x01\x02\x03\x04\xcf\x01\x02\x03\x04\x05\x06\x07\x08"
    + b"\xd0\x01\xd1\x01\x02"
    + b"\xd2\x01\x02\x03\x04\xd3\x01\x02\x03\x04\x05\x06\x07\x08"
    + b"\xca\x01\x02\x03\x04\xcb\x01\x02\x03\x04\x05\x06\x07\x08"
    + b"\xa1a\xc3",
    "every sized": b"\xde\x00\x05"
    + b"\xd9\x01a\xda\x00\x01a"
    + b"\xdb\x00\x00\x00\x01a\xc4\x01a"
    + b"\xc5\x00\x01a\xc6\x00\x00\x00\x01a"
    + b"\xc7\x01\x05a\xc8\x00\x01\x05a"
    + b"\xc9\x00\x00\x00\x01\x05a\xd4\x05a",
    "every fixext": b"\x82\xd5\x05ab\xd6\x05abcd\xd7\x05abcdefgh\xd8\x05abcdefghijklmnop",
    "containers": b"\x82\x01\xdc\x00\x02\x01\x02\x02\xdd\x00\x00\x00\x01\xde\x00\x01\x01\x80",
    "empty containers": b"\x83\x01\x90\x02\x80\x03\xdd\x00\x00\x00\x00",
    "container last": b"\x81\xa1a\x92\x01\x81\xa1b\x02",
    "deepest": nested(16),
    "deepest maps": b"\x81\x00" * 15 + b"\x80",
}
BAD_METAS = {
    "array": (b"\x90", "meta is not a msgpack map"),
    "number": (b"\x01", "meta is not a msgpack map"),
    "cut in head": (b"\xde\x00", "meta ends inside its msgpack map"),
    "cut in key": (b"\x81", "meta ends inside its msgpack map"),
    "cut in value": (b"\x81\x01\xa2a", "meta ends inside its msgpack map"),
    "cut in length": (b"\x81\x01\xda\x00", "meta ends inside its msgpack map"),
    "cut in nested": (b"\x81\x01\x92\x01", "meta ends inside its msgpack map"),
    "long string": (b"\x81\x01\xdb\xff\xff\xff\xffa", "meta ends inside its msgpack map"),
    "long array": (b"\x81\x01\xdd\xff\xff\xff\xff\x01", "meta ends inside its msgpack map"),
    "long ext": (b"\x81\x01\xc9\xff\xff\xff\xff\x01", "meta ends inside its msgpack map"),
    "never used": (b"\x81\x01\xc1", "meta holds byte 0xc1, which is not msgpack"),
    "two maps": (b"\x80\x80", "meta has 1 bytes behind its msgpack map"),
    "trailing": (b"\x81\x01\x02abc", "meta has 3 bytes behind its msgpack map"),
    "too deep": (nested(17), "meta is nested deeper than 16"),
    "too deep maps": (b"\x81\x00" * 16 + b"\x80", "meta is nested deeper than 16"),
    "hopelessly deep": (b"\x81" + b"\x91" * 16000, "meta is nested deeper than 16"),
}


@pytest.mark.parametrize("what", GOOD_METAS)
def test_meta_that_is_one_map_is_taken(codec: Core, what: str) -> None:
    meta = GOOD_METAS[what]
    stamp(codec, blank(b"payload", meta=meta))
    assert codec.encode_batch([b"payload"], None, None, [meta]) == blank(b"payload", meta=meta)


@pytest.mark.parametrize("what", BAD_METAS)
def test_meta_that_is_not_one_map_is_refused(codec: Core, what: str) -> None:
    meta, message = BAD_METAS[what]
    expected = ("invalid_request", f"record 0: {message}")
    assert refusal(codec, blank(b"payload", meta=meta)) == expected
    assert encode_refusal(codec, [b"payload"], None, None, [meta]) == expected


def test_map_that_claims_too_many_keys_is_refused_before_it_is_walked(codec: Core) -> None:
    assert refusal(codec, blank(meta=b"\xdf\xff\xff\xff\xff")) == (
        "record_too_large",
        "record 0: meta has 4294967295 keys, at most 64 are allowed",
    )


# ---- refusals of encode ----


def test_encode_refuses_an_empty_batch_and_empty_values(codec: Core) -> None:
    assert encode_refusal(codec, [], None, None, None) == ("invalid_request", "the batch is empty")
    for at, what in ((1, "tag"), (2, "node"), (3, "meta")):
        args: list[Any] = [[b"a", b"b"], None, None, None]
        args[at] = [None, b""]
        assert encode_refusal(codec, *args) == ("invalid_request", f"record 1: empty {what}")
    assert encode_refusal(codec, [b"a"], b"", None, None) == ("invalid_request", "record 0: empty tag")


def test_encode_refuses_columns_of_another_length(codec: Core) -> None:
    for at, what in ((1, "tags"), (2, "nodes"), (3, "metas")):
        args: list[Any] = [[b"a", b"b"], None, None, None]
        args[at] = [None]
        assert encode_refusal(codec, *args) == ("invalid_request", f"{what} has 1 values for 2 records")


def test_encode_applies_a_single_value_to_every_record(codec: Core) -> None:
    assert codec.encode_batch([b"a", b"b"], b"t", b"n", None) == codec.encode_batch(
        [b"a", b"b"], [b"t", b"t"], (b"n", b"n"), [None, None]
    )


@pytest.mark.parametrize(
    "args",
    [
        (["text"], None, None, None),
        ([1], None, None, None),
        (b"bytes", None, None, None),
        ([b"a"], "t", None, None),
        ([b"a"], [1], None, None),
        ([b"a"], None, [bytearray(b"n")], None),
        ([b"a"], None, None, b"\x80"),
        (None, None, None, None),
    ],
)
def test_encode_refuses_other_types(codec: Core, args: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        codec.encode_batch(*args)
