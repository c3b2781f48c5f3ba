"""The number of shards changes between runs: every topic is found again, whoever owned it before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.machine import Machine
from tests.support.fakedisk import FakeDisk
from topicd.ipc.protocol.messages import Op

NAMES = [f"topic-{n}" for n in range(12)]


@pytest.fixture
def first(disk: FakeDisk) -> Iterator[Machine]:
    """A run with records of every kind, in segments, snapshots and WAL; still running."""
    with Machine(disk, wal_shards=1, delivery_shards=1) as machine:
        fill(machine.open())
        yield machine


def fill(machine: Machine) -> None:
    for n, name in enumerate(NAMES):
        machine.configure(name, durability=("fsync", "disk", "memory")[n % 3], priority=n)
    for part in range(3):
        for n, name in enumerate(NAMES):
            machine.append(
                name, [f"{name}/{part}/{i}".encode() for i in range(5)], tag=f"t{part}", producer=n + 1, number=part + 1
            )
        if part < 2:
            machine.checkpoint()
            machine.snapshot()
    machine.ask(NAMES[0], Op.DELETE_RECORDS, before_seq=4)
    machine.ask(NAMES[1], Op.DELETE_RECORDS, match="t1")
    machine.configure(NAMES[2], cap_records=7)
    machine.ask(NAMES[3], Op.CONSUMER_OPEN, name="reader")
    machine.ask(NAMES[3], Op.CONSUMER_ACK, name="reader", seq=6)
    machine.ask(NAMES[4], Op.DELETE_TOPIC)
    machine.settle()


@pytest.mark.fault("REC-10")
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("counts", [[(8, 8), (3, 3)], [(3, 1), (1, 3)], [(2, 3), (1, 2), (4, 1), (2, 3)]])
def test_changed_counts_give_identical_answers(
    disk: FakeDisk, first: Machine, counts: list[tuple[int, int]], clean: bool
) -> None:
    expected, previous = first.picture(), first
    machines: list[Machine] = []
    for wal_shards, delivery_shards in counts:
        previous.stop() if clean else previous.abandon()
        machine = Machine(disk, previous=previous, wal_shards=wal_shards, delivery_shards=delivery_shards)
        machines.append(machine)
        machine.open()
        assert machine.damage() == []
        assert machine.picture() == expected
        previous = machine
    for machine in machines:
        machine.close()


@pytest.mark.fault("REC-11")
def test_shard_that_starts_late_finds_the_topics_that_others_owned(disk: FakeDisk, first: Machine) -> None:
    """Its siblings may have written many snapshots of their own by then."""
    expected = first.picture()
    first.stop()
    with Machine(disk, previous=first, wal_shards=1, delivery_shards=3) as second:
        second.open().forget_wal()
        second.stop()
        with Machine(disk, previous=second, wal_shards=1, delivery_shards=2) as third:
            third._memory.create()
            third.start_wal(0)
            third.start_delivery(0)
            third.settle()
            for _ in range(4):
                third.snapshot()
            third.start_delivery(1)
            third.settle()
            assert third.damage() == []
            assert third.picture() == expected


@pytest.mark.fault("REC-11")
def test_shard_that_never_wrote_a_snapshot_loses_no_topic_to_the_next_run(disk: FakeDisk, first: Machine) -> None:
    expected = first.picture()
    first.forget_wal()
    first.stop()
    with Machine(disk, previous=first, wal_shards=1, delivery_shards=3) as second:
        second._memory.create()
        second.start_wal(0)
        for index in (0, 1, 2):
            second.start_delivery(index, absorb=index == 0)
        second.settle()
        for _ in range(4):
            second.deliveries[0].snapshots.start()
            second.settle()
        second.abandon()
        with Machine(disk, previous=second, wal_shards=1, delivery_shards=2) as third:
            third.open()
            assert third.damage() == []
            assert third.picture() == expected


@pytest.mark.fault("REC-11")
def test_snapshots_of_earlier_runs_go_once_every_shard_has_its_own(disk: FakeDisk, first: Machine) -> None:
    first.stop()
    with Machine(disk, previous=first, wal_shards=1, delivery_shards=2) as second:
        second.open()
        for _ in range(4):
            second.snapshot()
        for index in range(2):
            assert len(disk.listdir(second.data.snapshots(index))) == 2
