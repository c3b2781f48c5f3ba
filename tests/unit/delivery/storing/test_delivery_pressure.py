"""Memory that fills faster than the disk empties it: who waits, who is refused, who goes on."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.unit.delivery.kit import make_place
from topicd.limits import MIB
from topicd.shards.delivery.sessions.peer import Peer
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.pressure import Pressure


class Held(Peer):
    def __init__(self) -> None:
        self.went_on = 0

    def go_on(self) -> None:
        self.went_on += 1


class Scene:
    def __init__(self) -> None:
        self.backlog = Backlog()
        self.soon: list[Callable[[], None]] = []
        self.pressure = Pressure(make_place(checkpoint_bytes=MIB), self.backlog, self.soon.append)


@pytest.fixture
def scene() -> Scene:
    return Scene()


@pytest.mark.parametrize(
    ("times", "behind", "full"),
    [(0, False, False), (4, False, False), (4.1, True, False), (8, True, False), (8.1, True, True)],
)
def test_first_writers_wait_then_they_are_refused(scene: Scene, times: float, behind: bool, full: bool) -> None:
    scene.backlog.tail_bytes = int(times * MIB)
    assert (scene.pressure.behind, scene.pressure.holds_writers, scene.pressure.full) == (behind, behind, full)


def test_no_writer_waits_for_a_disk_that_refuses(scene: Scene) -> None:
    scene.backlog.tail_bytes, scene.pressure.failing = 5 * MIB, errno.EIO
    assert scene.pressure.behind
    assert not scene.pressure.holds_writers


@pytest.mark.parametrize(("tail", "failing"), [(MIB, 0), (5 * MIB, errno.EIO)], ids=["there is room", "none to come"])
def test_who_waits_goes_on_once_and_in_a_turn_of_its_own(scene: Scene, tail: int, failing: int) -> None:
    writers = [Held(), Held()]
    for writer in writers:
        scene.pressure.hold(writer)
    scene.backlog.tail_bytes = 5 * MIB
    scene.pressure.wake_writers()
    assert scene.soon == []
    scene.backlog.tail_bytes, scene.pressure.failing = tail, failing
    scene.pressure.wake_writers()
    scene.pressure.wake_writers()
    assert [writer.went_on for writer in writers] == [0, 0]
    for callback in scene.soon:
        callback()
    assert [writer.went_on for writer in writers] == [1, 1]


def test_a_connection_that_is_lost_is_not_waked(scene: Scene) -> None:
    writer = Held()
    scene.pressure.hold(writer)
    scene.pressure.forget(writer)
    scene.pressure.forget(writer)
    scene.pressure.wake_writers()
    assert scene.soon == []


def test_settings_that_are_reloaded_count_at_once(scene: Scene) -> None:
    scene.backlog.tail_bytes = 5 * MIB
    assert scene.pressure.behind
    place = scene.pressure._place
    place.settings = place.settings.replace(checkpoint_bytes=2 * MIB)
    assert not scene.pressure.behind
