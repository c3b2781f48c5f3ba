"""TIER_STATE and TIER_NOW."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import TopicNotFound
from topicd.ipc.protocol.messages import Op


def test_a_topic_says_where_its_segments_lie(desk: Desk) -> None:
    desk.serve()
    topic = desk.topic(durability="memory", hot_retain_segments=7)
    desk.write(topic, [b"x"] * 3)
    desk.checkpoint()
    found = desk.line().ask(Op.TIER_STATE, topic="orders")
    assert found["segments"] == {"hot": 1, "packed": 0, "cold": 0, "cold_packed": 0}
    assert (found["waiting"], found["hot_retain_segments"], found["trouble"]) == (0, 7, "")


def test_now_takes_a_snapshot(desk: Desk) -> None:
    desk.serve()
    desk.topic()
    saved = desk.parts.snapshots.saved
    assert desk.line().ask(Op.TIER_NOW, topic="orders")["topic"] == "orders"
    assert desk.parts.snapshots.saved == saved + 1


def test_a_topic_that_is_not_there_is_not_made(desk: Desk) -> None:
    line = desk.line()
    for op in (Op.TIER_STATE, Op.TIER_NOW):
        with pytest.raises(TopicNotFound):
            line.ask(op, topic="orders")
