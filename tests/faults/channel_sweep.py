"""Every filesystem call of a change of a channel, once as the last one before the power goes or the processes die, once
as one that fails. Promise of the channel: it is found as it was before the change or as it is after it, whole; after
it, if the change was answered; and nothing is left over that nobody knows. All cases: `make channel-faults`.
"""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from tests.faults.machine import ROOT, Machine
from tests.support.fakedisk import STYLES, FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from topicd.channel import channel_topic, is_channel_log
from topicd.errors import ChannelNotFound, TopicdError
from topicd.ipc.protocol.messages import Op

LOBBY = "lobby"
PLACE = channel_topic(LOBBY)
Picture = dict[str, Any] | None


class ChannelScene(NamedTuple):
    name: str
    prepare: Callable[[Room], None]
    act: Callable[[Room], object]


class Room:
    """One channel of a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def ask(self, op: Op, **body: Any) -> dict[str, Any]:
        return self.machine.wire_of(PLACE).ask(op, {"channel": LOBBY, **body})

    def make(self, members: tuple[str, ...] = ("ann", "bob"), messages: int = 3, **config: Any) -> None:
        for user in members:
            self.ask(Op.CHANNEL_JOIN, user=user)
        self.ask(Op.CHANNEL_CONFIG, config={"persist": True, "max_persist_messages": 50, **config})
        for n in range(messages):
            self.ask(Op.CHANNEL_PUBLISH, user="ann", data=b"message %d" % n)

    def make_queue(self) -> None:
        self.make()
        self.ask(Op.CHANNEL_TYPE, type="fifo")
        for n in range(4):
            self.ask(Op.CHANNEL_PUSH, data=b"element %d" % n)
        self.ask(Op.CHANNEL_POP)

    def picture(self) -> Picture:
        """All of it that a client can see; what can only be popped is told by the log behind the cursor. None: it is
        not there, or it would not outlive a restart."""
        try:
            found = self.ask(Op.CHANNEL_STATE)
        except ChannelNotFound:
            return None
        if not found["config"]["persist"]:
            return None
        first, last = self.ask(Op.CHANNEL_SEQ).values()
        channel, state = self.machine.delivery_of(PLACE).channels.registry.get(LOBBY)
        kept = {name: found[name] for name in ("owner", "type", "config", "acl", "users")}
        messages = self.machine.delivery_of(PLACE).channels.publishing.history(channel, state, max(first, 1), 100)
        kept["broken"] = channel.queue is not None and channel.queue.broken
        return {**kept, "messages": [(m["seq"], m["from"], m["data"]) for m in messages] if last else []}

    def leftovers(self) -> list[str]:
        """Logs and directories that belong to no channel."""
        parts = self.machine.delivery_of(PLACE)
        named = {channel.state.topic for channel in parts.channels.registry.all() if channel.state is not None}
        logs = [name for name in parts.catalog.by_name if is_channel_log(name) and name not in named]
        there = self.machine.fs.listdir(ROOT / "channels")
        known = [channel.saved.hash for channel in parts.channels.registry.all() if channel.saved is not None]
        return logs + [name for name in there if name not in known]


SCENES = [
    ChannelScene("join", Room.make, lambda room: room.ask(Op.CHANNEL_JOIN, user="eve")),
    ChannelScene("leave", Room.make, lambda room: room.ask(Op.CHANNEL_LEAVE, user="ann")),
    ChannelScene(
        "last one leaves",
        lambda room: room.make(("ann",)),
        lambda room: room.ask(Op.CHANNEL_LEAVE, user="ann"),
    ),
    ChannelScene("list", Room.make, lambda room: room.ask(Op.CHANNEL_ACL, access="read", users=["bob"])),
    ChannelScene("config", Room.make, lambda room: room.ask(Op.CHANNEL_CONFIG, config={"max_clients": 7})),
    ChannelScene("persist off", Room.make, lambda room: room.ask(Op.CHANNEL_CONFIG, config={"persist": False})),
    ChannelScene(
        "persist on",
        lambda room: void(room.ask(Op.CHANNEL_JOIN, user="ann"), room.ask(Op.CHANNEL_JOIN, user="bob")),
        lambda room: room.ask(Op.CHANNEL_CONFIG, config={"persist": True}),
    ),
    ChannelScene("delete", Room.make, lambda room: room.ask(Op.CHANNEL_DELETE)),
    ChannelScene("publish", Room.make, lambda room: room.ask(Op.CHANNEL_PUBLISH, user="ann", data=b"one more")),
    ChannelScene("type", lambda room: room.make(messages=0), lambda room: room.ask(Op.CHANNEL_TYPE, type="fifo")),
    ChannelScene("push", Room.make_queue, lambda room: room.ask(Op.CHANNEL_PUSH, data=b"one more")),
    ChannelScene("pop", Room.make_queue, lambda room: room.ask(Op.CHANNEL_POP)),
    ChannelScene("clear", Room.make_queue, lambda room: room.ask(Op.CHANNEL_CLEAR)),
    ChannelScene("delete a queue", Room.make_queue, lambda room: room.ask(Op.CHANNEL_DELETE)),
    ChannelScene("the owner of a queue leaves", Room.make_queue, lambda room: room.ask(Op.CHANNEL_LEAVE, user="ann")),
    ChannelScene(
        "persist off where nobody is in it",
        lambda room: void(room.make(("ann",)), room.ask(Op.CHANNEL_LEAVE, user="ann")),
        lambda room: room.ask(Op.CHANNEL_CONFIG, config={"persist": False}),
    ),
    ChannelScene(
        "somebody comes to where nobody is in it",
        lambda room: void(room.make(("ann",)), room.ask(Op.CHANNEL_LEAVE, user="ann")),
        lambda room: room.ask(Op.CHANNEL_JOIN, user="eve"),
    ),
    ChannelScene(
        "fewer messages are kept",
        lambda room: room.make(messages=6),
        lambda room: room.ask(Op.CHANNEL_CONFIG, config={"max_persist_messages": 2}),
    ),
    ChannelScene(
        "another interval",
        Room.make,
        lambda room: room.ask(Op.CHANNEL_CONFIG, config={"message_flush_interval": 50}),
    ),
]


def void(*values: object) -> None:
    return None


class Case(NamedTuple):
    scene: ChannelScene
    kind: str  # crash, kill or fail
    call: int
    seed: int  # of the damage that the loss of power does

    def __str__(self) -> str:
        return f"{self.scene.name}: {self.kind} at call {self.call}, damage seed {self.seed}"


class Stage:
    def __init__(self, scene: ChannelScene) -> None:
        self.scene = scene
        self.disk = FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])
        self.faults = FaultFs(self.disk)
        self.machine = Machine(self.faults)
        self.room = Room(self.machine)
        self._after: list[Machine] = []

    def prepare(self) -> Stage:
        self.machine.open()
        self.scene.prepare(self.room)
        self.machine.settle()
        self.faults.calls.clear()
        return self

    def successor(self, disk: FakeDisk, *, power_lost: bool) -> Room:
        machine = Machine(disk, previous=self.machine, power_lost=power_lost)
        self._after.append(machine)
        return Room(machine.open())

    def close(self) -> None:
        for machine in [*self._after, self.machine]:
            machine.close()


def pictures(scene: ChannelScene) -> tuple[Picture, Picture, int]:
    """Before and after, on a healthy disk, and how many calls lie in between."""
    stage = Stage(scene).prepare()
    try:
        before = stage.room.picture()
        stage.faults.calls.clear()
        scene.act(stage.room)
        stage.machine.settle()
        return before, stage.room.picture(), stage.faults.count
    finally:
        stage.close()


def run_case(case: Case, before: Picture, after: Picture) -> list[str]:
    """Problems; empty when every promise held."""
    stage = Stage(case.scene).prepare()
    try:
        if case.kind == "fail":
            return _fail(stage, case, before, after)
        stage.faults.crash_after, stage.faults.crashed = case.call, case.call == 0
        answered = False
        with suppress(Crashed):
            case.scene.act(stage.room)
            answered = True
        with suppress(BaseException):
            stage.machine.abandon()
        stage.faults.crash_after, stage.faults.crashed = None, False
        if case.kind == "kill":
            room = stage.successor(stage.disk, power_lost=False)
        else:
            room = stage.successor(stage.disk.image(case.seed), power_lost=True)
        return _judge(room, before, after, answered)
    finally:
        stage.close()


def _fail(stage: Stage, case: Case, before: Picture, after: Picture) -> list[str]:
    """The call fails; the channel answers as before or as after, at once, and so it is found later."""
    stage.faults.fail_at, stage.faults.errno = case.call, errno.EIO
    try:
        case.scene.act(stage.room)
        answered = True
    except TopicdError:
        answered = False
    stage.faults.fail_at = None
    stage.machine.advance(2_000)
    live = stage.room.picture()
    found = [] if live == (after if answered else before) else [f"answered={answered}, and it is {live}"]
    with suppress(BaseException):
        stage.machine.stop()
    room = stage.successor(stage.disk.image(case.seed), power_lost=True)
    return found + _judge(room, before, after, answered)


def _judge(room: Room, before: Picture, after: Picture, answered: bool) -> list[str]:
    room.machine.settle()
    found, problems = room.picture(), []
    if found not in ((after,) if answered else (before, after)):
        problems.append(f"answered={answered}, found {found}, before {before}, after {after}")
    if left := room.leftovers():
        problems.append(f"left over: {left}")
    return problems


def cases(scene: ChannelScene, calls: int) -> Iterator[Case]:
    for call in range(calls + 1):
        for seed in range(len(STYLES)):
            yield Case(scene, "crash", call, seed)
        yield Case(scene, "kill", call, 0)
        if call:
            yield Case(scene, "fail", call, call % len(STYLES))


def run_scene(scene: ChannelScene, most: int | None = None) -> dict[str, list[str]]:
    """What broke; of so many cases, all if none is said."""
    before, after, calls = pictures(scene)
    every = list(cases(scene, calls))
    chosen = every if most is None or most >= len(every) else Random(scene.name).sample(every, most)
    return {str(case): found for case in chosen if (found := run_case(case, before, after))}


def main() -> int:
    logging.disable()
    broken: dict[str, list[str]] = {}
    for scene in SCENES:
        if sys.argv[1:] and scene.name not in sys.argv[1:]:
            continue
        found = run_scene(scene)
        ran = len(list(cases(scene, pictures(scene)[2])))
        print(f"{scene.name}: {len(found)} broken of {ran}", flush=True)
        broken.update(found)
    for name, problems in broken.items():
        print(name, *problems, sep="\n  ")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
