"""From the lanes to whoever gets them: what fits, what cannot be read, limits of the queue."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.jobs import Claimed
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


class Worker:
    """Finishes what it holds with the claim of what comes next."""

    def __init__(self) -> None:
        self.held: Claimed | None = None

    def step(self, hands: Hands, ending: str, most: int) -> tuple[Any, ...]:
        before, self.held = self.held, None
        if before is None or not before.jobs:
            self.held = hands.claim(most)
        elif ending in ("fail", "release"):
            return hands.nack(before, kind=ending, delay_ms=0)["nacked"], ending
        elif ending == "one":
            some = before._replace(jobs=before.jobs[:1])
            self.held = before._replace(jobs=before.jobs[1:])
            return hands.done(some)[3:], ending
        else:
            self.held = hands.claim_after(before, most)
        return self.held._replace(topic_id=0), ending

    @staticmethod
    def together(team: list[Worker], hands: Hands) -> list[Claimed]:
        """All that hold something take their next job in the same turn."""
        busy = [one for one in team if one.held is not None and one.held.jobs]
        asked = [hands.begin_claim(done=[(job.seq, job.lease) for job in one.held.jobs]) for one in busy if one.held]
        for one, request_id in zip(busy, asked, strict=True):
            one.held = hands.claimed(request_id)
        return [one.held._replace(topic_id=0) for one in busy if one.held is not None]


def _check_counts(desk: Desk, hands: Hands) -> None:
    """What is counted is what is there."""
    topic, live = hands.topic, desk.parts.live
    assert (topic.contents.count, topic.contents.bytes) == live.within(topic, 1, topic.seqs.visible)
    assert topic.floors.earliest == live.first_from(topic, topic.floors.earliest)


@pytest.mark.parametrize("seed", range(6))
def test_the_next_job_comes_the_short_way_as_by_the_long_one(open_desk: Callable[..., Desk], seed: int) -> None:
    desk, chance = open_desk(segment_max_records=_records_of_segments(seed)).serve(), random.Random(seed)
    ways = [Hands(desk, "short"), Hands(desk, "long", max_in_flight=1_000)]
    teams = [[Worker() for _ in range(3)] for _ in ways]
    for _ in range(250):
        what, who, count = chance.random(), chance.randrange(3), chance.randrange(1, 6)
        priority, size = 4 if seed % 2 else chance.choice([4, 4, 4, 4, 7]), chance.randrange(1, 300)
        ending, most = chance.choice(["next"] * 12 + ["fail", "release", "one"]), chance.choice([1, 1, 1, 3])
        delay_ms = 0 if seed % 2 else chance.choice([0, 0, 0, 500])
        told = []
        for hands, team in zip(ways, teams, strict=True):
            if what < 0.2:
                told.append(hands.put(bytes(size), priority=priority, delay_ms=delay_ms)[0])
            elif what < 0.4:
                told.append([one[2] for one in desk.write(hands.topic, [bytes(size)] * count)])
            elif what < 0.6:
                told.append(Worker.together(team, hands))
            else:
                told.append(team[who].step(hands, ending, most))
            _check_counts(desk, hands)
        assert told[0] == told[1]
        if what > 0.95:
            desk.checkpoint()
        elif what > 0.9:
            desk.clock.advance(chance.choice([10, 1_000, 31_000]))
            desk.settle()
    assert ways[0].jobs.totals.row == ways[1].jobs.totals.row and ways[0].jobs.totals.acked > 50


@pytest.mark.parametrize("seed", range(3))
def test_a_job_is_pushed_the_short_way_as_by_the_long_one(desk: Desk, seed: int) -> None:
    chance = random.Random(seed)
    ways = [Hands(desk, "short"), Hands(desk, "long", max_in_flight=1_000)]
    lines, held = [desk.line(), desk.line()], [list[tuple[int, int]]() for _ in ways]
    for hands, line in zip(ways, lines, strict=True):
        hands.work(3, line)
    for _ in range(150):
        what, count, which = chance.random(), chance.randrange(1, 4), chance.randrange(3)
        told = []
        for hands, line, mine in zip(ways, lines, held, strict=True):
            if what < 0.5:
                desk.write(hands.topic, [b"job"] * count)
            elif mine:
                hands.ack([mine.pop(which % len(mine))])
            pushed = [claimed._replace(topic_id=0) for claimed in hands.pushed(line)]
            mine += [(job.seq, job.lease) for claimed in pushed for job in claimed.jobs]
            told.append((pushed, hands.counts()))
            assert hands.counts()[1] == len(mine) <= 3
            _check_counts(desk, hands)
        assert told[0] == told[1]
    for hands, line in zip(ways, lines, strict=True):
        line.session.connection_lost(None)
        desk.settle()
        assert hands.counts()[1] == 0


def _records_of_segments(seed: int) -> int:
    """Few, so that jobs end in sealed and in open ones, or many."""
    return (8, 20, 10_000)[seed % 3]
