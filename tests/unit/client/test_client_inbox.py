from __future__ import annotations

import random
import struct

import pytest

from topicd.client.inbox import BUFFER, Inbox
from topicd.client.wire import ACK
from topicd.errors import FormatError
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, APPENDED, message
from topicd.limits import MAX_CONTROL_MESSAGE

PUSH, PONG = int(Op.PUSH), int(Op.PING) | ANSWER


def feed(inbox: Inbox, stream: bytes, sizes: list[int]) -> list[tuple[int, bytes]]:
    """What comes out when the stream arrives in pieces of these sizes."""
    found, at = [], 0
    while at < len(stream):
        size = sizes.pop(0) if sizes else len(stream)
        while size and at < len(stream):
            window = inbox.window()
            piece = stream[at : at + min(size, len(window))]
            window[: len(piece)] = piece
            inbox.received(len(piece))
            at += len(piece)
            size -= len(piece)
            while (arrived := inbox.take()) is not None:
                found.append((arrived.request_id, arrived.body()))
    return found


def test_messages_are_the_same_whatever_the_pieces() -> None:
    chance = random.Random(7)
    bodies = [chance.randbytes(chance.choice([0, 1, 30, 5_000, 20_000, 300_000])) for _ in range(40)]
    stream = b"".join(message(PUSH, i, body) for i, body in enumerate(bodies, 1))
    for most in (1_000, 70_000, 10**7):
        sizes = [chance.randint(1, most) for _ in range(20_000)]
        assert feed(Inbox(), stream, sizes) == list(enumerate(bodies, 1))


def test_messages_of_single_bytes_are_cut_right() -> None:
    stream = message(PONG, 1, b"") + message(PONG, 2, b"xyz")
    assert feed(Inbox(), stream, [1] * len(stream)) == [(1, b""), (2, b"xyz")]


def test_a_large_message_is_not_in_the_shared_buffer_and_stays_valid() -> None:
    inbox = Inbox()
    kept = []
    for n in range(6):
        stream = message(PUSH, n, bytes([n]) * (BUFFER * 2))
        at = 0
        while at < len(stream):
            window = inbox.window()
            piece = stream[at : at + len(window)]
            window[: len(piece)] = piece
            inbox.received(len(piece))
            at += len(piece)
            arrived = inbox.take()
            if arrived is not None:
                assert arrived.buffer is not inbox.buffer
                kept.append(arrived)
    assert [set(a.body()) for a in kept] == [{n} for n in range(6)]


def test_the_buffer_of_a_large_message_is_used_again_once_nobody_holds_it() -> None:
    inbox = Inbox()

    def receive() -> int:
        stream = message(PUSH, 1, b"x" * (BUFFER * 2))
        at, found = 0, None
        while found is None:
            window = inbox.window()
            piece = stream[at : at + len(window)]
            window[: len(piece)] = piece
            del window
            inbox.received(len(piece))
            at += len(piece)
            found = inbox.take()
        return id(found.buffer)

    assert len({receive() for _ in range(5)}) == 1


def test_neighbouring_acks_are_taken_together_and_other_messages_are_left() -> None:
    inbox = Inbox()
    acks = b"".join(message(Op.APPEND | ANSWER, n, APPENDED.pack(n, 1, n)) for n in (1, 2, 3))
    stream = acks + message(PONG, 9, b"") + acks[: ACK.size - 1]
    inbox.window()[: len(stream)] = stream
    inbox.received(len(stream))
    assert [ack[3:5] for ack in inbox.take_acks()] == [(1, 1), (2, 2), (3, 3)]
    assert inbox.take_acks() == []
    arrived = inbox.take()
    assert arrived is not None
    assert arrived.request_id == 9
    assert inbox.take() is None
    assert inbox.pending == ACK.size - 1


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
    inbox = Inbox()
    inbox.window()[: len(head)] = head
    inbox.received(len(head))
    with pytest.raises(FormatError, match="does not speak the topicd protocol"):
        inbox.take()
