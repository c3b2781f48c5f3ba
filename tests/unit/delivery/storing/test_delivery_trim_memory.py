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


def test_memory_goes_back_after_a_flood_and_once_more_when_it_has_settled() -> None:
    trimmer, counters, _, trims = trimmer_of(100 * MIB, 0)
    gone = [False, True, False, False, False, False, True, *[False] * 20]
    assert [trimmer.tick() for _ in gone] == gone
    assert len(trims) == 2
    counters.bytes_taken += 9 * MIB
    assert [trimmer.tick() for _ in gone] == gone


def test_only_quiet_seconds_count() -> None:
    trimmer, counters, _, trims = trimmer_of(100 * MIB, 0)
    assert [trimmer.tick() for _ in range(2)] == [False, True]
    for _ in range(4):
        counters.bytes_taken += 1
        assert not trimmer.tick() and not trimmer.tick()
    assert len(trims) == 1
    counters.bytes_taken += 1
    assert [trimmer.tick(), trimmer.tick()] == [False, True]


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
