"""From the lanes to whoever gets them: what fits, what cannot be read, limits of the queue."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.queues.hands import Hands
from topicd.shards.delivery.queues import handing
from topicd.shards.delivery.topic.contents import Damaged


def test_what_does_not_fit_an_answer_stays_ready(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing, "BATCH_BYTES", 1_000)
    hands = Hands(desk)
    desk.write(hands.topic, [bytes(400)] * 5)
    first = hands.claim(5)
    assert first.seqs == [1, 2] and first.ready == 3
    assert hands.claim(5).seqs == [3, 4] and hands.claim(5).seqs == [5]


def test_one_job_is_handed_out_however_large(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handing, "BATCH_BYTES", 100)
    hands = Hands(desk)
    desk.write(hands.topic, [bytes(4_000)] * 2)
    assert hands.claim(5).seqs == [1]


def test_a_record_that_cannot_be_read_keeps_nobody_waiting(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(5)
    hands.topic.contents.damaged.append(Damaged(2, 3, "somewhere"))
    seqs = hands.claim(5).seqs
    seqs += hands.claim(5).seqs
    seqs += hands.claim(5).seqs
    assert sorted(seqs) == [1, 4, 5]
    assert "cannot be read" in hands.why(2)["because"][0]


def test_no_more_in_flight_than_the_queue_allows(desk: Desk) -> None:
    hands = Hands(desk, max_in_flight=3)
    hands.write(10)
    first = hands.claim(10)
    assert first.seqs == [1, 2, 3] and hands.claim(10).jobs == []
    assert "max_in_flight" in " ".join(hands.why()["because"])
    hands.work(5)
    assert hands.pushed() == []
    hands.done(first)
    assert [seq for claimed in hands.pushed() for seq in claimed.seqs] == [4, 5, 6]


def test_no_faster_than_the_queue_allows_and_nobody_polls(desk: Desk) -> None:
    hands = Hands(desk, rate_per_s=4)
    hands.write(10)
    hands.work(10)
    got: list[tuple[int, int]] = []
    for ms in range(0, 2_000, 10):
        hands.advance(10)
        got += [(ms, seq) for claimed in hands.pushed() for seq in claimed.seqs]
    assert [seq for _, seq in got] == list(range(1, len(got) + 1)) and 8 <= len(got) <= 9


def test_leases_that_outlive_a_restart_are_stored_before_the_job_is_seen(desk: Desk) -> None:
    hands = Hands(desk, leases_durable=True)
    hands.write(2)
    waiting = hands.begin_claim(2)
    assert not hands.line.answers and hands.jobs.in_flight == 2
    assert hands.claimed(waiting).seqs == [1, 2]


def test_numbers_grow_and_a_mark_in_the_log_is_ahead_of_them(desk: Desk) -> None:
    hands = Hands(desk)
    hands.write(3)
    numbers = [hands.claim().jobs[0].lease for _ in range(3)]
    assert numbers == sorted(set(numbers))
    marks = [body["mark"] for _, body in desk.wal.frames() if body and "mark" in body]
    assert marks and marks[-1] > numbers[-1]
