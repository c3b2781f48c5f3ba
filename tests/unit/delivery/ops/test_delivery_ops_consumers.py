"""Named consumers opened, moved, asked for and removed by request."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk, Line
from tests.unit.delivery.kit import TS
from topicd.errors import Conflict, ConsumerNotFound, InvalidRequest, Throttled
from topicd.ipc.protocol.messages import Op
from topicd.shards.delivery.ops import consumers as module
from topicd.shards.delivery.topic.topic import Topic


@pytest.fixture
def topic(desk: Desk) -> Topic:
    made = desk.topic(durability="fsync")
    for n in range(1, 6):
        desk.clock.set_wall(TS + n)
        desk.write(made, [b"x"])
    return made


@pytest.fixture
def line(desk: Desk, topic: Topic) -> Line:
    return desk.line()


def ask(line: Line, op: Op, name: str = "c", **more: Any) -> dict[str, Any]:
    return line.ask(op, topic="orders", name=name, **more)


@pytest.mark.parametrize(
    ("start", "acked"),
    [
        (None, 0),
        ({"at": "earliest"}, 0),
        ({"at": "latest"}, 5),
        ({"seq": 3}, 3),
        ({"ts": TS + 3}, 2),
    ],
)
def test_it_opens_where_it_is_told_to_and_keeps_its_place(line: Line, start: Any, acked: int) -> None:
    where = {} if start is None else {"start": start}
    first = ask(line, Op.CONSUMER_OPEN, **where)
    assert (first["acked_seq"], first["lag"], first["created"]) == (acked, 5 - acked, True)
    again = ask(line, Op.CONSUMER_OPEN, start={"at": "latest"})
    assert (again["acked_seq"], again["created"]) == (acked, False)
    assert ask(line, Op.CONSUMER_RESET, **where)["acked_seq"] == acked


def test_an_acknowledgement_goes_forward_only_and_not_beyond_the_head(line: Line) -> None:
    ask(line, Op.CONSUMER_OPEN)
    assert ask(line, Op.CONSUMER_ACK, seq=3)["acked_seq"] == 3
    assert ask(line, Op.CONSUMER_ACK, seq=2)["acked_seq"] == 3
    with pytest.raises(Conflict):
        ask(line, Op.CONSUMER_ACK, seq=6)
    assert ask(line, Op.CONSUMER_STATE)["acked_seq"] == 3
    with pytest.raises(Conflict):
        ask(line, Op.CONSUMER_RESET, start={"seq": 6})


def test_it_is_answered_when_it_is_stored_as_the_class_says(desk: Desk, line: Line, topic: Topic) -> None:
    request = line.send(Op.CONSUMER_OPEN, {"topic": "orders", "name": "c"})
    desk.wal.write()
    desk.parts.turn.doorbell()
    assert (line.answers, len(topic.consumers)) == ([], 0)
    assert line.result(request).map()["created"]


def test_what_could_not_be_stored_did_not_happen(desk: Desk, line: Line, topic: Topic) -> None:
    ask(line, Op.CONSUMER_OPEN)
    line.send(Op.CONSUMER_ACK, {"topic": "orders", "name": "c", "seq": 4})
    desk.fail_wal(errno.EIO)
    [error] = line.take(Op.ERROR)
    assert (error.map()["code"], ask(line, Op.CONSUMER_STATE)["acked_seq"]) == ("storage_failed", 0)


@pytest.mark.parametrize("op", [Op.CONSUMER_ACK, Op.CONSUMER_RESET, Op.CONSUMER_REMOVE, Op.CONSUMER_STATE])
def test_one_that_is_not_there_is_named(line: Line, op: Op) -> None:
    with pytest.raises(ConsumerNotFound) as caught:
        ask(line, op, **({"seq": 1} if op is Op.CONSUMER_ACK else {}))
    assert caught.value.detail["name"] == "c"


def test_an_acknowledgement_that_meets_a_removal_is_told_so(desk: Desk, line: Line) -> None:
    ask(line, Op.CONSUMER_OPEN)
    removed = line.send(Op.CONSUMER_REMOVE, {"topic": "orders", "name": "c"})
    acked = line.send(Op.CONSUMER_ACK, {"topic": "orders", "name": "c", "seq": 2})
    desk.settle()
    assert line.result(removed).map() == {"name": "c"}
    with pytest.raises(ConsumerNotFound):
        line.result(acked)


def test_they_are_listed_by_name(line: Line) -> None:
    for name in ("b", "a"):
        ask(line, Op.CONSUMER_OPEN, name)
    rows = line.ask(Op.CONSUMER_LIST, topic="orders")["consumers"]
    assert [row["name"] for row in rows] == ["a", "b"]
    assert set(rows[0]) == {"name", "acked_seq", "head_seq", "lag", "updated_ts", "topic_id", "holder"}


def test_their_number_is_bounded(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CONSUMERS_MAX", 2)
    for name in ("a", "b"):
        ask(line, Op.CONSUMER_OPEN, name)
    with pytest.raises(Throttled):
        ask(line, Op.CONSUMER_OPEN, "c")
    assert not ask(line, Op.CONSUMER_OPEN, "a")["created"]


def test_what_has_expired_is_no_lag(desk: Desk) -> None:
    topic, line = desk.topic("short", ttl_ms=1000), desk.line()
    desk.write(topic, [b"x"] * 3)
    line.ask(Op.CONSUMER_OPEN, topic="short", name="c")
    desk.clock.advance(1001)
    assert line.ask(Op.CONSUMER_STATE, topic="short", name="c")["lag"] == 0


@pytest.mark.parametrize("name", ["", "x" * 300, 5])
def test_a_bad_name_is_refused(line: Line, name: Any) -> None:
    with pytest.raises(InvalidRequest):
        line.ask(Op.CONSUMER_OPEN, topic="orders", name=name)
