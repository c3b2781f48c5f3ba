"""Bytes that came, a slice at a time."""

from __future__ import annotations

from random import Random

from topicd.gateway.web.slices import LOOK_S, Slices


def sizes_of(slices: Slices, data: bytes, seconds: float) -> list[int]:
    slices.put(data)
    found = []
    while slices:
        found.append(len(slices.take()))
        slices.took(seconds)
    return found


def test_slices_grow_while_they_are_cheap_and_shrink_where_they_are_not() -> None:
    slices = Slices(1024)
    assert sizes_of(slices, bytes(1 << 20), 0.0)[:4] == [1024, 2048, 4096, 8192]
    dear = sizes_of(slices, bytes(1 << 20), LOOK_S * 2)
    assert dear[0] == 65_536 and dear[-2] == 256 and dear == sorted(dear[:-1], reverse=True) + dear[-1:]
    assert max(sizes_of(slices, bytes(1 << 16), LOOK_S * 0.75)) == 256


def test_what_comes_whole_and_late_makes_slices_no_smaller() -> None:
    slices = Slices(1024)
    assert all(sizes_of(slices, bytes(1024), 1.0) == [1024] for _ in range(20))
    assert all(sizes_of(slices, bytes(10), 0.0) == [10] for _ in range(20))
    assert sizes_of(slices, bytes(2_000), 0.0)[0] == 1024


def test_nothing_is_lost_or_changed() -> None:
    chance, slices, sent, found = Random(1), Slices(1024), b"", b""
    for _ in range(200):
        piece = chance.randbytes(chance.randint(1, 5_000))
        sent += piece
        slices.put(piece)
        for _ in range(chance.randint(0, 4)):
            if slices:
                found += slices.take()
                slices.took(chance.random() * 2 * LOOK_S)
    assert found + slices.rest() == sent
    assert not slices and slices.rest() == b""
