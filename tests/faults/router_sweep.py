"""Every filesystem call while a router copies, once as the last one before the power goes or the processes die, once as
one that fails. Promise: a destination is what its source says, once and in order; what a reader has seen keeps its seq,
whether the copies are logged, are not, or are just becoming it; nothing of it looks like damage. All cases:
`make router-faults`.
"""

from __future__ import annotations

import argparse
import errno
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

from tests.faults.machine import ROOT, ConnectionGone, Machine, Unanswered
from tests.support.fakedisk import STYLES, FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from tests.support.served import run_routers
from topicd.errors import TopicdError
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.routing.forwarder import Forwarder

SETTINGS: dict[str, Any] = {"segment_max_records": 8}
DEATHS = (Crashed, ConnectionGone, Unanswered, TopicdError, StopIteration)
DIRECT = b"direct"


class Play:
    """A source `a`, a destination `b`, a router between them, and what a reader of `b` has seen."""

    def __init__(self, scene: RouterScene) -> None:
        self.scene = scene
        self.disk = FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])
        self.faults = FaultFs(self.disk)
        self.machine = Machine(self.faults, **SETTINGS).open()
        self.acked: list[bytes] = []
        self.sent: list[bytes] = []
        self.seen: dict[int, bytes] = {}
        self.removed: set[bytes] = set()  # from b, by a delete
        self.others: list[Machine] = []

    def prepare(self, **options: Any) -> Play:
        """options: of the router."""
        run_routers(self.machine.deliveries[0])
        self.machine.configure("a", durability=self.scene.durability)
        self.machine.configure("b", durability=self.scene.durability, **self.scene.dest)
        self.write(1)
        self.sent, self.acked = [], []  # what was there before is not copied
        self.ask(Op.ROUTER_CREATE, router="r", source="a", dest="b", **options)
        self.write(3)
        self.machine.checkpoint()
        self.machine.snapshot()
        self.write(2)
        self.faults.calls.clear()
        return self

    # ---- what scenes do ----

    def ask(self, op: Op, **body: Any) -> dict[str, Any]:
        return self.machine.wire_of("a").ask(op, body)

    def write(self, count: int, tag: str | None = None) -> None:
        """To the source; and somebody looks at the destination."""
        datas = [b"%d" % (len(self.sent) + n) for n in range(count)]
        self.sent += datas
        self.machine.append("a", datas, tag=tag)
        self.acked += datas
        self.machine.settle()
        self.look()

    def look(self) -> None:
        if "b" in self.machine.delivery_of("b").catalog.by_name:
            for record in self.machine.read("b"):
                self.seen.setdefault(record.seq, record.data)

    def write_directly(self) -> None:
        self.machine.append("b", [DIRECT])
        self.look()

    # ---- afterwards ----

    def successor(self, disk: FakeDisk, *, power_lost: bool, previous: Machine | None = None) -> Machine:
        machine = Machine(disk, previous=previous or self.machine, power_lost=power_lost, **SETTINGS).open()
        self.others.append(machine)
        run_routers(machine.deliveries[0])
        machine.settle()
        return machine

    def close(self) -> None:
        for machine in [*self.others, self.machine]:
            machine.close()


class RouterScene(NamedTuple):
    name: str
    act: Callable[[Play], object]
    durability: str = "fsync"
    dest: dict[str, Any] = {}
    kind: str = "derived"  # of the destination in the end


def _copy(play: Play) -> None:
    for n in range(3):
        play.write(4)
        play.machine.checkpoint()
        if n == 1:
            play.write(1)
            play.machine.snapshot()  # with a copy that no segment has
        play.machine.tick()
    play.write(2)


def _write_directly(play: Play) -> None:
    play.write(2)
    play.write_directly()
    play.write(2)
    play.machine.checkpoint()
    play.write_directly()


def _delete_at_source(play: Play) -> None:
    play.write(2, tag="x")
    play.write(2)
    play.ask(Op.DELETE_RECORDS, topic="a", match=["tag", "Eq", "x"])
    play.write(2)


def _delete_at_dest(play: Play) -> None:
    play.write(2, tag="x")
    play.write(1)
    gone = set(play.sent[-3:-1])
    play.removed |= gone  # from the moment on that it is asked for
    play.ask(Op.DELETE_RECORDS, topic="b", match=["tag", "Eq", "x"])
    for seq in [seq for seq, data in play.seen.items() if data in gone]:
        del play.seen[seq]
    play.write(2)


def _second_router(play: Play) -> None:
    play.write(2)
    play.ask(Op.ROUTER_CREATE, router="r2", source="a", dest="b", filter=["tag", "Eq", "nobody"])
    play.write(2)


def _change_router(play: Play) -> None:
    play.write(2)
    play.ask(Op.ROUTER_CREATE, router="r", source="a", dest="b", set_node="n")
    play.write(2)


def _limit_source(play: Play) -> None:
    play.write(2)
    play.ask(Op.CONFIGURE, topic="a", config={"cap_records": 3})
    play.write(2)


def _delete_router(play: Play) -> None:
    play.write(2)
    play.ask(Op.ROUTER_DELETE, router="r")


def _delete_source(play: Play) -> None:
    play.write(2)
    play.ask(Op.DELETE_TOPIC, topic="a")


SCENES = [
    RouterScene("copy", _copy),
    RouterScene("copy, class disk", _copy, durability="disk"),
    RouterScene("copy to a capped topic", _copy, dest={"cap_records": 4}),
    RouterScene("write directly", _write_directly, kind="logged"),
    RouterScene("write directly, class disk", _write_directly, durability="disk", kind="logged"),
    RouterScene("delete at the source", _delete_at_source, kind="logged"),
    RouterScene("delete at the destination", _delete_at_dest, kind="logged"),
    RouterScene("second router", _second_router, kind="logged"),
    RouterScene("change the router", _change_router, kind="logged"),
    RouterScene("limit the source", _limit_source, kind="logged"),
    RouterScene("delete the router", _delete_router, kind="gone"),
    RouterScene("delete the source", _delete_source, kind="gone"),
]


def kind_of(machine: Machine) -> str:
    forwarders: list[Forwarder] = list(machine.deliveries[0].routing.shop.forwarders.values())
    return str(forwarders[0].progress(0)["kind"]) if forwarders else "gone"


# ---- what must hold ----


def problems(play: Play, machine: Machine, *, power_lost: bool) -> list[str]:
    """Of a machine at rest."""
    parts = machine.deliveries[0]
    for forwarder in parts.routing.shop.forwarders.values():
        forwarder._go_on()
    machine.settle()
    found = [f"damage: {line}" for line in machine.damage()]
    records, state = machine.read("b"), machine.state("b")
    by_seq = {record.seq: record.data for record in records}
    may_lose = power_lost and play.scene.durability == "disk"
    for seq, data in play.seen.items():
        lost = seq not in by_seq and (may_lose or data in play.removed or seq < state["earliest_seq"])
        if by_seq.get(seq) != data and not lost:
            found.append(f"seq {seq} was {data!r} and is {by_seq.get(seq)!r}")
    copies = [record.data for record in records if record.data != DIRECT]
    if copies != sorted(set(copies), key=play.sent.index):
        found.append(f"not once and in order: {copies}")
    kept = [data for data in play.acked if data not in play.removed]
    if "cap_records" in play.scene.dest and copies:
        # What was sent and not answered may have taken their place.
        behind = max(play.sent.index(copies[-1]) + 1, len(kept))
        kept = play.sent[max(0, behind - int(play.scene.dest["cap_records"])) : behind]
    missing = [data for data in kept if data not in copies]
    if missing and not may_lose:
        found.append(f"missing: {missing} of {copies}")
    if state["count"] != len(records):
        found.append(f"count is {state['count']} of {len(records)}")
    return found


def goes_on(play: Play, machine: Machine) -> list[str]:
    """New records are copied, whoever writes to the destination gets a place behind all that was seen."""
    graph = machine.deliveries[0].routing.replica.graph
    if "r" in graph.by_name:
        machine.append("a", [b"after"])
        play.sent.append(b"after")
        play.acked.append(b"after")
        machine.settle()
    seq = machine.append("b", [DIRECT]).first_seq
    newest = max(play.seen, default=0)
    return [] if seq > newest else [f"a direct write got seq {seq}, seen was {newest}"]


class Case(NamedTuple):
    scene: RouterScene
    kind: str  # crash, kill or fail
    call: int
    seed: int  # of the damage that the loss of power does

    def __str__(self) -> str:
        return f"{self.scene.name}: {self.kind} at call {self.call}, damage seed {self.seed}"


def run_case(case: Case) -> list[str]:
    """Problems; empty when every promise held."""
    play = Play(case.scene).prepare()
    try:
        if case.kind == "fail":
            play.faults.fail_at, play.faults.errno = case.call, errno.EIO
        else:
            play.faults.crash_after, play.faults.crashed = case.call, case.call == 0
        with suppress(*DEATHS):
            case.scene.act(play)
        if case.kind == "fail":
            return _failed(play, case)
        with suppress(BaseException):
            play.machine.abandon()
        power_lost = case.kind == "crash"
        disk = play.disk.image(case.seed) if power_lost else play.disk
        machine = play.successor(disk, power_lost=power_lost)
        found = problems(play, machine, power_lost=power_lost)
        found += [f"then {line}" for line in goes_on(play, machine)]
        return found or _again(play, machine, disk, power_lost=power_lost)
    except (AssertionError, *DEATHS) as exc:
        return [f"{type(exc).__name__}: {exc}"]
    finally:
        play.close()


def _failed(play: Play, case: Case) -> list[str]:
    play.faults.fail_at = None
    play.machine.advance(2_000)
    play.machine.settle()
    found = [f"healed: {line}" for line in problems(play, play.machine, power_lost=False)]
    play.look()
    with suppress(BaseException):
        play.machine.abandon()
    machine = play.successor(play.disk, power_lost=False)
    found += [f"killed: {line}" for line in problems(play, machine, power_lost=False)]
    return found + goes_on(play, machine)


def _again(play: Play, machine: Machine, disk: FakeDisk, *, power_lost: bool) -> list[str]:
    """What it shows now the next start shows as well."""
    before = machine.read("b")
    machine.abandon()
    second = play.successor(disk, power_lost=False, previous=machine)
    after = second.read("b")
    return [] if before == after else [f"another start shows {after}, this one {before}"]


def calls_of(scene: RouterScene) -> int:
    play = Play(scene).prepare()
    try:
        assert kind_of(play.machine) == "derived", kind_of(play.machine)
        scene.act(play)
        play.machine.settle()
        calls = play.faults.count
        found = problems(play, play.machine, power_lost=False)
        assert not found, (scene.name, found)
        assert kind_of(play.machine) == scene.kind, (scene.name, kind_of(play.machine))
        return calls
    finally:
        play.close()


def cases(scene: RouterScene) -> Iterator[Case]:
    for call in range(calls_of(scene) + 1):
        for seed in range(len(STYLES)):
            yield Case(scene, "crash", call, seed)
        yield Case(scene, "kill", call, 0)
        if call:
            yield Case(scene, "fail", call, 0)


def run_scene(scene: RouterScene, most: int | None = None, *, first: bool = False) -> dict[str, list[str]]:
    """What broke; of so many cases, all if none is said. first: one is enough."""
    every, broken = list(cases(scene)), dict[str, list[str]]()
    for case in every if most is None or most >= len(every) else Random(scene.name).sample(every, most):
        if found := run_case(case):
            broken[str(case)] = found
            if first:
                break
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.router_sweep", description=__doc__)
    parser.add_argument("scenes", nargs="*", help="only these")
    parser.add_argument("--first", action="store_true", help="end with the first violation")
    parser.add_argument("--most", type=int, default=None, help="cases of each")
    given = parser.parse_args()
    logging.disable()
    broken: dict[str, list[str]] = {}
    for scene in SCENES:
        if given.scenes and scene.name not in given.scenes:
            continue
        found = run_scene(scene, given.most, first=given.first)
        print(f"{scene.name}: {len(found)} broken", flush=True)
        broken.update(found)
    for name, lines in list(broken.items())[:20]:
        print(name, *lines, sep="\n  ")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
