"""The same bytes to many sockets in one call: who took all, who took a part, who took none."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Iterator

import pytest

from topicd import _native

pytestmark = pytest.mark.skipif(_native.send_each is None, reason="there is no C core")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pairs() -> Iterator[list[Pair]]:
    made = [socket.socketpair() for _ in range(3)]
    yield made
    for pair in made:
        for end in pair:
            end.close()


def send(fds: list[int], data: bytes) -> list[tuple[int, int]]:
    assert _native.send_each is not None
    return _native.send_each(array("i", fds).tobytes(), data)


def test_all_get_the_same_bytes(pairs: list[Pair]) -> None:
    assert send([ours.fileno() for ours, _ in pairs], b"hello") == []
    assert [theirs.recv(100) for _, theirs in pairs] == [b"hello"] * 3


def test_nobody_and_nothing_are_well(pairs: list[Pair]) -> None:
    assert send([], b"hello") == []
    assert send([pairs[0][0].fileno()], b"") == []


def test_a_full_socket_says_how_much_it_took_and_never_waits(pairs: list[Pair]) -> None:
    fds = [ours.fileno() for ours, _ in pairs]  # blocking ones
    data = bytes(range(256)) * 8_192
    first = send([fds[1]], data)
    assert [index for index, _ in first] == [0] and 0 < first[0][1] < len(data)
    assert send(fds, b"more") == [(1, 0)]
    got = b""
    while len(got) < first[0][1]:
        got += pairs[1][1].recv(1 << 20)
    assert got == data[: first[0][1]]


def test_one_that_is_gone_took_nothing_and_raises_nothing(pairs: list[Pair]) -> None:
    pairs[0][1].close()
    fds = [ours.fileno() for ours, _ in pairs]
    assert send([*fds, 1_000_000, -1], b"x") == [(0, 0), (3, 0), (4, 0)]
    assert pairs[2][1].recv(10) == b"x"


@pytest.mark.parametrize("given", [b"abc", b"abcde"])
def test_what_is_no_list_of_descriptors_is_refused(given: bytes) -> None:
    assert _native.send_each is not None
    with pytest.raises(ValueError, match="no list of descriptors"):
        _native.send_each(given, b"x")


def test_what_is_no_buffer_is_refused() -> None:
    assert _native.send_each is not None
    with pytest.raises(TypeError):
        _native.send_each([1], b"x")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _native.send_each(b"", "x")  # type: ignore[arg-type]
