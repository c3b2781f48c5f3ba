"""Reads over segments and tail alike: budgets, filters, what is gone and what is damaged."""

from __future__ import annotations

import random

import pytest

from tests.unit.delivery.desk import Desk
from tests.unit.delivery.kit import TS
from topicd.errors import StorageCorrupt
from topicd.frames import core
from topicd.limits import FETCH_BYTES_MAX
from topicd.model import TagMatch
from topicd.shards.delivery.reading.filters import NO_FILTER, ReadFilter
from topicd.shards.delivery.reading.reading import ReadAnswer
from topicd.shards.delivery.topic.contents import Damaged
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.names import DATA
from topicd.shards.storage.segment.places import resolve

COUNT = 20
ODD = TagMatch(b"odd")


def seqs(answer: ReadAnswer) -> list[int]:
    found = [row[0] for part in answer.parts for row in core.decode_frames(part, 0, len(part))]
    assert len(found) == answer.count
    assert sum(len(part) for part in answer.parts) == answer.bytes
    return found


@pytest.fixture
def topic(desk: Desk) -> Topic:
    """1..8 in a sealed segment, 9..12 in an active one, 13..20 in memory."""
    desk.serve()
    made = desk.topic(durability="memory")
    for seq in range(1, COUNT + 1):
        desk.clock.set_wall(TS + seq)
        desk.write(made, [bytes(100)], tags=b"odd" if seq % 2 else b"even")
        if seq == 12:
            desk.checkpoint()
    return made


def fetch(
    desk: Desk, topic: Topic, from_seq: int, limit: int = 100, max_bytes: int = 1 << 20, chosen: ReadFilter = NO_FILTER
) -> ReadAnswer:
    return desk.parts.reader.fetch(topic, from_seq, limit, max_bytes, chosen)


def read_all(desk: Desk, topic: Topic, limit: int, max_bytes: int, chosen: ReadFilter = NO_FILTER) -> list[int]:
    found, at = [], 0
    while at < topic.seqs.visible:
        answer = fetch(desk, topic, at, limit, max_bytes, chosen)
        assert answer.next_from > at
        found += seqs(answer)
        at = answer.next_from
    return found


# ---- budgets ----


@pytest.mark.parametrize("limit", [1, 3, 8, 100])
@pytest.mark.parametrize("max_bytes", [1, 150, 1000, 1 << 20])
def test_every_record_once_and_in_order_whatever_the_budget(
    desk: Desk, topic: Topic, limit: int, max_bytes: int
) -> None:
    assert read_all(desk, topic, limit, max_bytes) == list(range(1, COUNT + 1))
    assert read_all(desk, topic, limit, max_bytes, ReadFilter(ODD)) == list(range(1, COUNT + 1, 2))


@pytest.mark.parametrize("from_seq", [0, 7, 8, 11, 12, 19])
def test_a_budget_is_kept_but_one_record_always_comes(desk: Desk, topic: Topic, from_seq: int) -> None:
    one = fetch(desk, topic, from_seq, 1).bytes
    assert seqs(fetch(desk, topic, from_seq, 100, 1)) == [from_seq + 1]
    assert fetch(desk, topic, from_seq, 3, 1 << 20).count <= 3
    for room in (one + 1, 3 * one, 3 * one + 1):
        for chosen in (NO_FILTER, ReadFilter(ODD), ReadFilter(TagMatch(b"", prefix=True))):
            assert 0 <= fetch(desk, topic, from_seq, 100, room, chosen).bytes <= room


def test_at_the_head_there_is_nothing(desk: Desk, topic: Topic) -> None:
    for from_seq in (COUNT, COUNT + 100):
        answer = fetch(desk, topic, from_seq)
        assert (seqs(answer), answer.next_from, answer.tombstone) == ([], from_seq, None)


def test_bad_budgets_are_brought_into_bounds(desk: Desk, topic: Topic) -> None:
    assert seqs(fetch(desk, topic, 0, 0, 0)) == [1]
    assert fetch(desk, topic, 0, 10**9, 10 * FETCH_BYTES_MAX).count == COUNT


# ---- choosing ----


def test_next_from_is_the_last_seq_examined(desk: Desk, topic: Topic) -> None:
    nothing = fetch(desk, topic, 0, chosen=ReadFilter(TagMatch(b"none")))
    assert (nothing.count, nothing.next_from) == (0, COUNT)
    assert nothing.examined >= COUNT - 8


def test_a_prefix_means_more_than_one_tag(desk: Desk, topic: Topic) -> None:
    assert seqs(fetch(desk, topic, 0, chosen=ReadFilter(TagMatch(b"e", prefix=True)))) == list(range(2, COUNT + 1, 2))


def test_metadata_only_leaves_the_data_out(desk: Desk, topic: Topic) -> None:
    whole, bare = fetch(desk, topic, 0), fetch(desk, topic, 0, chosen=ReadFilter(metadata_only=True))
    assert (bare.count, bare.next_from) == (whole.count, whole.next_from)
    assert bare.bytes == whole.bytes - 100 * COUNT == sum(len(part) for part in bare.parts)


def test_deleted_records_are_passed_over_everywhere(desk: Desk, topic: Topic) -> None:
    desk.parts.deletion.delete(topic, None, ODD, lambda body, error: None)
    desk.settle()
    for limit in (1, 100):
        assert read_all(desk, topic, limit, 1 << 20) == list(range(2, COUNT + 1, 2))
    desk.checkpoint()
    assert read_all(desk, topic, 100, 1 << 20) == list(range(2, COUNT + 1, 2))


# ---- what is gone ----


def test_what_expired_is_told_and_never_handed_out(desk: Desk) -> None:
    topic = desk.topic(durability="memory", ttl_ms=1000)
    desk.write(topic, [b"a"])
    desk.clock.advance(600)
    desk.write(topic, [b"b"])
    desk.clock.advance(600)
    answer = fetch(desk, topic, 0)
    assert seqs(answer) == [2]
    assert answer.tombstone is not None
    assert (answer.tombstone.gap_from, answer.tombstone.gap_to, answer.tombstone.reason) == (1, 1, "ttl")
    assert fetch(desk, topic, 1).tombstone is None


def test_what_power_loss_took_is_one_gap_where_it_is(desk: Desk, topic: Topic) -> None:
    topic.contents.lost = Ranges([(14, 15), (18, 18)])
    told = []
    at = 0
    while at < COUNT:
        answer = fetch(desk, topic, at)
        gap = answer.tombstone
        told.append(((gap.gap_from, gap.gap_to, gap.reason) if gap else None, seqs(answer)))
        at = answer.next_from
    assert told == [
        (None, list(range(1, 14))),
        ((14, 15, "power_loss"), [16, 17]),
        ((18, 18, "power_loss"), [19, 20]),
    ]


def test_two_gaps_that_meet_are_told_one_after_the_other(desk: Desk, topic: Topic) -> None:
    topic.floors.note_loss(14, "cap", 13)
    topic.floors.advance(14)
    topic.contents.lost = Ranges([(14, 15)])
    first = fetch(desk, topic, 0)
    assert first.tombstone is not None
    assert (first.tombstone.gap_to, first.tombstone.reason, seqs(first), first.next_from) == (13, "cap", [], 13)
    second = fetch(desk, topic, first.next_from)
    assert second.tombstone is not None
    assert (second.tombstone.gap_from, second.tombstone.gap_to, second.tombstone.reason) == (14, 15, "power_loss")
    assert seqs(second) == [16, 17, 18, 19, 20]


# ---- damage ----


def test_a_damaged_place_is_an_error_that_says_where_to_go_on(desk: Desk, topic: Topic) -> None:
    topic.contents.damaged = [Damaged(5, 6, "file")]
    assert seqs(fetch(desk, topic, 0)) == [1, 2, 3, 4]
    for at in (4, 5):
        with pytest.raises(StorageCorrupt) as caught:
            fetch(desk, topic, at)
        assert caught.value.detail["last_seq"] == 6
    assert seqs(fetch(desk, topic, 6)) == list(range(7, COUNT + 1))


@pytest.mark.parametrize("seed", range(8))
def test_a_flipped_bit_is_an_error_and_never_an_answer(desk: Desk, topic: Topic, seed: int) -> None:
    chance = random.Random(seed)
    path = resolve(desk.parts.place.topic_dir(topic.id), 1).file(DATA)
    file = desk.disk.open(path, write=True)
    at = chance.randrange(file.size())
    (byte,) = file.pread(1, at)
    file.pwrite([bytes([byte ^ 1 << chance.randrange(8)])], at)
    file.close()
    desk.parts.segments.drop(topic)
    found, at = [], 0
    with pytest.raises(StorageCorrupt) as caught:
        while at < COUNT:
            answer = fetch(desk, topic, at, chance.choice([1, 3, 100]))
            for part in answer.parts:
                assert not core.scan_frames(part, 0, len(part)).problem
            found += seqs(answer)
            at = answer.next_from
    assert found == list(range(1, len(found) + 1))
    assert len(found) < 8
    assert caught.value.detail["topic"] == "orders"


# ---- followers and times ----


def test_the_newest_records_come_without_questions_or_not_at_all(desk: Desk, topic: Topic) -> None:
    reader = desk.parts.reader
    answer = reader.newest(topic, 15, 1 << 20)
    assert answer is not None
    assert (seqs(answer), answer.next_from) == ([16, 17, 18, 19, 20], COUNT)
    assert reader.newest(topic, 11, 1 << 20) is None  # older than the tail
    assert reader.newest(topic, COUNT, 1 << 20) is None
    assert reader.newest(topic, 15, answer.bytes - 1) is None
    assert reader.newest(topic, 15, answer.bytes) is not None


@pytest.mark.parametrize("why", ["ttl", "damage", "lost", "deleted"])
def test_whatever_raises_a_question_is_left_to_fetch(desk: Desk, topic: Topic, why: str) -> None:
    contents = topic.contents
    if why == "ttl":
        desk.parts.catalog.configure(topic, {"ttl_ms": 10**9}, lambda topic, error: None)
        desk.settle()
    elif why == "damage":
        contents.damaged = [Damaged(1, 1, "file")]
    elif why == "lost":
        contents.lost = Ranges([(1, 1)])
    else:
        contents.tail_dead.add(17)
    assert desk.parts.reader.newest(topic, 15, 1 << 20) is None


@pytest.mark.parametrize(
    ("ts", "cursor"), [(0, 0), (TS + 1, 0), (TS + 2, 1), (TS + 9, 8), (TS + 13, 12), (TS + 20, 19), (TS + 21, COUNT)]
)
def test_reading_starts_at_a_time(desk: Desk, topic: Topic, ts: int, cursor: int) -> None:
    assert desk.parts.reader.start_at(topic, ts) == cursor


def test_reading_starts_at_a_live_record(desk: Desk, topic: Topic) -> None:
    desk.parts.deletion.delete(topic, None, ODD, lambda body, error: None)
    desk.settle()
    assert desk.parts.reader.start_at(topic, TS + 9) == 9


def test_a_read_is_noted(desk: Desk, topic: Topic) -> None:
    desk.parts.reader.note_read(topic)
    assert topic.last_read_ms == desk.clock.now_ms()
