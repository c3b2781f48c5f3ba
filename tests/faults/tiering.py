"""Segments that move between the fast disk, packed files and the cold directory while their shard serves, on disks that
forget and fail: at every call the power goes, the processes die, or the call fails. What must hold each time: every
acknowledged record is read, once and as it was sent; what was deleted may be gone, and nothing else is; damage is not
invented; another run ends where it would have ended, with one file for the frames of each segment.

    python -m tests.faults.tiering [--every N] [--share I/N] [--kinds A,B] [--first]
"""

from __future__ import annotations

import errno
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults.every_call import sweep
from tests.faults.machine import ROOT, Inline, Machine
from tests.support.fakedisk import STYLES, FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from topicd.disk.cold import adopt
from topicd.errors import TopicdError
from topicd.ipc.protocol.messages import Op
from topicd.paths import DataDir
from topicd.shards.delivery.parts import Parts
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.info import Lies
from topicd.shards.storage.segment.names import DATA, PACKED
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.relocate import strays

COLD = Path("/cold")
TOPIC = "history"
KINDS = ("power", "killed", "failed")
SETTINGS: dict[str, Any] = {
    "cold_dir": str(COLD),
    "compress": "zstd",
    "hot_retain_segments": 2,
    "cold_rate_bytes": 0,
    "cold_cache_bytes": 1 << 20,
}
SEGMENT = 8  # records
DEAD = 6  # of the records of each of the first three segments, so many have a tag


class TieredMachine(Machine):
    """Its threads for the cold directory do their work at once, so that calls have an order."""

    def start_delivery(self, index: int, *, absorb: bool = True) -> Parts:
        parts = super().start_delivery(index, absorb=absorb)
        mover, reader = Inline(), Inline()
        parts.tiering._threads = mover  # type: ignore[assignment]
        parts.elsewhere._threads = dict.fromkeys((True, False), reader)  # type: ignore[arg-type]
        self.pools |= {100 + index: mover, 200 + index: reader}
        return parts


class World:
    def __init__(self, **settings: Any) -> None:
        self.settings = {**SETTINGS, **settings}
        self.disk = FakeDisk(directories=[*(ROOT / name for name in ("meta", "wal", "topics")), COLD])
        adopt(self.disk, DataDir(ROOT), COLD, "a1")
        self.disk.sync_filesystem(Path("/"))
        self.fs = FaultFs(self.disk)
        self.machine: Machine = TieredMachine(self.fs, **self.settings).open()
        self.machine.configure(TOPIC, durability="fsync")
        self.sent: dict[int, bytes] = {}  # acknowledged
        self.asked: set[bytes] = set()
        self.may_go: set[int] = set()  # their deletion was asked for
        self.gone: set[int] = set()  # and answered
        self.tagged: set[int] = set()
        for _ in range(5):
            self.fill(self.machine)
        self.fs.calls.clear()

    def fill(self, machine: Machine) -> None:
        """One segment more, and sealed."""
        for place in range(SEGMENT):
            payload = b"%d " % len(self.asked) * 9
            self.asked.add(payload)
            tagged = place < DEAD and len(self.asked) <= 3 * SEGMENT
            seq = machine.append(TOPIC, [payload], tag="dead" if tagged else None).first_seq
            self.sent[seq] = payload
            if tagged:
                self.tagged.add(seq)
        machine.checkpoint()

    def delete(self, seqs: set[int], **which: Any) -> None:
        self.may_go |= seqs
        self.machine.ask(TOPIC, Op.DELETE_RECORDS, **which)
        self.gone |= seqs

    def close(self) -> None:
        self.machine.close()


def parts_of(machine: Machine) -> tuple[Parts, Topic]:
    parts = machine.delivery_of(TOPIC)
    return parts, parts.catalog.by_name[TOPIC]


def moved(machine: Machine) -> None:
    """After so many snapshots everything is where it should be."""
    for _ in range(4):
        parts, _ = parts_of(machine)
        parts.tiering._retry_at = 0.0
        list(parts.snapshots._reclaimer.look())
        machine.snapshot()
        parts.tiering._retry_at = 0.0
        parts.tiering.tick()
        machine.settle()


def lies(machine: Machine) -> str:
    return "".join("hpcz"[info.lies] for info in parts_of(machine)[1].contents.segments if info.sealed)


def live(world: World) -> None:
    """Away, read, half dead and back and rewritten and away, recalled, away in plain, dropped."""
    machine = world.machine
    moved(machine)
    assert problems(world, machine) == []
    world.fill(machine)
    world.delete(world.tagged, match="dead")
    moved(machine)
    machine.configure(TOPIC, hot_retain_segments=0)
    moved(machine)
    assert problems(world, machine) == []
    machine.configure(TOPIC, hot_retain_segments=1, compress="none")
    moved(machine)
    world.delete({seq for seq in world.sent if seq < 17}, before_seq=17)
    world.fill(machine)
    moved(machine)


def problems(world: World, machine: Machine) -> list[str]:
    found = [f"damage: {line}" for line in machine.damage()]
    read = machine.read(TOPIC)
    seqs = [seen.seq for seen in read]
    if seqs != sorted(set(seqs)):
        found.append(f"not once each and in order: {seqs}")
    if lost := world.sent.keys() - world.may_go - set(seqs):
        found.append(f"lost: {sorted(lost)}")
    if back := world.gone & set(seqs):
        found.append(f"deleted and there: {sorted(back)}")
    changed = [seen.seq for seen in read if world.sent.get(seen.seq, seen.data) != seen.data]
    if changed or any(seen.data not in world.asked for seen in read):
        found.append(f"not what was sent: {changed}")
    state = machine.state(TOPIC)
    if state["count"] != len(seqs):
        found.append(f"counts are wrong: {state['count']}, read {len(seqs)}")
    return found


def unsettled(machine: Machine, disk: FakeDisk) -> list[str]:
    """After everything was done: where segments should be, and nowhere else."""
    parts, topic = parts_of(machine)
    found = [f"{info.first_seq} should be {target.name}" for info, target in parts.tiering.wanted(topic)]
    directory, cold = parts.place.topic_dir(topic.id), parts.tiering.cold
    assert cold is not None
    found += [f"stray: {path}" for path in strays(disk, directory, cold)]
    for info in topic.contents.segments:
        place = resolve(directory, info.first_seq)
        files = {
            Lies.HERE: place.file(DATA),
            Lies.PACKED: place.file(PACKED),
            Lies.COLD: place.cold_file(cold, DATA),
            Lies.COLD_PACKED: place.cold_file(cold, PACKED),
        }
        there = [where for where, path in files.items() if disk.exists(path)]
        if info.count and there != [info.lies]:
            found.append(f"{info.first_seq} lies {info.lies.name}, its files {[where.name for where in there]}")
    if trouble := parts.tiering.trouble():
        found.append(f"still in trouble: {trouble}")
    return found


def calls_of() -> int:
    world = World()
    try:
        live(world)
        assert lies(world.machine) == "ccccch"[-len(lies(world.machine)) :], lies(world.machine)
        found = problems(world, world.machine) + unsettled(world.machine, world.disk)
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
            live(world)
        disk = world.disk
        if kind == "failed":
            world.fs.fail_at = None
            machine = world.machine
            machine.advance(2_000)
        else:
            world.machine.abandon()
            disk = world.disk.image(call % len(STYLES)) if kind == "power" else world.disk
            machine = successor = TieredMachine(
                disk, previous=world.machine, power_lost=kind == "power", **SETTINGS
            ).open()
        found = problems(world, machine)
        for _ in range(2):
            moved(machine)
            found += problems(world, machine) + unsettled(machine, disk)
            world.fill(machine)
        return [f"{kind} {call}: {line}" for line in found]
    finally:
        if successor is not None:
            successor.close()
        world.close()


if __name__ == "__main__":
    sys.exit(sweep(__doc__, lambda: dict.fromkeys(KINDS, calls_of()), run_case))
