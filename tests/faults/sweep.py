"""Every mutating call of a scene, once as the last one before the power goes, once as one that fails. Promise: a case
is a pure function of its numbers, so a violation is repeated by its name.

    crash        the disk dies after call n; for several damage seeds the machine is started on what is left
    kill         the same, but only the processes die: disk and rings stay
    restart      the scene is over, all processes are killed, and it is the next start that dies at call n; then
                 power is lost (damage seed) or, without one, only the processes die a second time
    once, always call n fails with EIO or ENOSPC, or it and all after it until the disk is well again
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from tests.faults.machine import ROOT, Machine, Unanswered
from tests.faults.story import SCENES, Scene, Story
from tests.support.fakedisk import STYLES, FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from tests.support.monitorfs import MonitorFs

HEAL_MS = 1_000
OTHER_COUNTS = {"wal_shards": 2, "delivery_shards": 2}  # of a start that must adopt what others left
SYNC_MS = 60  # longer than the period of the background sync


@dataclass(frozen=True)
class Case:
    scene: Scene
    kind: str  # crash, kill, restart, once, always
    call: int
    seed: int = 0  # of the damage; -1: none, processes die
    errno: int = errno.EIO
    short: bool = False

    def __str__(self) -> str:
        if self.kind == "kill":
            return f"{self.scene.name}: killed after call {self.call}"
        if self.kind == "restart":
            what = "killed" if self.seed < 0 else f"power lost, damage seed {self.seed},"
            return f"{self.scene.name}: {what} after call {self.call} of the next start"
        if self.kind == "crash":
            return f"{self.scene.name}: power lost after call {self.call}, damage seed {self.seed}"
        what = errno.errorcode[self.errno] + (" after half the bytes" if self.short else "")
        how = "fails" if self.kind == "once" else "and all later ones fail"
        return f"{self.scene.name}: call {self.call} {how} with {what}, damage seed {self.seed}"


class Stage:
    """A scene on a disk that does as it is told."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.disk = FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])
        self.faults = FaultFs(self.disk)
        self.machine = Machine(self.faults, **scene.machine, **scene.settings)
        self.story = Story(self.machine)
        self.successors: list[Machine] = []

    def prepare(self) -> Stage:
        self.machine.open()
        self.scene.prepare(self.story)
        self.machine.settle()
        self.faults.calls.clear()
        return self

    def after_power_loss(self, seed: int) -> tuple[FakeDisk, Machine]:
        disk = self.disk.image(seed)
        return disk, self.successor(disk, power_lost=True)

    def after_kill(self) -> Machine:
        return self.successor(self.disk, power_lost=False)

    def successor(self, disk: FakeDisk, *, power_lost: bool, previous: Machine | None = None) -> Machine:
        before = previous or self.machine
        machine = Machine(disk, previous=before, power_lost=power_lost, **self.scene.machine, **self.scene.settings)
        self.successors.append(machine)
        return machine.open()

    def close(self) -> None:
        for machine in [*self.successors, self.machine]:
            machine.close()


def calls_of(scene: Scene) -> int:
    """How many mutating calls the scene makes on a healthy disk."""
    stage = Stage(scene).prepare()
    try:
        scene.act(stage.story)
        stage.machine.settle()
        problems = stage.story.problems(power_lost=False) + stage.story.refused
        assert not problems, "\n".join(problems)
        return stage.faults.count
    finally:
        stage.close()


def run_case(case: Case) -> list[str]:
    """Problems; empty when every promise held."""
    stage = Stage(case.scene).prepare()
    try:
        try:
            if case.kind in ("crash", "kill"):
                return _crash(stage, case)
            if case.kind == "restart":
                return _restart(stage, case)
            return _fail(stage, case)
        except (AssertionError, Unanswered) as exc:
            return [f"{type(exc).__name__}: {exc}"]
    finally:
        stage.close()


def _crash(stage: Stage, case: Case) -> list[str]:
    stage.faults.crash_after = case.call
    try:
        stage.faults.crashed = case.call == 0
        stage.scene.act(stage.story)
        stage.machine.settle()
    except Crashed:
        stage.story.hear()
    stage.machine.abandon()
    if case.kind == "kill":
        return _kill(stage, case)
    disk, machine = stage.after_power_loss(case.seed)
    story = stage.story.on(machine)
    problems = _compare(story, power_lost=True)
    return problems or _again(stage, disk, machine, case.seed)


def _kill(stage: Stage, case: Case) -> list[str]:
    """What the next start has shown or answered is durable as its class says: its writer died before the sync."""
    machine = stage.after_kill()
    story = stage.story.on(machine)
    problems = story.problems(power_lost=False) + story.retry()
    machine.abandon()
    last = stage.successor(stage.disk.image(case.call), power_lost=True, previous=machine)
    return problems + [f"then power lost: {line}" for line in _compare(story.on(last), power_lost=True)]


def _restart(stage: Stage, case: Case) -> list[str]:
    _leave_for_restart(stage)
    stage.faults.calls.clear()
    stage.faults.crash_after = case.call
    stage.faults.crashed = case.call == 0
    second = Machine(stage.faults, previous=stage.machine, **OTHER_COUNTS, **stage.scene.settings)
    stage.successors.append(second)
    with suppress(Crashed):
        second.open()
    second.abandon()
    undrained = None if second.drained else stage.machine
    if case.seed < 0:
        third = Machine(stage.disk, previous=second, undrained=undrained, **stage.scene.machine, **stage.scene.settings)
        stage.successors.append(third)
        return _compare(stage.story.on(third.open()), power_lost=False)
    third = stage.successor(stage.disk.image(case.seed), power_lost=True, previous=second)
    return _compare(stage.story.on(third), power_lost=True)


def _leave_for_restart(stage: Stage) -> None:
    """The scene as it is when everything is killed, with bytes in the rings that no file has."""
    stage.scene.act(stage.story)
    stage.machine.settle()
    for topic, durability in stage.story.classes.items():
        if durability == "memory":
            stage.story.append_to_ring(topic, 2)
    stage.machine.abandon()


def restart_calls_of(scene: Scene) -> int:
    stage = Stage(scene).prepare()
    try:
        _leave_for_restart(stage)
        stage.faults.calls.clear()
        second = Machine(stage.faults, previous=stage.machine, **OTHER_COUNTS, **scene.settings)
        stage.successors.append(second)
        second.open()
        return stage.faults.count
    finally:
        stage.close()


def _again(stage: Stage, disk: FakeDisk, machine: Machine, seed: int) -> list[str]:
    """Whatever a machine shows that has been left alone for a moment, the next one shows as well."""
    machine.advance(SYNC_MS)  # what nobody waits for may lie in a ring until now
    machine.advance(SYNC_MS)  # since it was written
    picture = machine.picture()
    machine.abandon()
    if seed % 2:
        second = stage.successor(disk, power_lost=False, previous=machine)
    else:
        second = stage.successor(disk.image(seed + 1), power_lost=True, previous=machine)
        for name, topic in picture.items():
            if topic["config"]["durability"] == "disk":
                # Another loss of power skips another block of reserved seqs.
                for key in ("head_seq", "next_seq"):
                    topic[key] = second.state(name)[key]
    difference = unlike(picture, second.picture())
    return [f"a second recovery differs: {difference}"] if difference else []


def _fail(stage: Stage, case: Case) -> list[str]:
    faults = stage.faults
    faults.fail_at, faults.errno, faults.always, faults.short = case.call, case.errno, case.kind == "always", case.short
    stage.scene.act(stage.story)
    stage.machine.settle()
    problems = [f"while it fails: {line}" for line in stage.story.problems(power_lost=False)]
    if case.kind == "once":
        problems += _killed_while_refused(stage, case)
    faults.fail_at = None
    stage.machine.advance(HEAL_MS)
    stage.machine.tick()
    problems += [f"healed: {line}" for line in stage.story.retry() + stage.story.still_works()]
    stage.machine.checkpoint()
    stage.machine.snapshot()
    problems += [f"healed: {line}" for line in stage.story.problems(power_lost=False)]
    stage.machine.abandon()
    _, machine = stage.after_power_loss(case.seed)
    problems += [f"after power loss: {line}" for line in stage.story.on(machine).problems(power_lost=True)]
    return problems + [f"killed: {line}" for line in stage.story.on(stage.after_kill()).problems(power_lost=False)]


def _killed_while_refused(stage: Stage, case: Case) -> list[str]:
    """What was refused is not there, also if everything ends right after."""
    disk = stage.disk.image(case.seed)
    machine = stage.successor(disk, power_lost=True)
    found = [f"power lost after it failed: {line}" for line in stage.story.on(machine).problems(power_lost=True)]
    machine.abandon()
    return found


def _compare(story: Story, *, power_lost: bool) -> list[str]:
    problems = story.problems(power_lost=power_lost)
    if power_lost:
        story.accept_lost_memory()
    return problems + story.retry() + story.still_works() + story.problems(power_lost=power_lost)


def unlike(before: dict[str, object], after: dict[str, object]) -> str:
    """The first difference of two pictures."""
    for name in sorted({*before, *after}):
        a, b = before.get(name), after.get(name)
        if a == b:
            continue
        if not isinstance(a, dict) or not isinstance(b, dict):
            return f"topic {name}: {'gone' if b is None else 'new'}"
        return "; ".join(f"{name}.{key}: {a[key]!r:.200} != {b[key]!r:.200}" for key in a if a[key] != b[key])
    return ""


def in_order(scene: Scene) -> list[str]:
    """The scene under MonitorFs: durability calls in their order."""
    stage = Stage(scene)
    monitor = MonitorFs(stage.disk)
    stage.machine.close()
    stage.machine = Machine(monitor, **scene.machine, **scene.settings)
    stage.story = Story(stage.machine)
    try:
        stage.machine.open()
        scene.prepare(stage.story)
        scene.act(stage.story)
        stage.machine.settle()
        return monitor.violations
    finally:
        stage.close()


def cases(scenes: Sequence[Scene] = SCENES, *, seeds: Sequence[int] = range(len(STYLES))) -> Iterator[Case]:
    """All of them, scene by scene."""
    for scene in scenes:
        count = calls_of(scene)
        for call in range(count + 1):
            yield Case(scene, "kill", call)
            for seed in seeds:
                yield Case(scene, "crash", call, seed)
        for call in range(restart_calls_of(scene) + 1):
            for seed in (-1, seeds[call % len(seeds)]):
                yield Case(scene, "restart", call, seed)
        for call in range(1, count + 1):
            for kind in ("once", "always"):
                for code in (errno.EIO, errno.ENOSPC):
                    yield Case(scene, kind, call, call % len(STYLES), code)
            yield Case(scene, "once", call, call % len(STYLES), errno.ENOSPC, short=True)


def sample(scene: Scene, chance: Random, count: int) -> list[Case]:
    """Some cases of one scene, every kind among them."""
    found = list(cases([scene], seeds=[chance.randrange(1_000) for _ in range(2)]))
    return chance.sample(found, min(count, len(found)))
