"""What the turn has to do, and that it starts one."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.delivery.kit import make_topic
from topicd.clock import ManualClock
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.sessions.peer import Peer


class Listener(Peer):
    def __init__(self, name: str, story: list[str]) -> None:
        self._name = name
        self._story = story

    def flush(self) -> None:
        self._story.append(self._name)


class Scene:
    def __init__(self) -> None:
        self.soon: list[Callable[[], None]] = []
        self.story: list[str] = []
        self.agenda = Agenda(self.soon.append, ManualClock())
        self.agenda.run_turn = lambda: self.story.append("turn")

    def run(self) -> None:
        due, self.soon[:] = list(self.soon), []
        for callback in due:
            callback()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def outlet(story: list[str]) -> Any:
    return Listener("outlet", story)  # all that the agenda asks of one is to flush


@pytest.mark.parametrize(
    "put",
    [
        lambda s: s.agenda.moved(make_topic()),
        lambda s: s.agenda.ring(outlet(s.story)),
        lambda s: s.agenda.flush_later(Listener("later", s.story)),
        lambda s: s.agenda.flush_first(Listener("first", s.story)),
        lambda s: s.agenda.start_turn(),
    ],
    ids=["moved", "ring", "flush_later", "flush_first", "start_turn"],
)
def test_whatever_is_put_there_starts_one_turn(scene: Scene, put: Callable[[Scene], None]) -> None:
    put(scene)
    put(scene)
    assert (len(scene.soon), scene.agenda.scheduled, scene.story) == (1, True, [])
    scene.run()
    assert (scene.story, scene.agenda.scheduled) == (["turn"], False)


def test_what_is_put_there_during_a_turn_starts_the_next(scene: Scene) -> None:
    scene.agenda.run_turn = scene.agenda.start_turn
    scene.agenda.start_turn()
    scene.run()
    assert len(scene.soon) == 1


def test_who_was_pushed_records_is_flushed_before_who_waits_for_a_number(scene: Scene) -> None:
    scene.agenda.flush_later(Listener("later", scene.story))
    scene.agenda.flush_first(Listener("first", scene.story))
    scene.agenda.flush_all()
    assert scene.story == ["first", "later"]


def test_who_was_pushed_records_has_the_core_before_who_waits_for_a_number(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_yield", lambda: scene.story.append("yield"))
    scene.agenda.flush_later(Listener("later", scene.story))
    scene.agenda.flush_all(give_way=True)  # nobody was pushed anything
    assert scene.story == ["later"]
    scene.agenda.flush_later(Listener("later", scene.story))
    scene.agenda.flush_first(Listener("first", scene.story))
    scene.agenda.flush_all(give_way=True)
    assert scene.story[1:] == ["first", "yield", "later"]


def test_each_is_flushed_and_rung_once(scene: Scene) -> None:
    peer, way = Listener("peer", scene.story), outlet(scene.story)
    for _ in range(2):
        scene.agenda.flush_later(peer)
        scene.agenda.ring(way)
    for _ in range(2):
        scene.agenda.ring_all()
        scene.agenda.flush_all()
    assert scene.story == ["outlet", "peer"]


def test_empty_means_that_nobody_waits_for_the_turn(scene: Scene) -> None:
    agenda, topic = scene.agenda, make_topic()
    assert agenda.empty
    agenda.moved(topic)
    assert not agenda.empty
    agenda.ready.forget(topic)
    for put in (agenda.flush_later, agenda.flush_first):
        put(Listener("peer", scene.story))
        assert not agenda.empty
        agenda.flush_all()
        assert agenda.empty
