"""Compaction on a disk that forgets and fails: at every call the power goes, the processes die, or the call fails. What
must hold each time: of every tag the newest acknowledged record is there, and every record without a tag; nothing is
there that was never sent; nobody is told of a gap; another run ends where it would have ended.

    python -m tests.faults.compaction [--every N] [--share I/N] [--kinds A,B] [--first]
"""

from __future__ import annotations

import errno
import sys
from contextlib import suppress

from tests.faults.every_call import sweep
from tests.faults.machine import ROOT, Machine
from tests.support.fakedisk import STYLES, FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from topicd.errors import TopicdError

TOPIC = "latest"
KINDS = ("power", "killed", "failed")
ROUNDS = (["a", "b", None, "a", "c", "a", None, "b"], ["a", "d", "a", "b", None, "e", "e", "c"], ["a"] * 7 + ["d"])


class World:
    def __init__(self) -> None:
        self.disk = FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])
        self.fs = FaultFs(self.disk)
        self.machine = Machine(self.fs).open()
        self.machine.configure(TOPIC, durability="fsync", compact="last-per-tag")
        self.sent: dict[int, str | None] = {}  # acknowledged: seq to tag
        for number, tags in enumerate(ROUNDS):
            for tag in tags:
                self.sent[self.machine.append(TOPIC, [f"{number}".encode()], tag=tag).first_seq] = tag
            self.machine.checkpoint()
        self.fs.calls.clear()

    @property
    def due(self) -> list[int]:
        """What stays when everything is done: all of it is sealed."""
        newest = {tag: seq for seq, tag in self.sent.items() if tag is not None}
        return sorted([*newest.values(), *(seq for seq, tag in self.sent.items() if tag is None)])

    def close(self) -> None:
        self.machine.close()


def compact(machine: Machine) -> None:
    """To its end, marks, snapshot and rewrites included."""
    (parts,) = machine.deliveries.values()
    parts.compaction.longest_pause_s = 0.0
    for _ in range(2 * len(ROUNDS)):
        parts.compaction.tick()
        machine.settle()
    machine.checkpoint()
    machine.snapshot()
    machine.snapshot()


def problems(world: World, machine: Machine, *, done: bool) -> list[str]:
    found = [f"damage: {line}" for line in machine.damage()]
    seqs, due = [seen.seq for seen in machine.read(TOPIC)], world.due
    if lost := set(due) - set(seqs):
        found.append(f"lost: {sorted(lost)}")
    if strange := set(seqs) - set(world.sent):
        found.append(f"nobody sent: {sorted(strange)}")
    if done and seqs != due:
        found.append(f"not compacted: {seqs}, expected {due}")
    state = machine.state(TOPIC)
    if state["evict_floor"] != 1 or state["count"] != len(seqs):
        found.append(f"readers are told of a gap, or counts are wrong: {state}")
    return found


def calls_of() -> int:
    world = World()
    try:
        compact(world.machine)
        found = problems(world, world.machine, done=True)
        assert not found, "\n".join(found)
        return world.fs.count
    finally:
        world.close()


def run_case(kind: str, call: int) -> list[str]:
    world, successor = World(), None
    try:
        if kind == "failed":
            world.fs.fail_at, world.fs.errno = call, (errno.EIO, errno.ENOSPC)[call % 2]
        else:
            world.fs.crash_after = call
        with suppress(Crashed, OSError, TopicdError):
            compact(world.machine)
        if kind == "failed":
            world.fs.fail_at = None
            machine = world.machine
            machine.advance(2_000)
        else:
            world.machine.abandon()
            disk = world.disk.image(call % len(STYLES)) if kind == "power" else world.disk
            machine = successor = Machine(disk, previous=world.machine, power_lost=kind == "power").open()
        found = problems(world, machine, done=False)
        compact(machine)
        found += problems(world, machine, done=True)
        return [f"{kind} {call}: {line}" for line in found]
    finally:
        if successor is not None:
            successor.close()
        world.close()


if __name__ == "__main__":
    sys.exit(sweep(__doc__, lambda: dict.fromkeys(KINDS, calls_of()), run_case))
