"""Who works when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.routing import pump as module
from topicd.shards.delivery.routing.pump import Pump


class Busy:
    def __init__(self, pump: Pump, times: int, *, urgent: bool = False, moved: bool = False, late: int = 0) -> None:
        self._pump = pump
        self.left = times
        self.urgent = urgent
        self.moved = moved
        self.late = late

    def run(self) -> None:
        self.left -= 1
        if self.left:
            self._pump.add(self)

    def crowded(self) -> bool:
        return self.moved

    def late_ms(self) -> int:
        return self.late


async def _until(done: object, times: int = 2_000) -> int:
    for n in range(times):
        if done():  # type: ignore[operator]
            return n
        await asyncio.sleep(0)
    raise AssertionError("never")


def test_everybody_has_a_turn() -> None:
    async def go() -> None:
        pump = Pump(asyncio.get_running_loop(), Counters())
        some = [Busy(pump, 5) for _ in range(3)]
        for one in some:
            pump.add(one)
        await _until(lambda: not any(one.left for one in some))

    asyncio.run(go())


def test_while_clients_write_it_pauses_unless_somebody_waits() -> None:
    async def go() -> None:
        counters = Counters()
        pump = Pump(asyncio.get_running_loop(), counters)
        module_slice, module._SLICE_S = module._SLICE_S, 0.0001
        try:
            first, later, urgent = Busy(pump, 1), Busy(pump, 1), Busy(pump, 1, urgent=True)
            counters.records = 10
            pump.add(first)
            await _until(lambda: not first.left)
            assert pump._paused
            pump.add(later)
            pump.add(urgent)
            await _until(lambda: not urgent.left)
            await asyncio.sleep(2 * module._PAUSE_MAX_S)
            assert not later.left
        finally:
            module._SLICE_S = module_slice

    asyncio.run(go())


def _pauses(monkeypatch: pytest.MonkeyPatch, one: dict[str, Any]) -> float:
    """How long the pump rests behind a batch that took a millisecond."""
    at = iter([0.0, 0.001])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(at))
    rests: list[float] = []

    class Loop:
        def call_soon(self, call: object) -> None:
            rests.append(0.0)

        def call_later(self, pause: float, call: object) -> None:
            rests.append(pause)

    pump = Pump(Loop(), Counters())  # type: ignore[arg-type]
    pump.add(Busy(pump, 1, **one))
    pump._timer, rests[:] = None, []
    pump._run()
    return max(rests, default=0.0)


def test_while_clients_write_to_a_source_in_another_shard_it_pauses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _pauses(monkeypatch, {"moved": True}) == pytest.approx(0.001 * module._POLITE)


def test_without_writers_it_does_not_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _pauses(monkeypatch, {}) == 0


def test_who_has_been_behind_for_long_has_fewer_manners(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = 0.001 * module._POLITE
    for late, share in ((10_000, 1.0), (15_000, 0.5), (20_000, 0.0), (1 << 40, 0.0)):
        with monkeypatch.context() as patch:
            assert _pauses(patch, {"moved": True, "late": late}) == pytest.approx(share * whole)


def test_one_that_is_gone_is_forgotten() -> None:
    async def go() -> None:
        pump = Pump(asyncio.get_running_loop(), Counters())
        one = Busy(pump, 1)
        pump.add(one)
        pump.forget(one)
        await asyncio.sleep(0.01)
        assert one.left == 1

    asyncio.run(go())
