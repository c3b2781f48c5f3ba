"""What tests ask of a daemon that runs on their clock; any other daemon refuses."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.kit import TS
from topicd.clock import SystemClock
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import Op


def test_without_the_test_clock_nothing_is_done(desk: Desk) -> None:
    line = desk.line()
    desk.parts.place.clock = SystemClock()
    with pytest.raises(InvalidRequest):
        line.ask(Op.DEBUG, checkpoint=True)
    assert desk.parts.rounds.done == 0


def test_the_clock_moves_by_so_much_or_to_a_time(desk: Desk) -> None:
    line = desk.line()
    assert line.ask(Op.DEBUG)["now_ms"] == TS
    assert line.ask(Op.DEBUG, advance_ms=5)["now_ms"] == TS + 5
    assert line.ask(Op.DEBUG, set_ms=TS + 100)["now_ms"] == TS + 100
    assert desk.clock.now_ms() == TS + 100


def test_checkpoints_and_snapshots_are_forced(desk: Desk) -> None:
    desk.serve()
    topic, line = desk.topic(durability="memory"), desk.line()
    desk.write(topic, [b"x"])
    saved = desk.parts.snapshots.saved
    answer = line.ask(Op.DEBUG, checkpoint=True, snapshot=True)
    assert (topic.seqs.stored, desk.parts.snapshots.saved) == (1, saved + 1)
    assert answer["snapshots"] == saved  # the figures are those before it
