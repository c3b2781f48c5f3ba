"""Topics opened, configured, looked at, listed and deleted by request."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd.errors import Conflict, Forbidden, InvalidRequest, StorageFailed, TopicNotFound
from topicd.ipc.protocol.messages import Op
from topicd.tokens import Rights


@pytest.fixture
def line(desk: Desk) -> Line:
    return desk.line()


def test_opening_creates_once(desk: Desk, line: Line) -> None:
    first = line.ask(Op.OPEN, topic="orders", config={"cap_records": 5})
    again = line.ask(Op.OPEN, topic="orders", config={"cap_records": 9})
    assert (first["created"], again["created"], first["topic_id"]) == (True, False, again["topic_id"])
    assert desk.parts.catalog.get("orders").config.cap_records == 5
    assert (again["head_seq"], again["earliest_seq"]) == (0, 1)


@pytest.mark.parametrize("op", [Op.OPEN, Op.CONFIGURE])
def test_what_may_not_be_created_is_not(desk: Desk, line: Line, op: Op) -> None:
    with pytest.raises(TopicNotFound):
        line.ask(op, topic="orders", create=False)
    with pytest.raises(InvalidRequest, match="own"):
        line.ask(op, topic="topicd.stage")
    assert desk.parts.catalog.by_name == {}
    assert line.ask(op, topic="topicd.stage", internal=True)["created"]


def test_a_token_that_writes_creates_plain_topics_only(desk: Desk, line: Line) -> None:
    line.session.rights = Rights("token", frozenset({"write"}))
    with pytest.raises(Forbidden):
        line.ask(Op.OPEN, topic="orders", config={"cap_records": 5})
    assert line.ask(Op.OPEN, topic="orders")["created"]
    line.session.rights = Rights("token", frozenset({"read"}))
    assert not line.ask(Op.OPEN, topic="orders")["created"]
    with pytest.raises(Forbidden):
        line.ask(Op.OPEN, topic="other")


def test_configuring_changes_or_creates(line: Line) -> None:
    created = line.ask(Op.CONFIGURE, topic="orders", config={"cap_records": 5})
    changed = line.ask(Op.CONFIGURE, topic="orders", config={"ttl_ms": 7})
    assert (created["created"], changed["created"]) == (True, False)
    assert (changed["config"]["cap_records"], changed["config"]["ttl_ms"]) == (5, 7)
    with pytest.raises(InvalidRequest):
        line.ask(Op.CONFIGURE, topic="orders", config={"cap_records": -1})


def test_the_state_is_that_of_now(desk: Desk, line: Line) -> None:
    topic = desk.topic(ttl_ms=1000, priority=3)
    desk.write(topic, [b"abc", b"de"])
    desk.clock.advance(500)
    state = line.ask(Op.STATE, topic="orders", touch=False)
    assert (state["count"], state["bytes"], state["head_seq"], state["next_seq"]) == (2, 5, 2, 3)
    assert (state["last_read_ts"], state["effective_priority"], state["config"]["ttl_ms"]) == (0, 3, 1000)
    desk.clock.advance(501)
    state = line.ask(Op.STATE, topic="orders")
    assert (state["count"], state["earliest_seq"], state["evict_floor"]) == (0, 3, 3)
    assert state["last_read_ts"] == desk.clock.now_ms()


def test_lists_hide_what_is_internal_or_forbidden(desk: Desk, line: Line) -> None:
    for name in ("b", "a", "topicd.stage", "secret"):
        desk.topic(name)

    def names(**more: object) -> tuple[list[str], str | None]:
        answer = line.ask(Op.LIST, **more)
        return [row["topic"] for row in answer["topics"]], answer["next"]

    assert names() == (["a", "b", "secret"], None)
    assert names(limit=2) == (["a", "b"], "b")
    assert names(limit=2, after="b") == (["secret"], None)
    assert names(internal=True)[0] == ["a", "b", "secret", "topicd.stage"]
    assert names(prefix="topicd.")[0] == ["topicd.stage"]
    line.session.rights = Rights("token", frozenset({"read"}), ("a", "b"))
    assert names(internal=True)[0] == ["a", "b"]


def test_a_row_of_the_list_counts_what_is_left(desk: Desk, line: Line) -> None:
    topic = desk.topic(ttl_ms=1000)
    desk.write(topic, [b"x"])
    desk.clock.advance(1001)
    [row] = line.ask(Op.LIST)["topics"]
    assert (row["count"], row["earliest_seq"], row["durability"], row["type"]) == (0, 2, "disk", "log")


def test_deleting_is_final_and_if_empty_minds_records(desk: Desk, line: Line) -> None:
    topic = desk.topic(ttl_ms=1000)
    desk.write(topic, [b"x"])
    with pytest.raises(Conflict):
        line.ask(Op.DELETE_TOPIC, topic="orders", if_empty=True)
    desk.clock.advance(1001)  # what has expired is not there
    assert line.ask(Op.DELETE_TOPIC, topic="orders", if_empty=True)["topic_id"] == topic.id
    for op in (Op.DELETE_TOPIC, Op.STATE):
        with pytest.raises(TopicNotFound):
            line.ask(op, topic="orders")


def test_a_sync_is_answered_when_the_disk_has_everything(desk: Desk, line: Line) -> None:
    topic = desk.topic(durability="disk")
    desk.append(topic, [b"a", b"b"])
    desk.parts.turn.end()
    desk.wal.write()
    desk.parts.turn.doorbell()
    asked = line.send(Op.SYNC_TOPIC, {"topic": "orders"})
    assert line.answers == []
    assert line.result(asked).map() == {"topic_id": topic.id, "head_seq": 2}
    desk.append(topic, [b"c"])
    desk.parts.turn.end()
    asked = line.send(Op.SYNC_TOPIC, {"topic": "orders"})
    desk.fail_wal(5)
    with pytest.raises(StorageFailed):
        line.result(asked)
    with pytest.raises(TopicNotFound):
        line.ask(Op.SYNC_TOPIC, topic="other")


def test_a_sync_of_what_is_never_stored_is_answered_at_once(desk: Desk, line: Line) -> None:
    desk.write(desk.topic(durability="ephemeral"), [b"a"])
    line.send(Op.SYNC_TOPIC, {"topic": "orders"})
    assert [answer.map()["head_seq"] for answer in line.answers] == [1]
