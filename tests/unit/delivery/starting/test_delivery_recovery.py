"""Back to the state before the stop: the same files give the same state, and what cannot be read is reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.machine import Machine
from tests.support.fakedisk import FakeDisk
from tests.unit.delivery.desk import Desk
from tests.unit.delivery.kit import make_disk
from topicd.errors import StorageCorrupt
from topicd.frames import FrameType, control_frame, core
from topicd.ipc.protocol.messages import Op
from topicd.ipc.shardboot import DELIVERY
from topicd.shards.delivery.parts import Parts
from topicd.shards.storage.segment.names import DATA
from topicd.shards.storage.segment.places import resolve


class Life:
    """One machine after the other on the same disk."""

    def __init__(self) -> None:
        self.disk: FakeDisk = make_disk()
        self.machines = [Machine(self.disk).open()]

    @property
    def now(self) -> Machine:
        return self.machines[-1]

    def restart(self, *, power_lost: bool = False, **more: Any) -> Machine:
        """After SIGKILL, or after a loss of power that kept what was synced only."""
        self.now.abandon()
        if power_lost:
            self.disk = self.disk.image(0)
        self.machines.append(Machine(self.disk, previous=self.now, power_lost=power_lost, **more).open())
        return self.now


@pytest.fixture
def life() -> Iterator[Life]:
    made = Life()
    yield made
    for machine in made.machines:
        machine.close()


def busy(machine: Machine) -> None:
    """Some of everything that lasts."""
    machine.configure("disk", durability="disk")
    machine.configure("fsync", durability="fsync", cap_records=9)
    machine.configure("gone")
    machine.configure("queue", retain="acked")
    for n in range(12):
        machine.append("disk", [b"%d" % n], tag="odd" if n % 2 else "even", producer=7, number=n + 1)
        machine.append("fsync", [b"%d" % n])
        machine.append("queue", [b"%d" % n])
        if n == 6:
            machine.checkpoint()
    machine.ask("disk", Op.DELETE_RECORDS, match="odd", before_seq=9)
    machine.ask("queue", Op.CONSUMER_OPEN, name="c")
    machine.ask("queue", Op.CONSUMER_ACK, name="c", seq=5)
    machine.ask("gone", Op.DELETE_TOPIC)
    machine.configure("disk", ttl_ms=10**9)


@pytest.mark.parametrize("way", ["log only", "snapshot", "snapshot and more log", "stopped"])
def test_everything_acknowledged_is_there_again(life: Life, way: str) -> None:
    busy(life.now)
    if "snapshot" in way:
        life.now.checkpoint()
        life.now.snapshot()
    if "more" in way:
        life.now.append("disk", [b"later"], producer=7, number=13)
        life.now.ask("disk", Op.DELETE_RECORDS, match="even", before_seq=5)
    before = life.now.picture()
    if way == "stopped":
        life.now.stop()
        life.machines.append(Machine(life.disk, previous=life.now).open())
    else:
        life.restart()
    assert life.now.damage() == []
    assert life.now.picture() == before
    assert life.restart().picture() == before
    assert life.now.append("disk", [b"0"], producer=7, number=1).deduped


def test_the_same_files_give_the_same_state_after_power_loss(life: Life) -> None:
    busy(life.now)
    before = life.now.picture()
    life.restart(power_lost=True)
    after = life.now.picture()
    assert life.now.damage() == []
    assert after["fsync"] == before["fsync"]
    # What the class disk lost is a gap, and its seqs are not given out again.
    assert life.now.append("disk", [b"new"]).first_seq > before["disk"]["head_seq"]
    assert life.restart().picture()["fsync"] == before["fsync"]


def test_an_ephemeral_topic_keeps_its_seqs_and_not_its_records(life: Life) -> None:
    life.now.configure("e", durability="ephemeral")
    life.now.append("e", [b"x"] * 5)
    life.restart()
    state = life.now.state("e")
    assert (state["count"], state["head_seq"] >= 5, life.now.read("e")) == (0, True, [])
    assert life.now.append("e", [b"y"]).first_seq > 5


def test_a_topic_deleted_and_created_again_is_the_new_one(life: Life) -> None:
    life.now.configure("t")
    life.now.append("t", [b"old"])
    life.now.checkpoint()
    life.now.ask("t", Op.DELETE_TOPIC)
    topic_id = life.now.configure("t")
    life.now.append("t", [b"new"])
    life.restart()
    assert life.now.topic_id("t") == topic_id
    assert [record.data for record in life.now.read("t")] == [b"new"]


@pytest.mark.parametrize(("number", "cap"), [(4, 0), (5, 0), (6, 9), (None, 9)])
def test_a_change_that_the_snapshot_holds_is_not_done_again(desk: Desk, number: int | None, cap: int) -> None:
    """A later one may have gone with the WAL shard it was in."""
    topic = desk.topic()
    topic.changes.newest = 5
    body: dict[str, Any] = {"config": {"cap_records": 9}} | ({} if number is None else {"no": number})
    view = memoryview(control_frame(FrameType.CONFIG_UPDATE, topic.id, 0, 0, body))
    [run] = core.scan_frames(view, 0, len(view)).runs
    desk.parts.recovery()._apply(view, run)
    assert topic.config.cap_records == cap


def test_a_segment_that_is_gone_is_reported_and_never_passed_over(life: Life) -> None:
    life.now.configure("t", durability="fsync")
    life.now.append("t", [b"x"] * 8)
    life.now.append("t", [b"y"] * 8)
    life.now.checkpoint()
    life.now.snapshot()
    life.now.forget_wal()
    life.now.stop()
    place = life.now.data.topic(life.now.topic_id("t"))
    for name in life.disk.listdir(place):
        if name.startswith(resolve(place, 9).file(DATA).stem):
            life.disk.unlink(place / name)
    life.machines.append(Machine(life.disk, previous=life.now).open())
    assert life.now.damage() != []
    records, next_from, head = life.now.read_some("t", 0)
    assert (len(records), next_from, head) == (8, 8, 16)
    with pytest.raises(StorageCorrupt):
        life.now.read_some("t", 8)
    assert life.now.append("t", [b"z"]).first_seq == 17


def test_progress_goes_up_to_a_hundred(life: Life) -> None:
    busy(life.now)
    told: list[float] = []
    parts = life.now.deliveries[0]
    # A second recovery of the same files, beside the one that serves.
    shard = life.now._shard(DELIVERY, 0)
    twin = Parts(shard, life.now.loop, parts.outlets, life.now.pools[0])
    result = twin.recovery().run(lambda percent, what: told.append(percent), life.now._live_ends())
    assert told == sorted(told)
    assert told[-1] == 100
    assert (result.topics, result.damage) == (3, [])


@pytest.mark.parametrize(("wals", "shards"), [(1, 2), (2, 1), (2, 2)])
def test_another_number_of_shards_finds_everything(life: Life, wals: int, shards: int) -> None:
    busy(life.now)
    life.now.snapshot()
    before = life.now.picture()
    life.restart(wal_shards=wals, delivery_shards=shards)
    assert (life.now.picture(), life.now.damage()) == (before, [])
