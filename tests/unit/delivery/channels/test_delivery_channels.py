"""All of a shard's channels in one hand: rest, refusals, errors that nobody foresaw."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import Internal, NotReady
from topicd.ipc.protocol.messages import Op


def test_c24_nothing_new_is_begun_once_it_drains(desk: Desk) -> None:
    line = desk.serve().line()
    line.ask(Op.CHANNEL_JOIN, channel="lobby", user="ann")
    channels = desk.parts.channels
    begun = line.send(Op.CHANNEL_JOIN, {"channel": "lobby", "user": "bob"})
    assert not channels.idle
    channels.draining = True
    with pytest.raises(NotReady):
        line.ask(Op.CHANNEL_JOIN, channel="lobby", user="eve")
    assert line.result(begun).map()["joined"] is True
    assert channels.idle


def test_an_error_of_ours_is_an_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    line = desk.serve().line()
    monkeypatch.setattr(desk.parts.channels.mutations, "_registry", None)
    with pytest.raises(Internal):
        line.ask(Op.CHANNEL_JOIN, channel="lobby", user="ann")
    assert desk.parts.channels.idle


def test_what_was_popped_leaves_the_log(desk: Desk) -> None:
    line = desk.serve().line()
    line.ask(Op.CHANNEL_JOIN, channel="jobs", user="ann")
    line.ask(Op.CHANNEL_CONFIG, channel="jobs", config={"persist": True})
    line.ask(Op.CHANNEL_TYPE, channel="jobs", type="fifo")
    for _ in range(3):
        line.ask(Op.CHANNEL_PUSH, channel="jobs", data=b"x")
    for _ in range(3):
        line.ask(Op.CHANNEL_POP, channel="jobs")
    topic = desk.parts.channels.registry.get("jobs")[0].topic
    assert topic is not None
    assert topic.contents.count == 0
