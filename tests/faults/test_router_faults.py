"""A seeded part of all the ways in which the work of a router can be interrupted. All of them: `make router-faults`."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.machine import Machine
from tests.faults.router_sweep import DIRECT, SCENES, SETTINGS, Play, RouterScene, run_scene
from tests.support.served import run_routers
from topicd.errors import InvalidRequest, NotReady
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.topic.contents import Damaged

CASES = 25


@pytest.mark.fault("RTR-01", "RTR-02")
@pytest.mark.parametrize("scene", SCENES, ids=[scene.name for scene in SCENES])
def test_a_destination_is_what_its_source_says_wherever_it_ends(scene: RouterScene) -> None:
    assert run_scene(scene, CASES) == {}


@pytest.mark.fault("RTR-04")
@pytest.mark.parametrize("filtered", [False, True], ids=["all records", "filtered"])
def test_a_source_that_rots_while_copies_are_to_be_made_again_has_a_way_out(filtered: bool) -> None:
    """What readers saw keeps its seq or is a gap, and no seq of theirs is given to another record."""
    options: dict[str, Any] = {"filter": ["tag", "Eq", "x"]} if filtered else {}
    play = Play(RouterScene("rot", lambda play: None)).prepare(**options)
    try:
        for n in range(4):
            play.write(2, tag="x" if n % 2 else "y")
        head = play.machine.state("a")["head_seq"]
        play.machine.abandon()
        machine = _rotten(play, play.machine, (head - 5, head - 4))
        info = machine.wire_of("a").ask(Op.ROUTER_GET, {"router": "r"})
        assert info["unreadable"] == [head - 5, head - 4] and "cannot be read" in info["waiting"]
        for others in (
            lambda: machine.append("b", [DIRECT]),
            lambda: machine.wire_of("a").ask(Op.ROUTER_DELETE, {"router": "r"}),
        ):
            with pytest.raises(NotReady):
                others()
        answer = machine.wire_of("a").ask(Op.ROUTER_SKIP, {"router": "r", "up_to_seq": head})
        assert answer["skipped"] == [head - 5, head - 4]
        for forwarder in machine.deliveries[0].routing.shop.forwarders.values():
            forwarder._go_on()
        machine.settle()
        behind = machine.append("b", [DIRECT]).first_seq
        found = {record.seq: record.data for record in machine.read("b")}
        assert behind > max(play.seen)
        assert all(found.get(seq) in (data, None) for seq, data in play.seen.items())
        assert not machine.damage()
        machine.abandon()
        again = _rotten(play, machine, (head - 5, head - 4))
        assert {record.seq: record.data for record in again.read("b")} == found
        assert again.append("b", [DIRECT]).first_seq > behind
        with pytest.raises(InvalidRequest):
            again.wire_of("a").ask(Op.ROUTER_SKIP, {"router": "r", "up_to_seq": head})
    finally:
        play.close()


def _rotten(play: Play, previous: Machine, seqs: tuple[int, int]) -> Machine:
    """The next start, which cannot read these seqs of the source."""
    machine = Machine(play.disk, previous=previous, **SETTINGS).open()
    play.others.append(machine)
    machine.deliveries[0].catalog.get("a").contents.damaged = [Damaged(*seqs, "a file")]
    run_routers(machine.deliveries[0])
    machine.settle()
    return machine
