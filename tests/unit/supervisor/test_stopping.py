"""The order of a stop."""

from __future__ import annotations

import signal
from typing import Any, cast

import pytest

from topicd.supervisor.child import Child
from topicd.supervisor.kinds import KINDS, Kind
from topicd.supervisor.stopping import StopPlan

WAL, DELIVERY = KINDS[:2]


class Actor:
    """What a plan needs of a child."""

    def __init__(self, kind: Kind, name: str) -> None:
        self.kind, self.name = kind, name
        self.running = True
        self.abandoned = False
        self.got: list[Any] = []

    def send(self, body: dict[str, Any]) -> bool:
        self.got.append(body["event"])
        return True

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.got.append(number)

    def abandon(self) -> None:
        self.abandoned = True


@pytest.fixture
def actors() -> list[Actor]:
    return [Actor(WAL, "wal-00"), Actor(DELIVERY, "dlv-00"), Actor(DELIVERY, "dlv-01")]


def plan_for(actors: list[Actor]) -> StopPlan:
    return StopPlan(cast("list[Child]", actors), timeout_s=10.0, now=100.0)


def test_wal_shards_are_asked_after_the_last_delivery_shard_left(actors: list[Actor]) -> None:
    plan = plan_for(actors)
    wal, first, second = actors
    plan.step(100.0)
    assert (wal.got, first.got, second.got) == ([], ["stop"], ["stop"])
    first.running = False
    plan.step(101.0)
    assert wal.got == []
    second.running = False
    plan.step(102.0)
    assert wal.got == ["stop"]
    assert not plan.done
    wal.running = False
    plan.step(103.0)
    assert plan.done
    assert all(actor.abandoned for actor in actors)


def test_pressure_rises_once_per_step(actors: list[Actor]) -> None:
    plan = plan_for(actors)
    first = actors[1]
    for now in (100.0, 104.0, 104.6, 104.7, 105.6, 105.7):
        plan.step(now)
    assert first.got == ["stop", signal.SIGTERM, signal.SIGKILL]


def test_everybody_is_killed_before_the_timeout(actors: list[Actor]) -> None:
    plan = plan_for(actors)
    plan.step(105.6)
    for actor in actors[1:]:
        actor.running = False
    plan.step(105.7)
    plan.step(109.1)
    assert actors[0].got == ["stop", signal.SIGKILL]


def test_next_moment_is_never_in_the_past(actors: list[Actor]) -> None:
    plan = plan_for(actors)
    assert plan.next_at(100.0) == pytest.approx(104.5)
    assert plan.next_at(104.6) == pytest.approx(105.5)
    assert plan.next_at(106.0) is None


def test_wal_shards_are_needed_until_their_turn(actors: list[Actor]) -> None:
    plan = plan_for(actors)
    plan.step(100.0)
    assert plan.needs(WAL)
    assert not plan.needs(DELIVERY)
    for actor in actors[1:]:
        actor.running = False
    plan.step(101.0)
    assert not plan.needs(WAL)


def test_hurry_kills_at_once(actors: list[Actor]) -> None:
    plan = plan_for(actors)
    plan.step(100.0)
    plan.hurry()
    plan.step(100.1)
    assert actors[1].got == ["stop", signal.SIGKILL]
