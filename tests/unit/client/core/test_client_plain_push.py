"""The short way of a watch that keeps up: what it takes it takes as the long way would, and what it does not know it
leaves alone."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgpack
import pytest

from topicd._native import core
from topicd.client.core.decode import decoder_of
from topicd.client.core.records import Gap, Record
from topicd.client.core.watching import Feed, Watching, wanted_by
from topicd.ipc.protocol.cutter import Cutter
from topicd.ipc.protocol.following import Following
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import FETCHED, message

TOPIC_ID = 7
WINDOW = 4_000


def frames(first: int, count: int) -> bytes:
    batch = bytearray(core.encode_batch([b"data-%d" % n for n in range(first, first + count)], None, None, None))
    core.stamp_frames(batch, 0, len(batch), TOPIC_ID, first, 1_000, False)
    return bytes(batch)


def push(first: int, count: int, *, extras: bytes = b"", topic_id: int = TOPIC_ID) -> bytes:
    last = first + count - 1
    body = FETCHED.pack(topic_id, last, last, 1, count, len(extras)) + extras + frames(first, count)
    return message(Op.PUSH, 0, body)


def gap(first: int, last: int) -> bytes:
    told = {"gap_from": first, "gap_to": last, "reason": "cap", "missed_estimate": 1, "earliest_seq": 1, "head_seq": 9}
    return msgpack.packb({"tombstone": told})


class Reader:
    """A watch on a socket whose every receive is given by the test."""

    def __init__(self, *, short: bool, decode: Any = None) -> None:
        wanted = wanted_by("t", 0, None, None)
        self.watching: Watching[Feed[Any]] = Watching(wanted, "yield", WINDOW, decode)
        following = Following(wanted, ["t"], WINDOW)
        following.accepted({"topics": [{"topic": "t", "topic_id": TOPIC_ID, "from_seq": 0}]}, 1)
        self.feed: Feed[Any] = Feed(0, following)
        self.feed.connection = self.connection = SimpleNamespace(cutter=Cutter())
        self.short = short
        self.taken_short = 0
        self.credits: list[bytes] = []
        self.events: list[Any] = []

    def receive(self, data: bytes) -> None:
        cutter, watching = self.connection.cutter, self.watching
        self._done()
        window = cutter.window()
        window[: len(data)] = data
        if self.short and not cutter.pending:
            first = watching.take_plain(self.feed, self.connection, len(data))
            if first is not None:
                self.taken_short += 1
                self._all(first)
                return
        cutter.received(len(data))
        while (arrived := cutter.take()) is not None:
            if credit := watching.take(self.feed, self.connection, arrived):
                self.credits.append(credit)
        while watching.waiting:
            self._done()
            self._all(watching.begin(watching.next_batch()))

    def _all(self, event: Any) -> None:
        while event is not None:
            self.events.append(event)
            event = self.watching.next_record()

    def _done(self) -> None:
        if (done := self.watching.done_with()) is not None:
            assert done[0] is self.connection
            self.credits.append(done[1])


def told(reader: Reader) -> list[tuple[Any, ...]]:
    return [
        (e.topic, e.seq, e.ts, e.data) if isinstance(e, Record) else (e.first_seq, e.last_seq) for e in reader.events
    ]


@pytest.mark.parametrize("seed", range(8))
def test_both_ways_tell_the_same_and_give_the_same_credit_back(seed: int) -> None:
    dice = random.Random(seed)
    short, long = Reader(short=True), Reader(short=False)
    at = 1
    for _ in range(60):
        count = dice.choice((1, 1, 1, 2, 5))
        kind = dice.random()
        if kind < 0.6:
            data = push(at, count)
        elif kind < 0.7:
            data = push(max(1, at - 2), count + 2)  # some of it was there before
            at, count = max(1, at - 2), count + 2
        elif kind < 0.8:
            data = push(at + 3, count, extras=gap(at, at + 2))
            at += 3
        elif kind < 0.9:
            data = push(at, count) + push(at + count, 1)
            count += 1
        else:
            data = message(Op.NOTICE, 0, msgpack.packb({"event": "lagged", "topic_id": TOPIC_ID}))
            count = 0
        at += count
        for reader in (short, long):
            reader.receive(data)
    assert told(short) == told(long)
    assert short.credits == long.credits != []
    assert short.watching.cursors() == long.watching.cursors()
    assert short.taken_short > 20
    assert long.taken_short == 0


def test_values_are_decoded_on_the_short_way_too() -> None:
    reader = Reader(short=True, decode=decoder_of(lambda data: data.decode().upper()))
    reader.receive(push(1, 1))
    reader.receive(push(2, 2))
    assert [event.value for event in reader.events] == ["DATA-1", "DATA-2", "DATA-3"]
    assert reader.taken_short == 2


@pytest.mark.parametrize(
    "data",
    [
        push(1, 1)[:-1],
        push(1, 1) + b"x",
        push(1, 1, topic_id=TOPIC_ID + 1),
        push(2, 1, extras=gap(1, 1)),
        push(1, 1)[:20],
        message(Op.NOTICE, 0, msgpack.packb({"event": "lagged"})),
    ],
    ids=["not whole", "more behind it", "another topic", "a gap", "less than a head", "a notice"],
)
def test_what_is_no_plain_push_is_left_as_it_came(data: bytes) -> None:
    reader = Reader(short=True)
    reader.connection.cutter.window()[: len(data)] = data
    before = reader.watching.cursors()
    assert reader.watching.take_plain(reader.feed, reader.connection, len(data)) is None
    assert reader.watching.cursors() == before
    assert reader.watching.done_with() is None


def test_a_gap_is_told_after_short_ways() -> None:
    reader = Reader(short=True)
    reader.receive(push(1, 1))
    reader.receive(push(4, 1, extras=gap(2, 3)))
    assert [type(event) for event in reader.events] == [Record, Gap, Record]
