"""TIER_STATE and TIER_NOW."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import InvalidRequest, TopicNotFound
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


@pytest.mark.parametrize(
    ("config", "why"), [({"type": "queue"}, "jobs are read"), ({"durability": "ephemeral"}, "an ephemeral topic")]
)
def test_what_never_moves_is_not_moved_now(desk: Desk, config: dict[str, Any], why: str) -> None:
    desk.serve()
    desk.topic(**config)
    line = desk.line()
    with pytest.raises(InvalidRequest, match=why):
        line.ask(Op.TIER_NOW, topic="orders")
    assert not line.ask(Op.TIER_STATE, topic="orders")["tiered"]
