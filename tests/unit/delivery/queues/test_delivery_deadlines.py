"""Woken at their time, by whichever clock."""

from __future__ import annotations

import asyncio
import time

from topicd.clock import ManualClock, SystemClock
from topicd.shards.delivery.queues.deadlines import Deadlines, Sleeper


def no_timer(after: float, what: object) -> asyncio.TimerHandle:
    raise AssertionError("a test's clock sets no timers")


def test_each_is_woken_once_in_order() -> None:
    clock, woken = ManualClock(1_000), list[str]()
    deadlines = Deadlines(clock, no_timer)
    a, b = Sleeper(lambda: woken.append("a")), Sleeper(lambda: woken.append("b"))
    deadlines.wake_at(a, 1_200)
    deadlines.wake_at(b, 1_100)
    clock.advance(99)
    deadlines.run()
    assert woken == []
    clock.advance(101)
    deadlines.run()
    deadlines.run()
    assert woken == ["b", "a"]


def test_another_time_replaces_the_one_before() -> None:
    clock, woken = ManualClock(1_000), list[int]()
    deadlines = Deadlines(clock, no_timer)
    one = Sleeper(lambda: woken.append(clock.now_ms()))
    deadlines.wake_at(one, 1_100)
    deadlines.wake_at(one, 1_300)
    clock.advance(200)
    deadlines.run()
    assert woken == []
    deadlines.wake_at(one, None)
    clock.advance(200)
    deadlines.run()
    assert woken == [] and len(deadlines) == 0


def test_when_the_clock_was_set_back_all_are_woken_once() -> None:
    clock, woken = ManualClock(10_000_000), list[str]()
    deadlines = Deadlines(clock, no_timer)
    deadlines.run()
    deadlines.wake_at(Sleeper(lambda: woken.append("a")), 10_000_100)
    deadlines.wake_at(Sleeper(lambda: woken.append("b")), 10_500_000)
    clock.set_wall(9_999_500)  # adjusted
    deadlines.run()
    assert woken == []
    clock.set_wall(5_000_000)
    deadlines.run()
    deadlines.run()
    assert (woken, len(deadlines)) == (["a", "b"], 0)


def test_a_timer_is_never_far_ahead() -> None:
    """Else a clock that is set forward would be noticed long after."""
    asked: list[float] = []

    def call_later(after: float, what: object) -> asyncio.TimerHandle:
        asked.append(after)
        return asyncio.TimerHandle(0.0, lambda: None, (), loop)

    loop = asyncio.new_event_loop()
    Deadlines(SystemClock(), call_later).wake_at(Sleeper(lambda: None), time.time_ns() // 1_000_000 + 86_400_000)
    loop.close()
    assert asked == [10.0]


def test_by_the_real_clock_it_is_woken_by_itself() -> None:
    async def wait() -> int:
        loop, done = asyncio.get_running_loop(), asyncio.Event()
        deadlines = Deadlines(SystemClock(), loop.call_later)
        one = Sleeper(done.set)
        deadlines.wake_at(one, time.time_ns() // 1_000_000 + 3_600_000)
        at = time.time_ns() // 1_000_000 + 20
        deadlines.wake_at(one, at)
        await asyncio.wait_for(done.wait(), 30)
        return time.time_ns() // 1_000_000 - at

    assert asyncio.run(wait()) >= 0
