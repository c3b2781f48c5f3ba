"""Cutting a stream into messages, whatever the pieces."""

from __future__ import annotations

import random
import struct

import msgpack
import pytest

from topicd.errors import InvalidRequest, Throttled, from_wire
from topicd.ipc.protocol import wire as protocol
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import MessageReader


def cut(reader: MessageReader, raw: bytes) -> list[tuple[int, int, int, bytes]]:
    return [(m.op, m.flags, m.request_id, bytes(m.body)) for m in reader.feed(raw)]


def test_map_message_comes_back() -> None:
    raw = protocol.map_message(Op.OPEN, 7, {"topic": "orders"}, flags=1)
    [(op, flags, request_id, body)] = cut(MessageReader(), raw)
    assert (op, flags, request_id) == (Op.OPEN, 1, 7)
    assert protocol.unpack_map(body) == {"topic": "orders"}


def test_header_and_message_agree() -> None:
    assert protocol.header(3, 1, 9, 4) + b"body" == protocol.message(3, 9, b"body", 1)


def test_error_message_carries_the_whole_error() -> None:
    raw = protocol.error_message(5, Throttled("full", limit="ring", retry_after_ms=10))
    [(op, _, request_id, body)] = cut(MessageReader(), raw)
    assert (op, request_id) == (Op.ERROR, 5)
    error = from_wire(protocol.unpack_map(body))
    assert isinstance(error, Throttled)
    assert error.detail == {"limit": "ring", "retry_after_ms": 10}


def test_messages_survive_any_cut() -> None:
    chance = random.Random(3)
    sent = [(chance.randrange(1, 0x60), 0, n, chance.randbytes(chance.randrange(0, 300))) for n in range(300)]
    raw = b"".join(protocol.message(op, n, body) for op, _, n, body in sent)
    for piece in (1, 2, 9, 10, 11, 100, 5_000, len(raw)):
        reader, found = MessageReader(), []
        for at in range(0, len(raw), piece):
            found += cut(reader, raw[at : at + piece])
        assert found == sent
        assert reader.pending == 0


@pytest.mark.parametrize("length", [0, 5, 2**32 - 1])
def test_absurd_length_is_refused_before_anything_is_buffered(length: int) -> None:
    reader = MessageReader()
    with pytest.raises(InvalidRequest, match="message length"):
        cut(reader, struct.pack("<IBBI", length, Op.PING, 0, 1))
    assert reader.pending == 0


def test_bulk_ops_may_be_larger_than_others() -> None:
    reader = MessageReader(max_control=100, max_bulk=1000)
    assert cut(reader, protocol.message(Op.APPEND, 1, b"x" * 900))
    with pytest.raises(InvalidRequest):
        cut(reader, protocol.message(Op.OPEN, 1, b"x" * 900))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x01", msgpack.packb([1]), b"\x81\x01\x02", b"\x81", b"\xdf\xff"])
def test_body_that_is_no_map_is_the_senders_error(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        protocol.unpack_map(body)


def test_fuzzed_streams_end_in_messages_or_invalid_request() -> None:
    chance = random.Random(11)
    for _ in range(3_000):
        raw = bytearray(protocol.map_message(Op.OPEN, 1, {"topic": "t", "config": {"ttl_ms": 5}}) * 2)
        for _ in range(chance.randrange(1, 6)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        try:
            for _, _, _, body in cut(MessageReader(), bytes(raw[: chance.randrange(len(raw))])):
                protocol.unpack_map(body)
        except InvalidRequest:
            continue
