"""Who works when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.routing import pump as module
from topicd.shards.delivery.routing.pump import Pump, Seen
from topicd.shards.delivery.routing.share import Share


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

    def seen(self) -> Seen:
        return Seen(10, 10, self.moved)

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
            assert pump._timer is not None
            assert pump._paused
            pump.add(later)
            pump.add(urgent)
            await _until(lambda: not urgent.left)
            await asyncio.sleep(2 * module._PAUSE_MAX_S)
            assert not later.left
        finally:
            module._SLICE_S = module_slice

    asyncio.run(go())


class Loop:
    """Time stands still but for what a batch takes, and what is said."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.rests: list[float] = []
        self._due: Any = None
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)

    def call_soon(self, call: Any) -> None:
        self.call_later(0.0, call)

    def call_later(self, pause: float, call: Any) -> Loop:
        self.rests.append(pause)
        self._due = call
        return self

    def cancel(self) -> None:
        self._due = None

    def turn(self) -> None:
        due, self._due = self._due, None
        self.now += self.rests[-1]
        due()


class Slow(Busy):
    """A batch takes a millisecond."""

    def __init__(self, loop: Loop, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._loop = loop

    def run(self) -> None:
        self._loop.now += 0.001
        super().run()


def _pauses(monkeypatch: pytest.MonkeyPatch, **one: Any) -> float:
    """How long the pump rests behind a batch that took a millisecond."""
    loop = Loop(monkeypatch)
    pump = Pump(loop, Counters())  # type: ignore[arg-type]
    pump.add(Slow(loop, pump, 1, **one))
    loop.rests.clear()
    loop._due()
    return max(loop.rests, default=0.0)


WHOLE = Share().rest(0.001)


def test_while_clients_write_to_a_source_in_another_shard_it_pauses_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _pauses(monkeypatch, moved=True) == pytest.approx(WHOLE)


def test_without_writers_it_does_not_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _pauses(monkeypatch) == 0


def test_who_has_been_behind_for_long_has_fewer_manners(monkeypatch: pytest.MonkeyPatch) -> None:
    for late, share in ((10_000, 1.0), (15_000, 0.5), (20_000, 0.0), (1 << 40, 0.0)):
        with monkeypatch.context() as patch:
            assert _pauses(patch, moved=True, late=late) == pytest.approx(share * WHOLE)


def test_who_has_been_behind_for_very_long_takes_whole_slices_in_a_flood(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    pump = Pump(loop, Counters())  # type: ignore[arg-type]
    monkeypatch.setattr(Share, "taken", 0.001)
    one = Slow(loop, pump, 100, moved=True, late=20_000)
    pump._crowded_until = loop.now + 1
    pump.add(one)
    loop.turn()
    assert (one.left, loop.rests[-1]) == (99, 0)
    loop.turn()
    assert (one.left, loop.rests[-1]) == (97, 0)


def test_clients_that_were_seen_writing_a_moment_ago_write_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a source in another shard nothing is seen between two of its messages."""
    loop = Loop(monkeypatch)
    pump = Pump(loop, Counters())  # type: ignore[arg-type]
    one = Slow(loop, pump, 100, moved=True)
    pump.add(one)
    loop.turn()
    one.moved = False
    for _ in range(3):
        loop.turn()
        assert loop.rests[-1] > 0
    loop.now += module._CROWDED_S
    loop.turn()
    assert loop.rests[-1] == 0


@pytest.mark.parametrize(("urgent", "flood", "batches"), [(True, True, 2), (False, True, 1), (False, False, 2)])
def test_in_a_flood_only_what_is_waited_for_has_a_whole_slice(
    monkeypatch: pytest.MonkeyPatch, urgent: bool, flood: bool, batches: int
) -> None:
    loop = Loop(monkeypatch)
    pump = Pump(loop, Counters())  # type: ignore[arg-type]
    monkeypatch.setattr(Share, "taken", 0.001)
    one = Slow(loop, pump, 100, urgent=urgent, moved=True)
    pump._crowded_until = loop.now + 1 if flood else 0.0
    pump.add(one)
    loop.turn()
    assert one.left == 100 - batches


def test_who_has_nothing_to_do_is_not_called_again(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, counters = Loop(monkeypatch), Counters()
    pump = Pump(loop, counters)  # type: ignore[arg-type]
    counters.records = 10
    pump.add(Slow(loop, pump, 1, moved=True))
    loop.turn()
    loop.turn()  # the end of the pause
    assert loop._due is None


def test_under_pressure_pauses_are_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(monkeypatch)
    pump = Pump(loop, Counters())  # type: ignore[arg-type]
    pump.polite = 2.0
    pump.add(Slow(loop, pump, 1, moved=True))
    loop.turn()
    assert loop.rests[-1] == pytest.approx(2 * WHOLE)


def test_one_that_is_gone_is_forgotten() -> None:
    async def go() -> None:
        pump = Pump(asyncio.get_running_loop(), Counters())
        one = Busy(pump, 1)
        pump.add(one)
        pump.forget(one)
        await asyncio.sleep(0.01)
        assert one.left == 1

    asyncio.run(go())
