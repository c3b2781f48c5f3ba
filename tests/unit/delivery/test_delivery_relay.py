"""Questions to a shard over its own socket."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import NotReady, TopicdError, TopicNotFound
from topicd.frames import core
from topicd.ipc.protocol.codec import Fetched
from topicd.ipc.protocol.messages import SourceHead, Subscribe, SubscribedTopic
from topicd.shards.delivery import relay as module
from topicd.shards.delivery.relay import Listener, Relay


class Heard(Listener):
    def __init__(self) -> None:
        self.told: list[Any] = []

    def accepted(self, answer: dict[str, Any]) -> None:
        self.told.append(answer["topics"][0]["topic"])

    def pushed(self, fetched: Fetched) -> None:
        self.told.append(core.payloads(fetched.buffer, fetched.start, fetched.end))

    def noticed(self, notice: dict[str, Any]) -> None:
        self.told.append(notice["event"])

    def lost(self, error: TopicdError) -> None:
        self.told.append(error.code)


@pytest.fixture
def relay(desk: Desk) -> Relay:
    return desk.route().parts.relay


def outcome(desk: Desk, work: Any) -> Any:
    task = desk.loop.create_task(work)
    desk.settle()
    return task.result()


def test_a_question_is_answered_or_refused(desk: Desk, relay: Relay) -> None:
    topic = desk.topic("orders")
    answer = outcome(desk, relay.ask(0, SourceHead(topic="orders")))
    assert answer == {"topic_id": topic.id, "head_seq": 0, "durability": "disk", "logged": ""}
    with pytest.raises(TopicNotFound):
        outcome(desk, relay.ask(0, SourceHead(topic="other")))
    assert len(desk.parts.connections.open) == 1, "both on one connection"


def test_an_append_that_is_repeated_is_stored_once(desk: Desk, relay: Relay) -> None:
    topic_id = outcome(desk, relay.open("letters"))
    frames = core.encode_batch([b"dead"], None, None, None)
    for deduped in (False, True):
        answer = outcome(desk, relay.append("letters", topic_id, 17, 1, frames, 1))
        assert (answer.first_seq, answer.deduped) == (1, deduped)


def test_who_follows_gets_records_and_hears_of_the_end(desk: Desk, relay: Relay) -> None:
    topic, heard = desk.topic("orders"), Heard()
    want = Subscribe(topics=(SubscribedTopic(topic="orders"),), match=None, nodes=(), credit=1_000)
    followed = relay.follow(0, want, heard)
    desk.settle()
    for _ in range(20):
        desk.turn()
    desk.write(topic, [b"a"])
    for _ in range(20):
        desk.turn()
    assert heard.told == ["orders", [b"a"]]
    followed.grant(100)
    for session in list(desk.parts.connections.open):
        session.close()
    for _ in range(20):
        desk.turn()
    assert heard.told[2:] == ["not_ready"]


def test_a_closed_relay_says_so(desk: Desk, relay: Relay) -> None:
    relay.close()
    with pytest.raises(NotReady):
        outcome(desk, relay.ask(0, SourceHead(topic="orders")))


def test_a_shard_that_is_not_there_may_be_asked_again(desk: Desk) -> None:
    with pytest.raises(NotReady):
        outcome(desk, desk.parts.relay.ask(0, SourceHead(topic="orders")))


@pytest.mark.fault("RES-07")
def test_a_shard_without_descriptors_may_be_asked_again(
    desk: Desk, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    desk.topic("orders")
    with monkeypatch.context() as patch, pytest.raises(NotReady, match="Too many open files"):
        patch.setattr(module.socket, "socketpair", refuse)
        outcome(desk, relay.ask(0, SourceHead(topic="orders")))
    assert outcome(desk, relay.ask(0, SourceHead(topic="orders")))["head_seq"] == 0
