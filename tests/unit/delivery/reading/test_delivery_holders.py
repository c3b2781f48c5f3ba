"""Who reads as a consumer: one at a time, the next is refused or takes over, and who goes makes room."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import ConsumerHeld, ConsumerNotFound, InvalidRequest
from topicd.ipc.protocol.messages import Op


def read_as(line: Any, holder: int, **more: Any) -> Any:
    body = {"topics": [{"topic": "orders"}], "consumer": "c", "holder": holder, **more}
    return line.ask(Op.SUBSCRIBE, **body)


@pytest.fixture
def lines(desk: Desk) -> list[Any]:
    desk.topic("orders", durability="memory")
    made = [desk.line(), desk.line()]
    made[0].ask(Op.CONSUMER_OPEN, topic="orders", name="c")
    return made


def test_a_second_reader_is_refused_until_the_first_is_gone(desk: Desk, lines: list[Any]) -> None:
    first, second = lines
    read_as(first, 1)
    assert len(desk.parts.holders) == 1
    with pytest.raises(ConsumerHeld, match="takeover"):
        read_as(second, 2)
    assert first.ask(Op.CONSUMER_STATE, topic="orders", name="c")["holder"]
    first.session.connection_lost(None)
    assert len(desk.parts.holders) == 0
    assert second.ask(Op.CONSUMER_STATE, topic="orders", name="c")["holder"] == ""
    read_as(second, 2)


def test_who_takes_over_is_told_to_the_one_before_and_gets_what_comes(desk: Desk, lines: list[Any]) -> None:
    first, second = lines
    read_as(first, 1)
    read_as(second, 2, takeover=True)
    [notice] = first.take(Op.NOTICE)
    assert notice.map()["code"] == "consumer_held"
    desk.write(desk.parts.catalog.get("orders"), [b"x"])
    assert [push.datas() for push in second.take(Op.PUSH)] == [[b"x"]]
    assert first.take(Op.PUSH) == []
    first.session.connection_lost(None)
    assert len(desk.parts.holders) == 1  # it is the second's


def test_who_was_replaced_cannot_acknowledge_any_more(desk: Desk, lines: list[Any]) -> None:
    first, second = lines
    desk.write(desk.parts.catalog.get("orders"), [b"x", b"y"])
    read_as(first, 1)
    first.ask(Op.CONSUMER_ACK, topic="orders", name="c", seq=1, holder=1)
    read_as(second, 2, takeover=True)
    with pytest.raises(ConsumerHeld, match="has taken over"):
        first.ask(Op.CONSUMER_ACK, topic="orders", name="c", seq=2, holder=1)
    assert second.ask(Op.CONSUMER_STATE, topic="orders", name="c")["acked_seq"] == 1
    second.ask(Op.CONSUMER_ACK, topic="orders", name="c", seq=2, holder=2)
    second.session.connection_lost(None)
    assert first.ask(Op.CONSUMER_ACK, topic="orders", name="c", seq=2, holder=1)["acked_seq"] == 2  # nobody reads


def test_somebody_who_names_no_reader_may_acknowledge(desk: Desk, lines: list[Any]) -> None:
    first, second = lines
    desk.write(desk.parts.catalog.get("orders"), [b"x"])
    read_as(first, 1)
    assert second.ask(Op.CONSUMER_ACK, topic="orders", name="c", seq=1)["acked_seq"] == 1


def test_the_same_reader_on_another_connection_replaces_itself(desk: Desk, lines: list[Any]) -> None:
    first, second = lines
    read_as(first, 7)
    read_as(second, 7)
    assert len(desk.parts.holders) == 1


def test_what_is_no_consumer_cannot_be_read_as_one(lines: list[Any]) -> None:
    with pytest.raises(ConsumerNotFound):
        lines[0].ask(Op.SUBSCRIBE, topics=[{"topic": "orders"}], consumer="other")
    with pytest.raises(InvalidRequest, match="one topic"):
        lines[0].ask(Op.SUBSCRIBE, pattern="*", consumer="c")
