from __future__ import annotations

import random
import struct
import sys

import pytest

from topicd.errors import FormatError
from topicd.ipc.protocol.codec import ACK
from topicd.ipc.protocol.cutter import BUFFER, Cutter
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, APPENDED, message
from topicd.limits import MAX_CONTROL_MESSAGE

PUSH, PONG = int(Op.PUSH), int(Op.PING) | ANSWER


def feed(cutter: Cutter, stream: bytes, sizes: list[int]) -> list[tuple[int, bytes]]:
    """What comes out when the stream arrives in pieces of these sizes."""
    found, at = [], 0
    while at < len(stream):
        size = sizes.pop(0) if sizes else len(stream)
        while size and at < len(stream):
            window = cutter.window()
            piece = stream[at : at + min(size, len(window))]
            window[: len(piece)] = piece
            cutter.received(len(piece))
            at += len(piece)
            size -= len(piece)
            while (arrived := cutter.take()) is not None:
                found.append((arrived.request_id, arrived.body()))
    return found


def test_messages_are_the_same_whatever_the_pieces() -> None:
    chance = random.Random(7)
    bodies = [chance.randbytes(chance.choice([0, 1, 30, 5_000, 20_000, 300_000])) for _ in range(40)]
    stream = b"".join(message(PUSH, i, body) for i, body in enumerate(bodies, 1))
    for most in (1_000, 70_000, 10**7):
        sizes = [chance.randint(1, most) for _ in range(20_000)]
        assert feed(Cutter(), stream, sizes) == list(enumerate(bodies, 1))


def test_messages_of_single_bytes_are_cut_right() -> None:
    stream = message(PONG, 1, b"") + message(PONG, 2, b"xyz")
    assert feed(Cutter(), stream, [1] * len(stream)) == [(1, b""), (2, b"xyz")]


def test_a_large_message_is_not_in_the_shared_buffer_and_stays_valid() -> None:
    cutter = Cutter()
    kept = []
    for n in range(6):
        stream = message(PUSH, n, bytes([n]) * (BUFFER * 2))
        at = 0
        while at < len(stream):
            window = cutter.window()
            piece = stream[at : at + len(window)]
            window[: len(piece)] = piece
            cutter.received(len(piece))
            at += len(piece)
            arrived = cutter.take()
            if arrived is not None:
                assert arrived.buffer is not cutter.buffer
                kept.append(arrived)
    assert [set(a.body()) for a in kept] == [{n} for n in range(6)]


def test_a_large_message_is_never_written_over_whatever_the_interpreter_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reference counts say nothing about who reads a buffer: newer interpreters leave out borrowed ones."""
    monkeypatch.setattr(sys, "getrefcount", lambda _: 3)
    cutter = Cutter()
    held = []
    for n in range(5):
        stream = message(PUSH, 1, bytes([n]) * (BUFFER * 2))
        at, found = 0, None
        while found is None:
            window = cutter.window()
            piece = stream[at : at + len(window)]
            window[: len(piece)] = piece
            cutter.received(len(piece))
            at += len(piece)
            found = cutter.take()
        held.append(found)
    assert [set(found.body()) for found in held] == [{n} for n in range(5)]


def test_neighbouring_acks_are_taken_together_and_other_messages_are_left() -> None:
    cutter = Cutter()
    acks = b"".join(message(Op.APPEND | ANSWER, n, APPENDED.pack(n, 1, n)) for n in (1, 2, 3))
    stream = acks + message(PONG, 9, b"") + acks[: ACK.size - 1]
    cutter.window()[: len(stream)] = stream
    cutter.received(len(stream))
    assert [ack[3:5] for ack in cutter.take_acks()] == [(1, 1), (2, 2), (3, 3)]
    assert cutter.take_acks() == []
    arrived = cutter.take()
    assert arrived is not None
    assert arrived.request_id == 9
    assert cutter.take() is None
    assert cutter.pending == ACK.size - 1


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<IBBI", 0, PONG, 0, 1),
        struct.pack("<IBBI", 5, PONG, 0, 1),
        struct.pack("<IBBI", MAX_CONTROL_MESSAGE + 1, PONG, 0, 1),
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\xff" * 64,
    ],
)
def test_bytes_that_are_not_the_protocol_are_refused_before_memory_is_spent(head: bytes) -> None:
    cutter = Cutter()
    cutter.window()[: len(head)] = head
    cutter.received(len(head))
    with pytest.raises(FormatError, match="does not speak the topicd protocol"):
        cutter.take()
