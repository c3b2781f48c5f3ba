"""Every filesystem call while a router is made and copies: the power goes after it, the processes die, it fails.
Whatever happens, an acknowledged router is there, and its destination is its source from the router's beginning on,
once and in order.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Any

import pytest

from tests.faults.machine import ROOT, ConnectionGone, Machine, Unanswered
from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from tests.support.served import run_routers
from topicd.errors import TopicdError
from topicd.ipc.protocol.messages import Op

SETTINGS: dict[str, Any] = {"checkpoint_ms": 10, "snapshot_ms": 10}
STEP = 1 if os.environ.get("TOPICD_SWEEP") == "full" else 5
DEATHS = (Crashed, ConnectionGone, Unanswered, TopicdError, StopIteration)


class Play:
    def __init__(self) -> None:
        self.disk = FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])
        self.faults = FaultFs(self.disk)
        self.machine = Machine(self.faults, **SETTINGS).open()
        run_routers(self.machine.deliveries[0])
        self.machine.configure("a", durability="fsync")
        self.machine.configure("b", durability="fsync")
        self.machine.append("a", [b"before"])
        self.machine.settle()
        self.faults.calls.clear()
        self.made = False
        self.acknowledged: list[bytes] = []
        self.others: list[Machine] = []

    def act(self) -> None:
        machine = self.machine
        machine.wire_of("a").ask(Op.ROUTER_CREATE, {"router": "r", "source": "a", "dest": "b"})
        self.made = True
        for n in range(4):
            datas = [b"%d-%d" % (n, i) for i in range(3)]
            machine.append("a", datas)
            self.acknowledged += datas
            machine.settle()
            if n == 1:
                machine.checkpoint()
                machine.snapshot()
        machine.advance(60)
        machine.tick()

    def successor(self, disk: FakeDisk, *, power_lost: bool) -> Machine:
        machine = Machine(disk, previous=self.machine, power_lost=power_lost, **SETTINGS).open()
        self.others.append(machine)
        run_routers(machine.deliveries[0])
        machine.settle()
        return machine

    def check(self, machine: Machine) -> None:
        parts = machine.deliveries[0]
        assert ("r" in parts.routing.replica.graph.by_name) or not self.made
        for forwarder in parts.routing.shop.forwarders.values():
            forwarder._go_on()
        machine.settle()
        source = [seen.data for seen in machine.read("a")][1:]
        assert source[: len(self.acknowledged)] == self.acknowledged
        if "r" in parts.routing.replica.graph.by_name:
            assert [seen.data for seen in machine.read("b")] == source[len(source) - len(machine.read("b")) :]
            assert not self.made or [seen.data for seen in machine.read("b")] == source
            machine.append("a", [b"after"])
            machine.settle()
            assert [seen.data for seen in machine.read("b")][-1] == b"after"
        assert machine.damage() == []

    def close(self) -> None:
        for machine in [*self.others, self.machine]:
            machine.close()


def calls() -> int:
    play = Play()
    try:
        play.act()
        made = play.faults.count
        play.check(play.machine)
        return made
    finally:
        play.close()


@pytest.mark.parametrize("kind", ["power lost", "killed", "fails"])
def test_whatever_happens_to_a_call(kind: str) -> None:
    most = calls()
    for call in range(1, most + 1, STEP):
        play = Play()
        try:
            if kind == "fails":
                play.faults.fail_at, play.faults.errno = call, errno.EIO
            else:
                play.faults.crash_after = call
            with suppress(*DEATHS):
                play.act()
            # How many groups the last writes make is up to the loop.
            assert play.faults.crashed or kind == "fails" or call > most - 5
            play.check(_after(play, kind, call))
        except AssertionError as exc:
            exc.add_note(f"{kind} at call {call}")
            raise
        finally:
            play.close()


def _after(play: Play, kind: str, call: int) -> Machine:
    if kind == "fails":
        play.faults.fail_at = None
        play.machine.advance(1_000)
        play.machine.settle()
        return play.machine
    power_lost = kind == "power lost"
    return play.successor(play.disk.image(call) if power_lost else play.disk, power_lost=power_lost)
