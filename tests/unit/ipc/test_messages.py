"""Declared messages: what a client builds is what a shard reads, and what does not fit is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from topicd.errors import InvalidRequest
from topicd.ipc.protocol.fields import Message, flag, number, text
from topicd.ipc.protocol.messages import (
    REQUESTS,
    AckConsumer,
    DeleteRecords,
    FetchFilter,
    Hello,
    JobOptions,
    ListTopics,
    Nack,
    Op,
    OpenConsumer,
    Subscribe,
    SubscribedTopic,
)
from topicd.ipc.protocol.wire import ANSWER
from topicd.model import TagMatch
from topicd.tokens import SCOPES

LAYOUTS_OF_THEIR_OWN = {Op.APPEND, Op.FETCH, Op.CREDIT, Op.CLAIM, Op.ACK}


def test_every_request_is_declared_once() -> None:
    requests = {op for op in Op if op < ANSWER}
    assert set(REQUESTS) | LAYOUTS_OF_THEIR_OWN == requests
    assert all(set(request.RIGHT) <= set(SCOPES) for request in REQUESTS.values())
    assert all("topic" in request.RULES for request in REQUESTS.values() if request.RIGHT)


@pytest.mark.parametrize(
    "message",
    [
        AckConsumer(topic="orders", name="billing", seq=7),
        OpenConsumer(topic="orders", name="billing", start=("seq", 3)),
        OpenConsumer(topic="orders", name="billing", start=("latest", 0)),
        OpenConsumer(topic="orders", name="billing"),
        DeleteRecords(topic="orders", before_seq=0),
        DeleteRecords(topic="orders", match=TagMatch(b"eu:", prefix=True)),
        FetchFilter(nodes=(b"a", b"b"), from_ts=5),
        ListTopics(),
        JobOptions(delay_ms=5, priority=9, group="a", unique="k", until="time", unique_ms=9, on_conflict="replace"),
        Nack(topic="jobs", seqs=(1, 2), leases=(7, 0), node="w", kind="dead", delay_ms=0, reason="no"),
        Nack(topic="jobs", seqs=()),
        Subscribe(topics=(SubscribedTopic(topic="a", from_seq=4), SubscribedTopic(topic="b", tail=True)), credit=9),
    ],
    ids=repr,
)
def test_a_message_reads_back_as_it_was_built(message: Message) -> None:
    assert type(message).from_wire(message.to_wire()) == message


def test_only_what_is_not_its_default_travels() -> None:
    assert ListTopics(prefix="a").to_wire() == {"prefix": "a"}
    assert AckConsumer(topic="orders", name="billing", seq=0).to_wire() == {
        "topic": "orders",
        "name": "billing",
        "seq": 0,
    }


@pytest.mark.parametrize(
    ("message", "body", "said"),
    [
        (AckConsumer, {"topic": "t", "name": "c"}, "seq must be an integer from 0"),
        (AckConsumer, {"topic": "t", "name": "c", "seq": True}, "seq must be an integer"),
        (AckConsumer, {"topic": "t", "name": "c", "seq": -1}, "seq must be an integer"),
        (AckConsumer, {"topic": "t", "seq": 1}, "consumer name None"),
        (AckConsumer, {"name": "c", "seq": 1}, "topic name None"),
        (AckConsumer, {"topic": "t", "name": "c", "seq": 1, "sequel": 2}, "'sequel'.* topic, name, seq"),
        (OpenConsumer, {"topic": "t", "name": "c", "start": {"seq": 1, "ts": 2}}, "start must be"),
        (OpenConsumer, {"topic": "t", "name": "c", "start": {"at": "middle"}}, "start must be"),
        (ListTopics, {"limit": 0}, "limit must be an integer from 1 to 1000"),
        (ListTopics, {"prefix": None}, "prefix must be a string"),
        (ListTopics, {"prefix": "x" * 256}, "prefix has at most 255 characters"),
        (Subscribe, {"topics": ["a"]}, "each of topics must be a map of topic, from_seq"),
        (Subscribe, {"topics": [{"topic": "a", "from": 1}]}, "'from'"),
        (Subscribe, {"topics": [{"topic": "a"}] * 257}, "list of at most 256"),
        (FetchFilter, {"nodes": ["n"] * 257}, "nodes must be a list of at most 256"),
        (FetchFilter, {"nodes": [""]}, "a node has 1 to 128 bytes"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(message: type[Message], body: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        message.from_wire(body)


def test_a_field_whose_default_is_none_may_be_nil() -> None:
    assert DeleteRecords.from_wire({"topic": "t", "before_seq": None, "match": "x"}).before_seq is None


def test_another_version_may_say_more_in_its_hello() -> None:
    assert Hello.from_wire({"version": 9, "favourite_colour": "green"}).version == 9


def test_a_message_is_built_of_its_fields_only() -> None:
    class Greeting(Message):
        text: str = text(9)
        times: int = number(1, 3, default=1)
        loud: bool = flag(default=False)

    assert Greeting(text="hello").times == 1
    with pytest.raises(TypeError, match="needs text"):
        Greeting()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="no field tone"):
        Greeting(text="x", tone=1)  # type: ignore[call-arg]
