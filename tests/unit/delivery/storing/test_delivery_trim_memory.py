"""Memory goes back in a quiet second, after a flood, once everything is in segments."""

from __future__ import annotations

from topicd.child import malloc_trim
from topicd.limits import MIB
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.trim_memory import MemoryTrimmer


def trimmer_of(taken: int, tail: int) -> tuple[MemoryTrimmer, Counters, Backlog, list[int]]:
    counters, backlog = Counters(), Backlog()
    counters.bytes_taken, backlog.tail_bytes = taken, tail
    trims: list[int] = []
    return MemoryTrimmer(counters, backlog, lambda: trims.append(0)), counters, backlog, trims


def test_memory_goes_back_once_after_a_flood() -> None:
    trimmer, _, _, trims = trimmer_of(100 * MIB, 0)
    assert [trimmer.tick() for _ in range(4)] == [False, True, False, False]
    assert trims == [0]


def test_giving_back_works_here() -> None:
    malloc_trim()


def test_nothing_goes_back_while_records_come() -> None:
    trimmer, counters, _, trims = trimmer_of(100 * MIB, 0)
    for _ in range(5):
        counters.bytes_taken += 1
        assert not trimmer.tick()
    assert not trims


def test_nothing_goes_back_before_the_checkpoint() -> None:
    trimmer, _, backlog, trims = trimmer_of(100 * MIB, 5)
    assert not any(trimmer.tick() for _ in range(3))
    backlog.tail_bytes = 0
    assert trimmer.tick()
    assert trims == [0]


def test_a_little_is_not_worth_it() -> None:
    trimmer, _, _, trims = trimmer_of(MIB, 0)
    assert not any(trimmer.tick() for _ in range(3))
    assert not trims
