"""One shard dies at every step of a scene while the others live on: its successor finds rings, counters, state page
and files as they are. Steps are what a shard does that others can see: stores into shared memory, bells, answers and
calls to the filesystem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.machine import Killed, Unanswered
from tests.faults.story import Scene
from tests.faults.sweep import Stage
from topicd.ipc.doorbell import Doorbell
from topicd.ipc.ring import RingConsumer, RingProducer
from topicd.ipc.slots import Slots
from topicd.shards.delivery.sessions.outbox import Outbox

WAL, DELIVERY = "wal", "dlv"
CONSUMER_STEPS = ((RingConsumer, "set_written"), (RingConsumer, "set_synced"), (RingConsumer, "fail"), (Slots, "write"))
PRODUCER_STEPS = (
    (RingProducer, "try_write"),
    (RingProducer, "want_sync"),
    (RingProducer, "wish_sync"),
    (RingProducer, "want_write"),
    (RingProducer, "set_absorbed"),
    (Outbox, "flush"),
)
KILLED_SCENES = (
    "append",
    "rotation of unsynced files",
    "slow delivery",
    "large batches",
    "checkpoint and seal",
    "direct writes",
    "snapshot",
    "jobs",
)


@dataclass(frozen=True)
class Kill:
    scene: Scene
    victim: str  # WAL or DELIVERY
    step: int
    done: bool  # dies after the step, not before it

    def __str__(self) -> str:
        when = "after" if self.done else "before"
        return f"{self.scene.name}: {self.victim}-00 killed {when} step {self.step}"


class Steps:
    """Counts the steps of one kind of shard, and ends its life at one of them."""

    def __init__(self, victim: str) -> None:
        self._victim = victim
        self.count = 0
        self.die_at = 0
        self.done = False
        self.died = False

    def around(self, step: Callable[[], Any]) -> Any:
        if self.died:
            raise Killed("it is dead already")
        self.count += 1
        due = self.count == self.die_at
        if due and not self.done:
            self._die(f"before step {self.count}")
        result = step()
        if due:
            self._die(f"after step {self.count}")
        return result

    def _die(self, when: str) -> None:
        self.died = True
        raise Killed(when)

    @contextmanager
    def installed(self, stage: Stage) -> Iterator[None]:
        """Until the end of the block every such step goes through around()."""
        undo: list[tuple[type, str, Any]] = []
        for owner, name in CONSUMER_STEPS if self._victim == WAL else PRODUCER_STEPS:
            undo.append((owner, name, owner.__dict__[name]))
            setattr(owner, name, self._wrapped(owner.__dict__[name], lambda: True))
        undo.append((Doorbell, "ring", Doorbell.__dict__["ring"]))
        machine = stage.machine
        ours = (lambda: machine.wal_turning) if self._victim == WAL else (lambda: not machine.wal_turning)
        Doorbell.ring = self._wrapped(Doorbell.ring, ours)  # type: ignore[method-assign]
        mutate = stage.faults.mutate
        stage.faults.mutate = self._on_disk(mutate)  # type: ignore[method-assign]
        try:
            yield
        finally:
            stage.faults.mutate = mutate  # type: ignore[method-assign]
            for owner, name, original in undo:
                setattr(owner, name, original)

    def _wrapped(self, original: Callable[..., Any], ours: Callable[[], bool]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if ours():
                return self.around(lambda: original(*args, **kwargs))
            return original(*args, **kwargs)

        return wrapped

    def _on_disk(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def mutate(name: str, path: Path, *args: Any, **kwargs: Any) -> Any:
            if path.is_relative_to("/data/wal") == (self._victim == WAL):
                return self.around(lambda: original(name, path, *args, **kwargs))
            return original(name, path, *args, **kwargs)

        return mutate


def steps_of(scene: Scene, victim: str) -> int:
    steps = Steps(victim)
    _play(scene, victim, steps)
    return steps.count


def run_kill(kill: Kill) -> list[str]:
    steps = Steps(kill.victim)
    steps.die_at, steps.done = kill.step, kill.done
    try:
        return _play(kill.scene, kill.victim, steps)
    except (AssertionError, Unanswered) as exc:
        return [f"{type(exc).__name__}: {exc}"]


def _play(scene: Scene, victim: str, steps: Steps) -> list[str]:
    stage = Stage(scene).prepare()
    machine, story = stage.machine, stage.story

    def pulse() -> None:
        if not steps.died:
            return
        steps.died, steps.die_at = False, 0
        if victim == WAL:
            # The others look at the counters before its successor is there; a bell may ring for no reason.
            machine.deliveries[0].turn.doorbell()
            machine.replace_wal(0)
        else:
            machine.replace_delivery(0)

    machine.pulse = pulse
    try:
        with steps.installed(stage):
            scene.act(story)
            machine.settle()
        problems = story.problems(power_lost=False) + story.retry() + story.still_works()
        problems += story.problems(power_lost=False)
        machine.abandon()
        return problems + story.on(stage.after_kill()).problems(power_lost=False)
    finally:
        stage.close()


def kill_cases(scenes: Sequence[Scene]) -> Iterator[Kill]:
    for scene in scenes:
        if scene.name not in KILLED_SCENES:
            continue
        for victim in (WAL, DELIVERY):
            for step in range(1, steps_of(scene, victim) + 1):
                for done in (False, True):
                    yield Kill(scene, victim, step, done)
