"""The commit window: a group waits for company under pressure, and never without."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest

from tests.unit.delivery.kit import ROOT, make_disk
from topicd import paths
from topicd.clock import ManualClock
from topicd.frames import FrameType, control_frame
from topicd.ipc import ring, shm, slots
from topicd.ipc.ring import RingConsumer, RingProducer
from topicd.ipc.slots import Slots
from topicd.shards.wal.committer import Committer, Inlet
from topicd.shards.wal.log import WalLog

CAPACITY = 64 * 1024
FRAME = control_frame(FrameType.RESYNC, 0, 0, 0, {"epoch": 1})


class Scene:
    """A WAL shard with one ring whose producer, clock and sleep are the test's."""

    def __init__(self) -> None:
        self.instance = secrets.token_hex(8)
        self.clock = ManualClock()
        self.window_us = 0
        self.naps: list[float] = []
        self.meanwhile: Callable[[], None] = lambda: None
        ring.create(paths.ring_shm(self.instance, 0, 0), CAPACITY, self.instance).close()
        slots.create(paths.wal_state_shm(self.instance, 0), 4096, self.instance).close()
        name = paths.ring_shm(self.instance, 0, 0)
        self.producer, self.consumer = (
            RingProducer.attach(name, self.instance),
            RingConsumer.attach(name, self.instance),
        )
        self.log = WalLog(make_disk(), ROOT / "wal" / "shard-00", 1 << 20, 1, 1)
        self.log.open(4096, None)
        state = Slots.attach(paths.wal_state_shm(self.instance, 0), self.instance)
        inlet = Inlet(self.consumer, None, 0, 0)
        self.committer = Committer(self.log, state, self.clock, [inlet], 60.0, lambda: self.window_us, self._sleep)
        self.committer.open(1 << 19)

    def place(self, frames: int = 1) -> None:
        assert self.producer.try_write([FRAME * frames], len(FRAME) * frames) is not None

    def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.clock.advance(1)
        self.meanwhile()


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.log.close()
    for name in shm.names_of(made.instance):
        shm.unlink(name)


def test_without_pressure_nothing_waits(scene: Scene) -> None:
    scene.place()
    assert scene.committer.turn()
    assert (scene.naps, scene.consumer.written_pos, scene.consumer.took_us[0]) == ([], len(FRAME), 0)


def test_under_pressure_a_lone_write_waits_for_one_slice(scene: Scene) -> None:
    scene.window_us = 10_000
    scene.place()
    scene.committer.turn()
    assert scene.naps == [0.0005]
    assert scene.consumer.took_us[0] == 1_000  # as the clock has it
    assert scene.committer.waited_s == pytest.approx(0.001)
    assert scene.committer.groups == 1


def test_a_group_grows_as_long_as_more_comes_and_the_window_lasts(scene: Scene) -> None:
    scene.window_us = 2_000
    scene.meanwhile = scene.place
    scene.place()
    scene.committer.turn()
    assert len(scene.naps) == 4  # 2 ms
    assert (scene.committer.groups, scene.consumer.written_pos) == (1, 5 * len(FRAME))


def test_a_ring_with_little_room_left_is_emptied_at_once(scene: Scene) -> None:
    scene.window_us = 10_000
    scene.place(CAPACITY * 3 // 4 // len(FRAME))
    scene.committer.turn()
    assert scene.naps == []


def test_with_nothing_to_write_nobody_waits(scene: Scene) -> None:
    scene.window_us = 10_000
    assert not scene.committer.turn()
    assert scene.naps == []
