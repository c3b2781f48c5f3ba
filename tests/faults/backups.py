"""Backups of a machine that serves, on a disk that forgets and fails. Promise: a case follows from its numbers.

    killed       whoever makes the backup dies after call n, and the machine goes on
    power        the power goes after call n; for each damage seed the disk is looked at
    failed       call n fails, with EIO or ENOSPC

What must hold each time: nothing looks like a backup that is not whole; a whole one restores to exactly what was
acknowledged at its cut; the data directory is as good as ever; another try succeeds.

    python -m tests.faults.backups [--every N] [--share I/N] [--kinds A,B] [--first]
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.faults.every_call import sweep
from tests.faults.machine import ROOT, SEED, Machine, Wire
from tests.faults.story import Story
from tests.support.fakedisk import STYLES, FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from topicd.backup.create import Creation
from topicd.backup.manifest import Manifest
from topicd.backup.restore import finish, restore
from topicd.backup.shelf import Shelf, remove_tree
from topicd.backup.verify import problems
from topicd.clock import ManualClock
from topicd.disk import datadir, envelope, identity
from topicd.disk.fs import Fs
from topicd.errors import TopicdError
from topicd.ipc.protocol.messages import Op
from topicd.paths import DataDir, Instance

SHELF = Path("/shelf")
TARGET = Path("/restored/data")
SHARDS = {"wal_shards": 2, "delivery_shards": 2}


class Moment:
    """What a story had told when the logs were cut."""

    def __init__(self, story: Story) -> None:
        self._oracle = story.oracle.copy()
        self._cursors = dict(story.cursors)

    def on(self, story: Story, machine: Machine) -> Story:
        told = story.on(machine, self._oracle.copy())
        told.cursors = self._cursors
        return told


class NoLinks(FaultFs):
    """The shelf is on another filesystem."""

    def link(self, source: Path, target: Path) -> None:
        if SHELF not in source.parents:
            raise OSError(errno.EXDEV, "no link", str(target))
        super().link(source, target)


class Held:
    """A machine as the source of a backup; between the steps its clients go on."""

    served = True

    def __init__(self, story: Story, during: Callable[[Story, str], None] = lambda story, step: None) -> None:
        self.story = story
        self.machine = story.machine
        self.data = self.machine.data
        self.at_cut: Moment | None = None
        self.forgets_to_release = False
        self._during = during
        self._wires = [Wire(self.machine, parts) for parts in self.machine.deliveries.values()]

    def _ask(self, op: Op, **body: Any) -> list[dict[str, Any]]:
        return [wire.ask(op, {"hold": "me", **body}) for wire in self._wires]

    def hold(self) -> None:
        self._ask(Op.BACKUP_HOLD)
        self._during(self.story, "held")

    def keep(self) -> None: ...

    def still(self) -> None:
        self._ask(Op.BACKUP_STILL)
        self._during(self.story, "still")

    def cut(self) -> dict[int, int]:
        self._ask(Op.BACKUP_FREEZE)
        self.at_cut = Moment(self.story)
        answers = self._ask(Op.BACKUP_CUT)
        self._during(self.story, "cut")
        return dict(answers[0]["wal"])

    def release(self) -> None:
        assert all(answer["held"] for answer in self._ask(Op.BACKUP_RELEASE))

    def close(self) -> None:
        if not self.forgets_to_release:
            self._ask(Op.BACKUP_RELEASE)
        for wire in self._wires:
            wire.close()


def busy(story: Story, step: str) -> None:
    """Whatever a client may do while a backup is made."""
    story.append("f", 3)
    story.append("m", 2)
    if step == "held":
        story.append("f", 9, tag="old")
        story.delete("f", tag="old")
        story.checkpoint()  # seals, marks; nothing is removed
        story.snapshot()
        story.delete("d", before_seq=10)
        story.consume("f", 4)
    if step == "cut":
        story.checkpoint()


class World:
    """A machine with a history, ready to be backed up."""

    def __init__(self) -> None:
        self.disk = FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])
        self.disk.mkdir(SHELF)
        self.disk.mkdir(TARGET.parent)
        self.disk.sync_filesystem(Path("/"))
        self.machine = Machine(self.disk, **SHARDS).open()
        self.story = Story(self.machine)
        self.clock = ManualClock(1_700_000_000_000)
        data = self.machine.data
        datadir._write(self.disk, data, datadir.Format(datadir.FORMAT_VERSION, 0, SEED))
        live = Instance(self.machine.instance, self.machine.wal_shards, self.machine.delivery_shards)
        record = identity.Record(run=self.machine.run, next_id=self.machine.next_id, live=live)
        envelope.save(self.disk, data.identity, identity.MAGIC, identity.VERSION, identity.pack_record(record))
        for durability in ("fsync", "disk", "memory"):
            self.story.topic(durability[0], durability)
        self.story.topic("queue", "fsync", type="queue")
        for _ in range(3):
            self.story.append("f", 9)
            self.story.append("d", 9)
            self.story.append("m", 2)
            self.story.checkpoint()
        self.story.put("queue", "one")
        self.story.put("queue", "two", delay_ms=60_000)
        self.story.finish("queue", "one")
        self.story.append("f", 2, producer=7)

    def create(self, fs: Fs, source: Held) -> Manifest:
        self.clock.advance(1_000)
        return Creation(fs, Shelf(fs, SHELF), source, self.clock, lambda amount: None).run()

    def close(self) -> None:
        self.machine.close()


def whole(disk: FakeDisk) -> Iterator[tuple[str, Manifest]]:
    for one in Shelf(disk, SHELF).list():
        if one.manifest is not None:
            yield one.id, one.manifest


def check_shelf(disk: FakeDisk) -> list[str]:
    """Everything that looks like a backup is one."""
    return [line for name, made in whole(disk) for line in problems(disk, SHELF / name, made, lambda amount: None)]


def check_restored(world: World, disk: FakeDisk, name: str, made: Manifest, at_cut: Moment) -> list[str]:
    """A machine on the restored files has what was acknowledged at the cut, and takes more."""
    partial = restore(disk, SHELF / name, made, TARGET, lambda amount: None)
    finish(disk, partial, TARGET)
    if identity.read_record(disk, DataDir(TARGET)).live is not None:
        return ["it would drain the rings of the daemon that it was taken from"]
    try:
        with Machine(disk, root=TARGET, run=made.run + 1, next_id=1 << 20, **SHARDS).open() as machine:
            story = at_cut.on(world.story, machine)
            return story.problems(power_lost=False) + story.still_works() + story.problems(power_lost=False)
    finally:
        remove_tree(disk, TARGET)


def calls_of(make: type[FaultFs] = FaultFs) -> int:
    world = World()
    try:
        fs = make(world.disk)
        source = Held(world.story, busy)
        made = world.create(fs, source)
        assert source.at_cut is not None
        found = check_shelf(world.disk) + check_restored(world, world.disk, made.id, made, source.at_cut)
        assert not found, "\n".join(found)
        return fs.count
    finally:
        world.close()


def run_case(kind: str, call: int) -> list[str]:
    world = World()
    try:
        earlier = world.create(world.disk, Held(world.story))
        source = Held(world.story, busy)
        source.forgets_to_release = kind != "failed"
        make = FaultFs if call % 3 else NoLinks
        if kind == "failed":
            fs = make(world.disk, fail_at=call, errno=(errno.EIO, errno.ENOSPC)[call % 2])
        else:
            fs = make(world.disk, crash_after=call)
        made = None
        with suppress(Crashed, OSError, TopicdError):
            made = world.create(fs, source)
        return [f"{kind} {call}: {line}" for line in _after(world, kind, source, earlier, made)]
    finally:
        world.close()


def _after(world: World, kind: str, source: Held, earlier: Manifest, made: Manifest | None) -> list[str]:
    disks = [world.disk] if kind != "power" else [world.disk.image(seed) for seed in range(len(STYLES))]
    found = []
    for disk in disks:
        found += check_shelf(disk)
        names = [name for name, _ in whole(disk)]
        if earlier.id not in names or (made is not None and made.id not in names):
            found.append(f"a backup that was finished is gone: {names}")
        for name, manifest in whole(disk):
            if name != earlier.id and source.at_cut is not None and disk is disks[-1]:
                found += check_restored(world, disk, name, manifest, source.at_cut)
    if kind == "power":
        return found
    # Whoever made the backup is gone: when its time is over everything goes on, and the next one succeeds.
    for parts in world.machine.deliveries.values():
        if parts.backlog.held:
            parts.backup_hold._lapse()
    found += world.story.still_works() + world.story.problems(power_lost=False)
    again = Held(world.story)
    manifest = world.create(world.disk, again)
    assert again.at_cut is not None
    found += check_restored(world, world.disk, manifest.id, manifest, again.at_cut)
    left = [one.id for one in Shelf(world.disk, SHELF).list() if not one.whole]
    return found + [f"left behind: {name}" for name in left]


def restore_calls() -> int:
    return _restored("none", 0)[0]


def run_restore_case(call: int) -> list[str]:
    return _restored("power", call)[1]


def _restored(kind: str, call: int) -> tuple[int, list[str]]:
    """A restore that is interrupted leaves nothing under the name of the target; the next one succeeds."""
    world = World()
    try:
        source = Held(world.story, busy)
        made = world.create(world.disk, source)
        assert source.at_cut is not None
        fs = FaultFs(world.disk, crash_after=call if kind == "power" else None)
        with suppress(Crashed):
            finish(fs, restore(fs, SHELF / made.id, made, TARGET, lambda amount: None), TARGET)
        found = []
        for seed in range(len(STYLES)):
            disk = world.disk.image(seed)
            found += check_shelf(disk)
            if disk.exists(TARGET) and not disk.exists(DataDir(TARGET).format):
                found.append(f"restore {call}, seed {seed}: {TARGET} is not whole")
            if disk.exists(TARGET):
                with Machine(disk, root=TARGET, run=made.run + 1, next_id=1 << 20, **SHARDS).open() as machine:
                    found += source.at_cut.on(world.story, machine).problems(power_lost=False)
                continue
            if seed == call % len(STYLES):
                found += check_restored(world, disk, made.id, made, source.at_cut)
                assert not disk.exists(DataDir(TARGET).restoring.root)
        return fs.count, found
    finally:
        world.close()


KINDS = ("killed", "power", "failed")
RESTORE = "restore"


def all_calls() -> dict[str, int]:
    total = max(calls_of(), calls_of(NoLinks)) + 20  # an earlier backup is looked at, too
    return {**dict.fromkeys(KINDS, total), RESTORE: restore_calls()}


def run_any(kind: str, call: int) -> list[str]:
    return run_restore_case(call) if kind == RESTORE else run_case(kind, call)


if __name__ == "__main__":
    sys.exit(sweep(__doc__, all_calls, run_any))
