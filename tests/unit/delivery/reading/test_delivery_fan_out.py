"""One record to many subscribers in one pass: each gets what it would have got by itself."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk, Line
from topicd import _native
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import CREDIT, PROTOCOL_VERSION
from topicd.shards.delivery.reading import fan_out
from topicd.shards.delivery.topic.topic import Topic

MANY = 2 * fan_out.SHARED

needs_native = pytest.mark.skipif(_native.send_each is None, reason="the pure core sends to each by itself")


class Peer(Line):
    """It reads its socket, too: what is sent past the transport arrives there."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        for end in self._pair:
            end.setblocking(False)
        self.buffered = 0
        self.direct = 0  # bytes that came past the transport

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def receive(self, most: int = 1 << 20) -> None:
        while most > 0:
            try:
                data = self._pair[1].recv(min(most, 1 << 16))
            except BlockingIOError:
                return
            if not data:
                return
            most -= len(data)
            self.direct += len(data)
            super().write(data)

    def pushed(self) -> list[bytes]:
        self.receive()
        return [data for push in self.take(Op.PUSH) for data in push.datas()]


class Held(Peer):
    """What the transport is given waits until it is told, as behind a full socket."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.waiting: list[bytes] = []
        self.held = False

    def write(self, data: Any) -> None:
        if self.held:
            self.waiting.append(bytes(data))
            self.buffered += len(data)
        else:
            super().write(data)

    def let_go(self) -> None:
        self.held = False
        self.receive()
        self.buffered = 0
        for data in self.waiting:
            super().write(data)
        self.waiting.clear()


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return desk.topic(durability="memory")


def peers(desk: Desk, topic: Topic, count: int = MANY, kind: type[Peer] = Peer, **more: Any) -> list[Peer]:
    found = []
    for _ in range(count):
        peer = kind(desk)
        desk.lines.append(peer)
        peer.ask(Op.HELLO, version=PROTOCOL_VERSION)
        peer.send(Op.SUBSCRIBE, {"topics": [{"topic": topic.name, "tail": True}], **more})
        found.append(peer)
    desk.settle()
    return found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """To how many each call has sent."""
    found: list[int] = []
    send: Callable[..., Any] | None = fan_out.send_each

    def counted(descriptors: Any, data: bytes) -> Any:
        assert send is not None
        found.append(len(descriptors) // 4)
        return send(descriptors, data)

    monkeypatch.setattr(fan_out, "send_each", counted)
    return found


@needs_native
def test_all_that_keep_up_are_served_by_one_call(desk: Desk, topic: Topic, calls: list[int]) -> None:
    found = peers(desk, topic)
    desk.write(topic, [b"one", b"two"])
    assert [peer.pushed() for peer in found] == [[b"one", b"two"]] * MANY
    assert calls == [MANY]
    assert all(peer.direct for peer in found)


@needs_native
def test_few_are_served_one_by_one(desk: Desk, topic: Topic, calls: list[int]) -> None:
    found = peers(desk, topic, fan_out.SHARED - 1)
    desk.write(topic, [b"one"])
    assert [peer.pushed() for peer in found] == [[b"one"]] * len(found)
    assert calls == []


def test_credit_and_cursors_are_exact(desk: Desk, topic: Topic) -> None:
    found = peers(desk, topic, credit=150)
    shared, alone = found[0], peers(desk, desk.topic("single", durability="memory"), 1, credit=150)[0]
    for number in range(4):
        for name in (topic.name, "single"):
            desk.write(desk.parts.catalog.get(name), [b"%d" % number * 20])
        for peer in (*found, alone):
            peer.receive()
    [one], [other] = (list(peer.session.subscriptions.values()) for peer in (shared, alone))
    assert one.credit == other.credit <= 0
    [mine], [theirs] = (list(sub.feeds.values()) for sub in (one, other))
    assert mine.cursor == theirs.cursor and mine.behind
    assert shared.pushed() == alone.pushed()
    assert shared.session.bytes_out == alone.session.bytes_out


@needs_native
def test_one_whose_socket_is_full_gets_the_rest_from_its_outbox_in_order(
    desk: Desk, topic: Topic, calls: list[int]
) -> None:
    found = peers(desk, topic, MANY - 1)
    slow = peers(desk, topic, 1, Held)[0]
    assert isinstance(slow, Held)
    slow._pair[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    slow.held = True
    expected = []
    for number in range(30):
        expected.append(bytes([number]) * 2_000)
        desk.write(topic, [expected[-1]])
        for peer in found:
            peer.receive()
    assert slow.waiting  # it was full
    assert calls[-1] == MANY - 1  # and is left out from then on
    slow.let_go()
    for peer in (*found, slow):
        assert peer.pushed() == expected


@needs_native
def test_one_that_is_gone_disturbs_nobody(desk: Desk, topic: Topic) -> None:
    found = peers(desk, topic)
    gone = found.pop()
    gone._pair[1].close()
    desk.write(topic, [b"one"])
    assert [peer.pushed() for peer in found] == [[b"one"]] * len(found)


@needs_native
@pytest.mark.parametrize("why", ["paused", "closing", "buffered", "leaving", "waiting"])
def test_who_has_something_before_it_is_served_by_itself(desk: Desk, topic: Topic, calls: list[int], why: str) -> None:
    found = peers(desk, topic)
    odd = found[0]
    if why == "paused":
        odd.session.pause_writing()
    elif why == "closing":
        odd.closing = True
    elif why == "buffered":
        odd.buffered = 1
    elif why == "leaving":
        odd.session.eof_received()
        odd.session._leaving = True
    else:
        odd.session._out.append(b"")
    desk.write(topic, [b"one"])
    assert calls == [MANY - 1]
    assert odd.direct == 0


@needs_native
def test_tags_are_looked_for_once_for_all_that_want_the_same(
    desk: Desk, topic: Topic, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = peers(desk, topic)
    eu = peers(desk, topic, match=["tag", "Eq", "eu"])
    us = peers(desk, topic, match=["tag", "Eq", "us"])
    desk.write(topic, [b"from eu"], tags=b"eu")
    assert [peer.pushed() for peer in (*everything, *eu)] == [[b"from eu"]] * 2 * MANY
    assert [peer.pushed() for peer in us] == [[]] * MANY
    assert calls == [MANY, MANY]
    assert all(
        not feed.behind for peer in us for sub in peer.session.subscriptions.values() for feed in sub.feeds.values()
    )


@pytest.mark.parametrize("seed", range(4))
def test_every_record_once_and_in_order_however_they_read(desk: Desk, topic: Topic, seed: int) -> None:
    chance = random.Random(seed)
    found = peers(desk, topic, MANY, Held, credit=3_000)
    got: dict[Peer, list[bytes]] = {peer: [] for peer in found}
    sent: list[bytes] = []
    for number in range(40):
        batch = [b"%d-%d" % (number, n) * chance.choice((1, 100)) for n in range(chance.randint(1, 3))]
        desk.write(topic, batch)
        sent += batch
        for peer in found:
            assert isinstance(peer, Held)
            if chance.random() < 0.3:
                peer.held = not peer.held
                if not peer.held:
                    peer.let_go()
            if chance.random() < 0.5 and not peer.held:
                got[peer] += peer.pushed()
                [sub] = peer.session.subscriptions
                peer.send(Op.CREDIT, CREDIT.pack(sub, 3_000))
    for peer in found:
        assert isinstance(peer, Held)
        peer.let_go()
        for _ in range(60):
            [sub] = peer.session.subscriptions
            peer.send(Op.CREDIT, CREDIT.pack(sub, 3_000))
            got[peer] += peer.pushed()
        assert got[peer] == sent
