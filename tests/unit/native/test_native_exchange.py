"""A request and the beginning of its answer in one call."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgpack
import pytest

from topicd import _native
from topicd.frames import core
from topicd.ipc.protocol.wire import (
    CLAIM,
    CLAIMED,
    ENDED,
    FLAG_DONE,
    JOB,
    LEASED,
    OP_CLAIM,
    OP_CLAIMED,
    OP_ERROR,
    map_message,
    message,
)

pytestmark = pytest.mark.skipif(_native.exchange is None, reason="there is no C core")

DEADLINE_S = 10.0


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def exchange(sock: socket.socket | int, message: bytes, window: bytearray, timeout_ms: int = 10_000) -> int:
    assert _native.exchange is not None
    return _native.exchange(sock if isinstance(sock, int) else sock.fileno(), message, window, timeout_ms)


def test_the_message_goes_and_what_comes_is_in_the_window(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"an answer")
    window = bytearray(64)
    assert exchange(ours, b"a request", window) == len(b"an answer")
    assert window[:9] == b"an answer"
    assert theirs.recv(64) == b"a request"


def test_more_than_the_socket_takes_at_once_goes_whole(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    message, arrived = os.urandom(3_000_000), bytearray()

    def answer() -> None:
        while len(arrived) < len(message):
            arrived.extend(theirs.recv(100_000))
        theirs.sendall(b"ok")

    peer = threading.Thread(target=answer)
    peer.start()
    assert exchange(ours, message, bytearray(8)) == 2
    peer.join()
    assert arrived == message


def test_an_empty_message_only_waits(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.sendall(b"x")
    assert exchange(ours, b"", bytearray(8)) == 1


def test_a_peer_that_is_gone_is_zero_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.shutdown(socket.SHUT_WR)
    assert exchange(ours, b"hello", bytearray(8)) == 0


def test_what_does_not_come_in_time_would_block(pair: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(BlockingIOError):
        exchange(pair[0], b"hello", bytearray(8), 1)


def test_a_socket_that_breaks_says_why(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(BrokenPipeError):
        exchange(ours, b"hello", bytearray(8))
    for given in (b"hello", b""):
        with pytest.raises(OSError, match="Bad file") as caught:
            exchange(-1, given, bytearray(8), 5_000)
        assert caught.value.errno == errno.EBADF


def test_a_signal_that_raises_ends_the_wait_and_another_does_not(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    heard: list[int] = []

    def handler(number: int, frame: object) -> None:
        heard.append(number)
        if number == signal.SIGUSR2:
            raise InterruptedError("enough")

    before = [signal.signal(number, handler) for number in (signal.SIGUSR1, signal.SIGUSR2)]
    main = threading.get_ident()

    def disturb() -> None:
        theirs.recv(64)
        for number in (signal.SIGUSR1, signal.SIGUSR2):  # again: one that comes before it sleeps wakes nobody

            def is_heard(number: int = number) -> bool:
                if number not in heard:
                    signal.pthread_kill(main, number)
                return number in heard

            _until(is_heard)

    peer = threading.Thread(target=disturb)
    try:
        peer.start()
        with pytest.raises(InterruptedError, match="enough"):
            exchange(ours, b"hello", bytearray(8))
        peer.join()
    finally:
        signal.signal(signal.SIGUSR1, before[0])
        signal.signal(signal.SIGUSR2, before[1])
    assert set(heard) == {signal.SIGUSR1, signal.SIGUSR2}


def test_who_waits_for_an_answer_sleeps_on_while_the_request_is_read(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    """The kernel wakes writers when the bytes of a message are freed; a sleeper in recv() would wake with them."""
    ours, theirs = pair
    told, tell = multiprocessing.get_context("fork").Pipe(duplex=False)
    asker = multiprocessing.get_context("fork").Process(target=_ask, args=(ours, tell))
    asker.start()
    theirs.recv(64, socket.MSG_PEEK)
    _until(lambda: _state(asker.pid) == "S")
    theirs.recv(64)
    _until(lambda: _state(asker.pid) == "S")
    theirs.sendall(b"answer")
    assert told.recv() == 1
    asker.join()


def _ask(ours: socket.socket, tell: Connection) -> None:
    window = bytearray(64)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    exchange(ours, b"hello", window)
    tell.send(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)


def _state(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


# ---- a claim that finishes a job and takes the next ----

REQUEST = message(OP_CLAIM, 0, CLAIM.pack(7, 1, 0, 0, 1) + b"w" + bytes(LEASED.size), FLAG_DONE)


def answer_of(
    request_id: int = 9, *, count: int = 1, acked: int = 1, skipped: int = 0, more: bytes = b"", **names: Any
) -> bytes:
    frames = core.encode_batch([b"data"], names.get("tag"), None, names.get("meta"))
    core.stamp_frames(frames, 0, len(frames), 7, 5, 1_000, False)
    body = CLAIMED.pack(7, 3, count) + ENDED.pack(acked, skipped) + JOB.pack(5, 11, 99, 2) + frames
    return message(OP_CLAIMED, request_id, body + more, FLAG_DONE)


def claim_next(pair: tuple[socket.socket, socket.socket], answer: bytes) -> tuple[Any, bytes, bytes]:
    """(what it says, what was sent, what is in the window)"""
    ours, theirs = pair
    theirs.sendall(answer)
    window = bytearray(4_096)
    assert _native.claim_next is not None
    found = _native.claim_next(ours.fileno(), REQUEST, 9, 4, 10, window, 10_000)
    return found, theirs.recv(4_096), bytes(window)


def test_the_next_job_comes_decoded(pair: tuple[socket.socket, socket.socket]) -> None:
    found, sent, _ = claim_next(pair, answer_of())
    assert found == (3, 5, 11, 99, 2, 1_000, None, None, None, b"data")
    assert sent == message(OP_CLAIM, 9, CLAIM.pack(7, 1, 0, 0, 1) + b"w" + LEASED.pack(4, 10), FLAG_DONE)
    meta = msgpack.packb({"k": 1})
    assert claim_next(pair, answer_of(tag=b"t", meta=[meta]))[0][7:] == (b"t", meta, b"data")


@pytest.mark.parametrize(
    "answer",
    [
        answer_of(8),  # to another request
        answer_of(count=0),
        answer_of(acked=0, skipped=1),
        answer_of(more=b"x"),
        answer_of()[:-1],
        answer_of() + b"x",
        answer_of()[:20],
        message(OP_CLAIMED, 9, CLAIMED.pack(7, 0, 0) + ENDED.pack(1, 0), FLAG_DONE),
        map_message(OP_ERROR, 9, {"code": "not_found"}),
    ],
)
def test_any_other_answer_is_left_to_be_looked_at(pair: tuple[socket.socket, socket.socket], answer: bytes) -> None:
    found, _, window = claim_next(pair, answer)
    assert found == len(answer) and window[: len(answer)] == answer


def test_bytes_of_an_answer_that_are_changed_are_never_believed_beyond_its_end(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    whole, chance = answer_of(tag=b"tag"), random.Random(7)
    for _ in range(2_000):
        bad = bytearray(whole)
        for _ in range(chance.randrange(1, 4)):
            bad[chance.randrange(len(bad))] = chance.randrange(256)
        found = claim_next(pair, bytes(bad))[0]
        assert found == len(bad) or len(found) == 10


def test_what_is_no_claim_is_refused(pair: tuple[socket.socket, socket.socket]) -> None:
    assert _native.claim_next is not None
    for request in (b"", bytes(47), bytes(176)):
        with pytest.raises(ValueError, match="no claim"):
            _native.claim_next(pair[0].fileno(), request, 9, 4, 10, bytearray(64), 10)
    with pytest.raises(ValueError, match="no claim"):
        _native.claim_next(pair[0].fileno(), REQUEST, 1 << 32, 4, 10, bytearray(64), 10)
    with pytest.raises(BlockingIOError):
        _native.claim_next(pair[0].fileno(), REQUEST, 9, 4, 10, bytearray(64), 10)
    pair[1].close()
    with pytest.raises(BrokenPipeError):
        _native.claim_next(pair[0].fileno(), REQUEST, 9, 4, 10, bytearray(64), 10)
