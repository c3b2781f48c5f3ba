"""Memory goes back in a quiet second, after a flood, once everything is in segments."""

from __future__ import annotations

from types import SimpleNamespace

from topicd.limits import MIB
from topicd.shards.delivery.storing.trim_memory import Relief, malloc_trim


def relief_of(taken: int, tail: int) -> tuple[Relief, SimpleNamespace, list[int]]:
    actor = SimpleNamespace(bytes_taken=taken, checkpointer=SimpleNamespace(tail_bytes=tail))
    trims: list[int] = []
    relief = Relief(actor, lambda: trims.append(0))  # type: ignore[arg-type]
    return relief, actor, trims


def test_memory_goes_back_once_after_a_flood() -> None:
    relief, _, trims = relief_of(100 * MIB, 0)
    assert [relief.tick() for _ in range(4)] == [False, True, False, False]
    assert trims == [0]


def test_giving_back_works_here() -> None:
    malloc_trim()


def test_nothing_goes_back_while_records_come() -> None:
    relief, actor, trims = relief_of(100 * MIB, 0)
    for _ in range(5):
        actor.bytes_taken += 1
        assert not relief.tick()
    assert not trims


def test_nothing_goes_back_before_the_checkpoint() -> None:
    relief, actor, trims = relief_of(100 * MIB, 5)
    assert not any(relief.tick() for _ in range(3))
    actor.checkpointer.tail_bytes = 0
    assert relief.tick()
    assert trims == [0]


def test_a_little_is_not_worth_it() -> None:
    relief, _, trims = relief_of(MIB, 0)
    assert not any(relief.tick() for _ in range(3))
    assert not trims
