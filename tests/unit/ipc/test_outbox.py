"""The order of batches against a daemon that follows the rules and refuses, forgets and disappears at any moment."""

from __future__ import annotations

import contextlib
import random

import pytest

from topicd.errors import (
    ConnectionLost,
    OutOfOrder,
    Throttled,
    TopicdError,
    TopicFull,
    TopicNotFound,
)
from topicd.ipc.protocol.outbox import OutBatch, TopicOutbox
from topicd.ipc.protocol.retry import Backoff


class Daemon:
    """One topic: the contract for numbers, nothing else."""

    def __init__(self) -> None:
        self.log: list[bytes] = []
        self.last: dict[int, int] = {}
        self.answers: dict[tuple[int, int], int] = {}

    def append(self, producer: int, number: int, data: bytes) -> int:
        if (producer, number) in self.answers:
            return self.answers[producer, number]
        if number != self.last.get(producer, 0) + 1:
            raise OutOfOrder("out of order", expected=self.last.get(producer, 0) + 1)
        self.log.append(data)
        self.last[producer] = number
        self.answers[producer, number] = len(self.log)
        return len(self.log)


class Rig:
    def __init__(self, window: int = 8) -> None:
        self.daemon = Daemon()
        self.outbox = TopicOutbox("t", Backoff(lambda: 0.0))
        self.outbox.opened(1)
        self.window = window
        self.wire: list[OutBatch] = []
        self.batches: list[OutBatch] = []
        self.now = 0.0

    def put(self, count: int) -> None:
        for _ in range(count):
            batch = OutBatch(self.outbox, b"%d" % len(self.batches), 1, 1e9)
            self.batches.append(batch)
            self.outbox.waiting.append(batch)

    def send(self) -> None:
        while self.outbox.sendable(self.window, self.now):
            self.wire.append(self.outbox.send())

    def serve(self, refuse: TopicdError | None = None) -> None:
        """The daemon takes the oldest request; `refuse` is what it says if nothing else is wrong."""
        batch = self.wire.pop(0)
        try:
            key = (self.outbox.producer_id, batch.number)
            if refuse is not None and key not in self.daemon.answers:
                if batch.number != self.daemon.last.get(key[0], 0) + 1:
                    raise OutOfOrder("out of order", expected=self.daemon.last.get(key[0], 0) + 1)
                raise refuse
            seq = self.daemon.append(*key, bytes(batch.frames))
        except TopicdError as exc:
            self.outbox.refuse(batch, exc)
        else:
            self.outbox.acked(batch, seq, False)
        if self.outbox.refused and not self.outbox.outstanding:
            self.outbox.regroup(self.now)

    def lose(self, stored: int) -> None:
        """The connection breaks after the daemon has acted upon some requests whose answers never came."""
        for batch in self.wire[:stored]:
            with contextlib.suppress(OutOfOrder):
                self.daemon.append(self.outbox.producer_id, batch.number, bytes(batch.frames))
        self.wire.clear()
        self.outbox.disconnected(self.now)

    def finish(self) -> None:
        while not self.outbox.idle:
            self.now = max(self.now, self.outbox.not_before)
            self.send()
            while self.wire:
                self.serve()

    def check(self) -> None:
        stored = [b for b in self.batches if b.error is None]
        assert all(batch.done for batch in self.batches)
        assert self.daemon.log == [b"%d" % i for i, b in enumerate(self.batches) if b.error is None]
        assert [batch.first_seq for batch in stored] == list(range(1, len(stored) + 1))


def test_batches_are_stored_in_order() -> None:
    rig = Rig()
    rig.put(20)
    rig.finish()
    rig.check()
    assert {b.error for b in rig.batches} == {None}


def test_one_batch_goes_first_and_the_window_opens_with_its_answer() -> None:
    rig = Rig(window=5)
    rig.put(10)
    rig.send()
    assert len(rig.wire) == 1
    rig.serve()
    rig.send()
    assert len(rig.wire) == 5


@pytest.mark.parametrize("answered", range(6))
@pytest.mark.parametrize("stored", range(6))
def test_a_cut_at_any_point_neither_loses_nor_doubles(answered: int, stored: int) -> None:
    rig = Rig(window=5)
    rig.put(12)
    rig.send()
    rig.serve()
    rig.send()
    for _ in range(min(answered, len(rig.wire))):
        rig.serve()
    rig.lose(stored)
    rig.finish()
    rig.check()
    assert len(rig.daemon.log) == 12


@pytest.mark.parametrize("at", range(5))
def test_a_temporary_refusal_keeps_the_order(at: int) -> None:
    rig = Rig(window=5)
    rig.put(12)
    rig.send()
    rig.serve()
    rig.send()
    for n in range(5):
        rig.serve(Throttled("full", retry_after_ms=50) if n == at else None)
    assert rig.outbox.not_before > 0
    rig.finish()
    rig.check()
    assert len(rig.daemon.log) == 12


@pytest.mark.parametrize("at", range(5))
def test_a_final_refusal_fails_one_batch_and_the_others_close_ranks(at: int) -> None:
    rig = Rig(window=5)
    rig.put(12)
    rig.send()
    rig.serve()
    rig.send()
    for n in range(5):
        rig.serve(TopicFull("full") if n == at else None)
    rig.finish()
    rig.check()
    assert [type(b.error) for b in rig.batches].count(TopicFull) == 1
    assert isinstance(rig.batches[1 + at].error, TopicFull)


def test_the_very_first_batch_may_be_refused_for_good() -> None:
    rig = Rig()
    rig.put(3)
    rig.send()
    rig.serve(TopicFull("full"))
    rig.finish()
    rig.check()
    assert rig.daemon.log == [b"1", b"2"]


def test_halting_lines_store_nothing_behind_a_refused_batch() -> None:
    rig = Rig(window=5)
    rig.outbox = TopicOutbox("t", Backoff(lambda: 0.0), halt=True)
    rig.outbox.opened(1)
    rig.put(10)
    rig.send()
    rig.serve()
    rig.send()
    rig.serve()
    rig.serve(TopicFull("full"))
    rig.finish()
    assert rig.daemon.log == [b"0", b"1"]
    assert [b.error is None for b in rig.batches] == [True] * 2 + [False] * 8


def test_a_producer_that_was_forgotten_begins_anew() -> None:
    rig = Rig(window=4)
    rig.put(4)
    rig.finish()
    rig.daemon.last.clear()
    rig.daemon.answers.clear()
    rig.put(6)
    rig.finish()
    rig.check()
    assert len(rig.daemon.log) == 10


def test_a_topic_made_anew_is_numbered_from_the_start() -> None:
    rig = Rig(window=4)
    rig.put(5)
    rig.finish()
    rig.daemon = Daemon()
    rig.put(6)
    rig.send()
    while rig.wire:
        rig.outbox.refuse(rig.wire.pop(0), TopicNotFound("gone"))
    rig.outbox.regroup(rig.now)
    assert rig.outbox.topic_id == 0
    rig.outbox.opened(2)
    rig.finish()
    assert rig.daemon.log == [b"%d" % n for n in range(5, 11)]


def test_a_topic_that_stays_away_fails_its_batches() -> None:
    rig = Rig()
    rig.put(1)
    for topic_id in (1, 2):
        rig.outbox.opened(topic_id)
        rig.send()
        rig.outbox.refuse(rig.wire.pop(0), TopicNotFound("gone"))
        rig.outbox.regroup(rig.now)
    assert isinstance(rig.batches[0].error, TopicNotFound)
    assert rig.batches[0].done


def test_what_waited_too_long_fails_and_what_follows_is_stored() -> None:
    rig = Rig(window=4)
    rig.put(1)
    rig.finish()
    rig.put(3)
    rig.send()
    rig.lose(stored=0)
    rig.batches[1].deadline = 5.0
    rig.outbox.expire(6.0, ConnectionLost("down"))
    assert isinstance(rig.batches[1].error, ConnectionLost)
    rig.finish()
    assert rig.daemon.log == [b"0", b"2", b"3"]


def test_an_answer_after_the_deadline_changes_nothing() -> None:
    rig = Rig()
    rig.put(1)
    rig.send()
    rig.batches[0].deadline = 1.0
    rig.outbox.expire(2.0, None)
    error = rig.batches[0].error
    assert isinstance(error, ConnectionLost)
    rig.serve()
    assert rig.batches[0].error is error
    assert rig.outbox.idle


@pytest.mark.parametrize("seed", range(150))
def test_anything_may_happen_and_the_log_is_right(seed: int) -> None:
    chance = random.Random(seed)
    rig = Rig(window=chance.choice([1, 2, 5, 16]))
    for _ in range(60):
        rig.put(chance.randint(0, 4))
        rig.now = max(rig.now, rig.outbox.not_before)
        rig.send()
        for _ in range(chance.randint(0, 8)):
            if not rig.wire:
                break
            trouble: list[TopicdError | None] = [Throttled("full"), TopicFull("full")]
            rig.serve(chance.choice(trouble) if chance.random() < 0.15 else None)
        if chance.random() < 0.15:
            rig.lose(chance.randint(0, 8))
    rig.finish()
    rig.check()
