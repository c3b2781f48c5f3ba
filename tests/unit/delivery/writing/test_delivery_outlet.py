"""The way to one WAL shard, with a real ring in shared memory and a WAL shard that does as the test says."""

from __future__ import annotations

import errno
import os
import random
from dataclasses import dataclass, field

import pytest

from tests.unit.delivery.kit import Note, Wal, make_outlet
from topicd import paths
from topicd.frames import FrameType, control_frame, parse_header
from topicd.ipc import doorbell
from topicd.ipc.doorbell import Doorbell
from topicd.ipc.ring import RingProducer
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.outlet import Outlet

CAPACITY = 1000


@dataclass
class Pair:
    outlet: Outlet
    wal: Wal
    bell: Doorbell
    story: list[str] = field(default_factory=list)

    def submit(self, name: str, need: Need, *parts: bytes) -> Note:
        entry = Note(name, need, self.story)
        self.outlet.submit(parts, sum(len(part) for part in parts), entry)
        return entry


@pytest.fixture
def pair(instance: str) -> Pair:
    bells = doorbell.create_words(paths.bells_shm(instance), 1, instance)
    bell = Doorbell(bells, 0, doorbell.create_fd())
    return Pair(*make_outlet(instance, bell, CAPACITY), bell)


# ---- telling ----


def test_each_class_is_told_when_its_condition_is_met(pair: Pair) -> None:
    pair.submit("memory", Need.PLACED, b"m" * 10)
    pair.submit("disk", Need.WRITTEN, b"d" * 10)
    pair.submit("fsync", Need.SYNCED, b"f" * 10)
    assert pair.story == ["memory"]
    assert not pair.outlet.collect()
    pair.wal.write()
    assert pair.outlet.collect()
    assert pair.story == ["memory", "disk"]
    pair.wal.sync()
    assert pair.outlet.collect()
    assert pair.story == ["memory", "disk", "fsync"]
    assert pair.outlet.idle
    assert pair.outlet.in_flight_bytes == 0
    assert pair.wal.log == b"m" * 10 + b"d" * 10 + b"f" * 10


def test_entries_are_told_once(pair: Pair) -> None:
    pair.submit("a", Need.WRITTEN, b"x")
    pair.wal.write()
    pair.wal.sync()
    pair.outlet.collect()
    assert not pair.outlet.collect()
    assert pair.story == ["a"]


def test_only_what_the_counter_covers_is_told(pair: Pair) -> None:
    for name in "abc":
        pair.submit(name, Need.WRITTEN, b"x" * 10)
    pair.wal.write(up_to=25)
    pair.outlet.collect()
    assert pair.story == ["a", "b"]


@pytest.mark.parametrize("need", [Need.WRITTEN, Need.SYNCED])
def test_the_counters_say_when_the_oldest_is_stored(pair: Pair, need: Need) -> None:
    assert pair.outlet.under_way == 0
    pair.submit("a", need, b"x" * 10)
    assert pair.outlet.under_way == 1
    assert not pair.outlet.oldest_is_stored
    pair.wal.write()
    assert pair.outlet.oldest_is_stored == (need is Need.WRITTEN)
    pair.wal.sync()
    assert pair.outlet.oldest_is_stored
    assert pair.story == []  # looking tells nobody: collect does
    pair.outlet.collect()
    assert not pair.outlet.oldest_is_stored
    assert pair.outlet.under_way == 0


class Awaited(Note):
    """A few subscribers wait for it."""

    __slots__ = ()

    @property
    def awaited(self) -> bool:
        return True


@pytest.mark.parametrize(("kind", "story"), [(Note, ["answers sent", "a"]), (Awaited, ["a"])])
def test_answers_go_out_at_once_unless_somebody_waits_for_the_records(
    pair: Pair, kind: type[Note], story: list[str]
) -> None:
    """Then the turn sends them at the end of the turn, behind the pushes."""
    pair.outlet.send_answers = lambda: pair.story.append("answers sent")
    pair.outlet.submit([b"x"], 1, kind("a", Need.WRITTEN, pair.story))
    pair.wal.write()
    pair.outlet.collect()
    assert pair.story == story


def test_written_then_synced_are_told_in_the_order_of_the_ring_when_both_came_true_at_once(pair: Pair) -> None:
    """A topic's later batch may need the sync; the earlier one must become visible first."""
    pair.submit("first", Need.WRITTEN, b"x")
    pair.submit("second", Need.SYNCED, b"y")
    pair.wal.write()
    pair.wal.sync()
    pair.outlet.collect()
    assert pair.story == ["first", "second"]


def test_the_wal_shard_rings_for_a_write_that_is_waited_for(pair: Pair) -> None:
    pair.submit("memory", Need.PLACED, b"m")
    assert not pair.wal.write()
    pair.submit("disk", Need.WRITTEN, b"d")
    assert pair.wal.write()


def test_the_write_is_asked_for_before_it_is_placed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The WAL shard may run between two lines of ours: whoever finds the bytes must find the wish too."""
    rang = []
    place = RingProducer.try_write

    def placed_and_written_at_once(self: RingProducer, parts: object, size: int) -> int | None:
        end = place(self, parts, size)  # type: ignore[arg-type]
        rang.append(pair.wal.write())
        return end

    monkeypatch.setattr(RingProducer, "try_write", placed_and_written_at_once)
    pair.submit("disk", Need.WRITTEN, b"d")
    assert rang == [True]


def test_flush_rings_a_sleeper_once_for_many_entries(pair: Pair) -> None:
    pair.bell.announce()
    pair.submit("a", Need.WRITTEN, b"x")
    pair.submit("b", Need.WRITTEN, b"x")
    pair.outlet.flush()
    assert _rings(pair.bell) == 1
    pair.bell.announce()
    pair.outlet.flush()
    assert _rings(pair.bell) == 0


def _rings(bell: Doorbell) -> int:
    try:
        return os.eventfd_read(bell.fd)
    except BlockingIOError:
        return 0


def test_what_is_synced_is_no_longer_held(pair: Pair) -> None:
    for need in (Need.PLACED, Need.WRITTEN, Need.SYNCED):
        pair.submit(need.name, need, b"x" * 10)
    pair.wal.write()
    pair.outlet.collect()
    assert len(pair.outlet._visible) == 2
    pair.wal.sync()
    pair.outlet.collect()
    assert len(pair.outlet._visible) == 0


# ---- no room ----


def test_what_does_not_fit_waits_and_is_placed_in_order(pair: Pair) -> None:
    pair.submit("a", Need.WRITTEN, b"a" * 600)
    pair.submit("b", Need.WRITTEN, b"b" * 600)
    pair.submit("c", Need.WRITTEN, b"c" * 10)  # would fit, but must not overtake
    assert pair.wal.pending == 600
    assert pair.outlet.backlog_bytes == 610
    assert pair.wal.write()
    pair.outlet.collect()
    assert pair.story == ["a"]
    assert pair.outlet.backlog_bytes == 0
    pair.wal.write()
    pair.outlet.collect()
    assert pair.story == ["a", "b", "c"]
    assert pair.wal.log == b"a" * 600 + b"b" * 600 + b"c" * 10


@pytest.mark.parametrize("need", list(Need))
def test_whoever_waits_for_room_is_rung_when_there_is_some(pair: Pair, need: Need) -> None:
    """Also when nobody waits for the outcome of what fills the ring."""
    pair.submit("filler", Need.PLACED, b"f" * 900)
    pair.submit("waiting", need, b"w" * 200)
    assert pair.wal.write()


def test_room_made_while_asking_for_it_is_not_missed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.submit("filler", Need.PLACED, b"f" * 900)
    ask = RingProducer.want_write

    def written_before_it_was_asked_for(self: RingProducer, position: int) -> None:
        if pair.wal.pending:
            assert not pair.wal.write()
        ask(self, position)

    monkeypatch.setattr(RingProducer, "want_write", written_before_it_was_asked_for)
    pair.submit("waiting", Need.PLACED, b"w" * 200)
    assert pair.story == ["filler", "waiting"]


@pytest.mark.parametrize("need", list(Need))
def test_more_than_the_ring_holds_goes_through_in_parts(pair: Pair, need: Need) -> None:
    parts = [bytes([i]) * 700 for i in range(8)]
    pair.submit("big", need, *parts)
    for _ in range(20):
        if not pair.wal.pending:
            break
        waits_for_room = pair.outlet.backlog_bytes > 0
        rung = pair.wal.write()
        pair.wal.sync()
        pair.outlet.collect()
        assert rung or not waits_for_room
    assert pair.wal.log == b"".join(parts)
    assert pair.story == ["big"]
    assert pair.outlet.idle
    assert (pair.outlet.in_flight_bytes, pair.outlet.backlog_bytes) == (0, 0)


def test_nothing_is_told_while_parts_are_missing(pair: Pair) -> None:
    pair.submit("big", Need.PLACED, *[b"p" * 700] * 3)
    assert pair.story == []
    pair.wal.write()
    pair.outlet.collect()
    assert pair.story == []
    pair.wal.write()
    pair.outlet.collect()
    assert pair.story == ["big"]


def test_a_half_placed_batch_is_not_settled(pair: Pair) -> None:
    """The WAL may forget what is settled; the first half of a batch is worth as much as the second."""
    pair.submit("before", Need.PLACED, b"x" * 10)
    pair.submit("big", Need.PLACED, *[b"p" * 700] * 3)
    assert pair.outlet.settled_pos == 10
    for _ in range(3):
        pair.wal.write()
        pair.outlet.collect()
    assert pair.outlet.settled_pos == pair.outlet.placed_pos == 10 + 2100


def test_settled_ends_before_the_oldest_entry_under_way(pair: Pair) -> None:
    pair.submit("a", Need.WRITTEN, b"x" * 10)
    pair.submit("b", Need.SYNCED, b"x" * 20)
    pair.submit("c", Need.WRITTEN, b"x" * 30)
    assert pair.outlet.settled_pos == 0
    pair.wal.write()
    pair.outlet.collect()
    assert pair.outlet.settled_pos == 10
    pair.wal.sync()
    pair.outlet.collect()
    assert pair.outlet.settled_pos == 60


@pytest.mark.parametrize("seed", range(10))
def test_any_mix_of_sizes_and_classes_reaches_the_log_whole_and_in_order(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    expected, names = b"", []
    for number in range(200):
        parts = [chance.randbytes(chance.choice([1, 20, 300, 740])) for _ in range(chance.choice([1, 1, 1, 4]))]
        pair.submit(str(number), chance.choice(list(Need)), *parts)
        expected += b"".join(parts)
        names.append(str(number))
        if chance.random() < 0.4:
            pair.wal.write()
        if chance.random() < 0.3:
            pair.wal.sync()
        if chance.random() < 0.5:
            pair.outlet.collect()
    while not pair.outlet.idle:
        pair.wal.write()
        pair.wal.sync()
        assert pair.outlet.collect() or pair.wal.pending
    pair.wal.write()
    assert pair.wal.log == expected
    assert sorted(pair.story, key=int) == names


# ---- failure ----


def test_a_failed_write_fails_what_lies_above_and_frees_the_way(pair: Pair) -> None:
    pair.submit("stored", Need.WRITTEN, b"s" * 10)
    pair.wal.write()
    pair.submit("lost", Need.WRITTEN, b"l" * 10)
    pair.submit("lost too", Need.SYNCED, b"l" * 10)
    pair.wal.fail(position=10)
    pair.outlet.collect()
    assert pair.story[0] == "stored"
    assert sorted(pair.story[1:]) == ["lost failed", "lost too failed"]
    pair.wal.resume()
    pair.submit("next", Need.WRITTEN, b"n" * 10)
    pair.wal.write()
    pair.outlet.collect()
    assert pair.story[-1] == "next"
    assert pair.wal.log.endswith(b"n" * 10)


def test_the_newest_is_failed_first(pair: Pair) -> None:
    """Each topic's head goes back step by step."""
    for name in "abc":
        pair.submit(name, Need.WRITTEN, b"x" * 10)
    pair.wal.fail(position=0)
    pair.outlet.collect()
    assert pair.story == ["c failed", "b failed", "a failed"]


def test_a_resync_frame_is_the_first_valid_one_after_a_failure(pair: Pair) -> None:
    pair.submit("lost", Need.WRITTEN, b"l" * 10)
    pair.wal.fail(position=0)
    pair.outlet.collect()
    pair.wal.resume()
    pair.wal.log = b""
    pair.wal.write()
    assert parse_header(pair.wal.log, 0).type == FrameType.RESYNC


def test_what_readers_may_have_seen_is_sent_again(pair: Pair) -> None:
    frame = control_frame(FrameType.CURSOR, 7, 1, 2, {"seen": True})
    pair.submit("seen", Need.PLACED, frame)
    pair.wal.fail(position=0)
    pair.outlet.collect()
    pair.wal.resume()
    pair.wal.log = b""
    pair.wal.write()
    assert pair.story == ["seen"]
    assert pair.wal.log.endswith(frame)


def test_what_readers_have_seen_of_a_batch_larger_than_the_ring_is_sent_again(pair: Pair) -> None:
    parts = [bytes([i]) * 700 for i in range(3)]
    pair.submit("seen", Need.PLACED, *parts)
    while pair.story != ["seen"]:
        pair.wal.write()
        pair.outlet.collect()
    pair.wal.fail(position=0)
    pair.outlet.collect()
    pair.wal.resume()
    pair.wal.log = b""
    for _ in range(5):
        pair.wal.write()
        pair.outlet.collect()
    assert pair.wal.log.endswith(b"".join(parts))


def test_what_was_synced_is_not_sent_again(pair: Pair) -> None:
    pair.submit("safe", Need.PLACED, b"s" * 10)
    pair.wal.write()
    pair.wal.sync()
    pair.outlet.collect()
    pair.submit("lost", Need.WRITTEN, b"l" * 10)
    pair.wal.fail(position=10)
    pair.outlet.collect()
    pair.wal.resume()
    pair.wal.log = b""
    pair.wal.write()
    assert b"s" * 10 not in pair.wal.log


def test_what_waited_for_room_fails_too(pair: Pair) -> None:
    pair.submit("filler", Need.WRITTEN, b"f" * 900)
    pair.submit("waiting", Need.WRITTEN, b"w" * 900)
    pair.wal.fail(position=0)
    pair.outlet.collect()
    assert sorted(pair.story) == ["filler failed", "waiting failed"]
    assert (pair.outlet.backlog_bytes, pair.outlet.idle) == (0, True)


def test_a_full_disk_is_named(pair: Pair) -> None:
    pair.wal.ring.set_read_only(errno.ENOSPC)
    assert pair.outlet.read_only_errno == errno.ENOSPC
    refusal = pair.outlet.refusal()
    assert refusal.detail["errno"] == errno.ENOSPC
    assert refusal.retriable


def test_a_successor_answers_a_failure_its_predecessor_left_unanswered(pair: Pair, instance: str) -> None:
    pair.submit("lost", Need.WRITTEN, b"l" * 10)
    pair.wal.fail(position=0)
    successor = Outlet(0, RingProducer.attach(paths.ring_shm(instance, 0, 0), instance), pair.bell)
    successor.open()
    pair.wal.resume()
    assert pair.wal.written == 10
    assert successor.placed_pos == 10
