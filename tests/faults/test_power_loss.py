"""After a loss of power: a topic at rest has lost nothing and says so; what may be lost is told as exactly as the last
durable mark allows, until somebody forgives it."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from tests.faults.machine import Machine
from tests.support.fakedisk import FakeDisk
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import FETCH, FETCHED
from topicd.model import Tombstone

REST_MS = 6_000


def after_power_loss(disk: Any, machine: Machine, seed: int = 1) -> Machine:
    machine.abandon()
    return Machine(disk.image(seed), previous=machine, power_lost=True).open()


def lost(machine: Machine, topic: str) -> list[list[int]]:
    found: list[list[int]] = machine.state(topic)["lost"]
    return found


def gap_behind(machine: Machine, topic: str, from_seq: int) -> Tombstone:
    wire = machine.wire_of(topic)
    fixed = FETCH.pack(machine.topic_id(topic), from_seq, 10, 1 << 20, 0)
    _, body = wire.answer(wire.send(Op.FETCH, fixed))
    extra = FETCHED.unpack_from(body)[-1]
    return Tombstone.from_wire(msgpack.unpackb(body[FETCHED.size : FETCHED.size + extra])["tombstone"])


def sync(machine: Machine) -> None:
    """Everything that is in the log."""
    machine.configure("synced", durability="fsync")
    machine.append("synced", [b"s"])


def rest(machine: Machine) -> None:
    """So long that a topic at rest gives back what it does not use."""
    machine.clock.advance(REST_MS)
    machine.tick()


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("written", [0, 2, 1_500])
def test_a_topic_at_rest_has_lost_nothing(disk: FakeDisk, written: int, snapshot: bool) -> None:
    with Machine(disk) as machine:
        machine.open()
        machine.configure("d", durability="disk")
        if written:
            machine.append("d", [b"x"] * written)
        rest(machine)
        if snapshot:
            machine.checkpoint()
            machine.snapshot()
        with after_power_loss(disk, machine) as later:
            assert lost(later, "d") == [] and later.damage() == []
            assert later.append("d", [b"y"]).first_seq == written + 1
            assert [seen.data for seen in later.read("d")] == [b"x"] * written + [b"y"]


def test_seqs_that_were_given_out_behind_a_rest_are_not_given_out_again(disk: FakeDisk) -> None:
    with Machine(disk) as machine:
        machine.open()
        machine.configure("d", durability="disk")
        machine.append("d", [b"a", b"b"])
        rest(machine)
        first = machine.append("d", [b"c"]).first_seq
        assert first == 3
        with after_power_loss(disk, machine) as later:
            assert later.append("d", [b"d"]).first_seq > 3
            assert [seen.data for seen in later.read("d")][:2] == [b"a", b"b"]


def test_the_estimate_is_that_of_the_pace_and_not_of_the_reservation(disk: FakeDisk) -> None:
    with Machine(disk) as machine:
        machine.open()
        machine.configure("d", durability="disk")
        machine.append("d", [b"x"] * 40)
        machine.clock.advance(1_000)
        machine.append("d", [b"x"] * 2)
        sync(machine)
        with after_power_loss(disk, machine) as later:
            [[first, last]] = lost(later, "d")
            assert (first, last) == (43, 1_024)
            gap = gap_behind(later, "d", 42)
            assert (gap.gap_from, gap.gap_to, gap.reason, gap.missed_estimate) == (43, 1_024, "power_loss", 2)
            # Also when it starts again, and once it is in a snapshot only.
            later.checkpoint()
            later.snapshot()
            later.forget_wal()
            with after_power_loss(later.fs, later) as again:
                assert lost(again, "d") == [[43, 1_024]]
                assert gap_behind(again, "d", 42).missed_estimate == 2


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_gap_that_was_forgiven_is_told_to_nobody(disk: FakeDisk, snapshot: bool) -> None:
    with Machine(disk) as machine:
        machine.open()
        machine.configure("d", durability="disk")
        machine.append("d", [b"x"] * 2)
        sync(machine)
        with after_power_loss(disk, machine) as later:
            with pytest.raises(InvalidRequest, match="no loss of power"):
                later.ask("d", Op.FORGIVE_GAP, first_seq=1, last_seq=2)
            assert later.ask("d", Op.FORGIVE_GAP, first_seq=1, last_seq=500)["forgiven"] == [[3, 500]]
            assert lost(later, "d") == [[501, 1_024]]
            assert later.ask("d", Op.FORGIVE_GAP, first_seq=1, last_seq=9_999)["forgiven"] == [[501, 1_024]]
            later.append("d", [b"y"])
            rest(later)
            if snapshot:
                later.checkpoint()
                later.snapshot()
                later.forget_wal()
            with after_power_loss(later.fs, later) as again:
                assert lost(again, "d") == [] and again.damage() == []
                assert [seen.data for seen in again.read("d")] == [b"x", b"x", b"y"]
