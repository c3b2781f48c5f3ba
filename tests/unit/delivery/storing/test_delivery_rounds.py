"""When checkpoints happen: by size, by time, for who waits, again after a failure, and never two at a time."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk
from topicd.limits import KIB
from topicd.shards.delivery.storing.rounds import Rounds
from topicd.shards.delivery.topic.topic import Topic

BOUND = 64 * KIB


@pytest.fixture
def desk(open_desk: Callable[..., Desk]) -> Desk:
    return open_desk(checkpoint_bytes=BOUND)


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return desk.topic(durability="memory")


@pytest.fixture
def rounds(desk: Desk, topic: Topic) -> Rounds:
    desk.serve()
    return desk.parts.rounds


def test_a_little_waits_for_its_time_and_much_does_not(desk: Desk, topic: Topic, rounds: Rounds) -> None:
    done = rounds.done
    desk.write(topic, [b"x"])
    assert (rounds.done, topic.seqs.stored, rounds._timer is not None) == (done, 0, True)
    while desk.parts.backlog.tail_bytes:
        desk.write(topic, [bytes(8 * KIB)])
        assert desk.parts.backlog.tail_bytes < BOUND
    assert rounds.done == done + 1
    assert topic.seqs.stored > 1


def test_before_recovery_is_over_nothing_starts(desk: Desk, topic: Topic) -> None:
    desk.write(topic, [bytes(8 * KIB)] * 9)
    desk.parts.rounds.checkpoint_now()
    desk.settle()
    assert (desk.parts.rounds.done, topic.seqs.stored) == (0, 0)


def test_recovery_is_relieved_of_what_exceeds_memory(desk: Desk, topic: Topic) -> None:
    for _ in range(40):
        desk.write(topic, [bytes(8 * KIB)])
        list(desk.parts.rounds.relieve())
        assert desk.parts.backlog.tail_bytes < 4 * BOUND + 9 * KIB
    assert topic.seqs.stored > 0


def test_the_segments_wait_for_the_log(desk: Desk, topic: Topic, rounds: Rounds) -> None:
    """Else a loss of power would leave half a batch in them."""
    desk.append(topic, [b"x"])
    desk.parts.turn.end()
    rounds.checkpoint_now()
    for _ in range(5):
        desk.turn()
    assert topic.seqs.stored == 0
    desk.settle()
    assert topic.seqs.stored == 1


def test_one_round_at_a_time_and_none_is_forgotten(desk: Desk, topic: Topic, rounds: Rounds) -> None:
    done = rounds.done
    desk.append(topic, [b"x"])
    desk.parts.turn.end()
    for _ in range(3):
        rounds.checkpoint_now()
    assert len(asyncio.all_tasks(desk.loop)) == 1
    desk.settle()
    assert rounds.done == done + 2  # the one under way, and one more for those who asked meanwhile


def test_a_failure_is_known_and_tried_again(desk: Desk, topic: Topic, rounds: Rounds) -> None:
    desk.write(topic, [b"x"])
    desk.fail_disk(lambda name, path: "topics" in path.parts, errno.ENOSPC)
    desk.checkpoint()
    assert (rounds.failed, desk.parts.pressure.failing, rounds._timer is not None) == (1, errno.ENOSPC, True)
    assert rounds.page()["checkpoint_failures"] == 1
    desk.mend_disk()
    desk.checkpoint()
    assert (desk.parts.pressure.failing, topic.seqs.stored) == (0, 1)


def test_a_fault_of_our_own_fails_the_round_and_not_the_shard(
    desk: Desk, topic: Topic, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.write(topic, [b"x"])
    with monkeypatch.context() as patch:
        patch.setattr(rounds._apply, "results", lambda *args: 1 / 0)
        desk.checkpoint()
    assert (rounds.failed, rounds._round) == (1, None)
    desk.checkpoint()
    assert topic.seqs.stored == 1


def test_an_old_segment_is_sealed_though_nothing_comes(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(segment_max_age_ms=1000).serve()
    topic = desk.topic(durability="memory")
    desk.write(topic, [b"x"])
    desk.checkpoint()
    desk.clock.advance(999)
    desk.parts.tick()
    desk.settle()
    assert not topic.contents.segments[0].sealed
    desk.clock.advance(1)
    desk.parts.tick()
    desk.settle()
    assert topic.contents.segments[0].sealed


def test_debris_is_cleared_by_the_next_tick(desk: Desk, topic: Topic, rounds: Rounds) -> None:
    topic.flight.debris = True
    desk.parts.backlog.debris[topic.id] = topic
    rounds.tick()
    desk.settle()
    assert (topic.flight.debris, desk.parts.backlog.debris) == (False, {})


@pytest.mark.parametrize("together", [1, 2, 7, 100])
def test_a_full_checkpoint_goes_through_the_topics_in_rounds_of_so_many(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, together: int
) -> None:
    monkeypatch.setattr("topicd.shards.delivery.storing.rounds._TOPICS", together)
    desk.serve()
    topics = [desk.topic(f"t{number}") for number in range(7)]
    planned: list[int] = []
    rounds, stored = desk.parts.rounds, desk.parts.snapshots._stored
    plan = rounds._plan
    monkeypatch.setattr(rounds, "_plan", lambda full: planned.append(0) or plan(full=full))  # type: ignore[func-returns-value]
    for topic in topics:
        desk.write(topic, [b"x"])
    desk.checkpoint()
    assert [topic.seqs.stored for topic in topics] == [1] * 7
    assert len(planned) >= -(-7 // together)
    assert desk.parts.snapshots._stored > stored  # the log may forget them when the last of them is stored
    assert desk.parts.backlog.dirty == {}


def test_a_round_that_fails_lets_the_log_forget_nothing_and_the_next_goes_on(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topicd.shards.delivery.storing.rounds._TOPICS", 2)
    desk.serve()
    topics = [desk.topic(f"t{number}") for number in range(5)]
    for topic in topics:
        desk.write(topic, [b"x"])
    before = desk.parts.snapshots._stored
    third = desk.parts.place.topic_dir(topics[2].id)
    desk.fail_disk(lambda name, path: third in (path, path.parent))
    desk.parts.rounds.checkpoint_now()
    desk.settle()
    assert (topics[2].seqs.stored, desk.parts.snapshots._stored) == (0, before)
    desk.mend_disk()
    desk.checkpoint()
    assert [topic.seqs.stored for topic in topics] == [1] * 5
    assert desk.parts.snapshots._stored > before


def test_a_tick_counts_all_bytes_again(desk: Desk, topic: Topic, rounds: Rounds) -> None:
    desk.write(topic, [bytes(100)])
    desk.parts.backlog.total_bytes = 12345
    desk.parts.tick()
    desk.settle()
    assert desk.parts.backlog.total_bytes == rounds.page()["stored_bytes"] == 100


def test_a_deleted_topic_loses_its_directory_but_not_under_a_round(desk: Desk, topic: Topic, rounds: Rounds) -> None:
    desk.write(topic, [b"x"])
    desk.checkpoint()
    place = desk.parts.place.topic_dir(topic.id)
    desk.append(topic, [b"y"])
    desk.parts.turn.end()
    rounds.checkpoint_now()
    desk.parts.backlog.forget(topic)
    assert desk.disk.exists(place)
    desk.settle()
    assert not desk.disk.exists(place)
    assert desk.parts.backlog.doomed == []


def test_who_waits_for_a_direct_write_waits_for_no_timer(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(direct_bytes=1000, direct_writes="synced").serve()
    topic = desk.topic(durability="fsync")
    told = desk.write(topic, [bytes(2000)], producer=7, number=1)
    assert [one.how for one in told] == ["appended"]
    assert topic.seqs.stored == 1


def test_closing_stores_everything_and_says_so(desk: Desk, topic: Topic, rounds: Rounds) -> None:
    desk.write(topic, [b"x"] * 3)
    saved = desk.parts.snapshots.saved
    closing = desk.loop.create_task(rounds.close())
    desk.settle()
    assert closing.done()
    assert (topic.seqs.stored, desk.parts.backlog.tail_bytes, desk.parts.snapshots.saved) == (3, 0, saved + 1)


def test_closing_without_a_wal_shard_leaves_everything_to_the_log(desk: Desk, topic: Topic, rounds: Rounds) -> None:
    desk.write(topic, [b"x"])
    saved, desk.parts.wal_sync.wal_is_away = desk.parts.snapshots.saved, True
    closing = desk.loop.create_task(rounds.close())
    desk.settle()
    assert (closing.done(), topic.seqs.stored, desk.parts.snapshots.saved) == (True, 0, saved)


def test_writers_that_waited_go_on_after_a_round(desk: Desk, topic: Topic, rounds: Rounds) -> None:
    line = desk.line()
    line.session._wait_for_checkpoint()
    assert not line.reading
    desk.write(topic, [b"x"])
    desk.checkpoint()
    assert line.reading
