"""last-per-tag: the newest record of each tag stays, as a delete of the others, a little at a time."""

from __future__ import annotations

from contextlib import suppress

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import InvalidRequest
from topicd.frames import core
from topicd.model import TopicConfig
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.removing import compaction
from topicd.shards.delivery.removing.compaction import next_segment
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.names import TAGS
from topicd.shards.storage.segment.places import resolve


@pytest.fixture
def topic(desk: Desk) -> Topic:
    """Segments of 8 records."""
    made = desk.topic("orders", durability="memory", compact="last-per-tag")
    desk.serve()
    return made


def put(desk: Desk, topic: Topic, *tags: str | None) -> None:
    for tag in tags:
        desk.write(topic, [b"x"], tags=None if tag is None else tag.encode())
    desk.checkpoint()


def run(desk: Desk) -> None:
    """Until nothing is left to do; its pauses are real and short."""
    for _ in range(200):
        desk.parts.compaction.tick()
        task = desk.parts.compaction._task
        if task is None:
            return
        while not task.done():
            _turns(desk)
    raise AssertionError("it never ends")


def _turns(desk: Desk) -> None:
    desk.store()
    desk.turn()


def living(desk: Desk, topic: Topic) -> list[int]:
    answer = desk.parts.reader.fetch(topic, 0, 10_000, 1 << 20, NO_FILTER)
    return [row[0] for piece in answer.parts for row in core.decode_frames(piece, 0, len(piece))]


def test_of_each_tag_the_newest_stays_and_all_without_one(desk: Desk, topic: Topic) -> None:
    put(desk, topic, *"abab", None, None, "a", "c")  # seqs 1 to 8, sealed
    put(desk, topic, *"bbda", None, "e", "f", "g")  # 9 to 16, sealed
    put(desk, topic, "c", "e")  # not sealed: it supersedes nothing yet
    run(desk)
    assert living(desk, topic) == [5, 6, 8, 10, 11, 12, 13, 14, 15, 16, 17, 18]
    assert topic.compacted is not None
    assert (topic.compacted.through, topic.compacted.deleted) == (16, 6)
    assert topic.contents.count == 12
    assert topic.floors.evict_floor == 1  # nobody is told of a gap
    assert desk.parts.counters.compacted == 6


def test_it_goes_on_when_the_next_segment_is_sealed(desk: Desk, topic: Topic) -> None:
    put(desk, topic, *"abcdefgh")
    run(desk)
    assert len(living(desk, topic)) == 8
    put(desk, topic, *"aaaaaaab")
    run(desk)
    assert living(desk, topic) == [3, 4, 5, 6, 7, 8, 15, 16]


def test_a_newer_record_that_was_deleted_supersedes_nothing(desk: Desk, topic: Topic) -> None:
    put(desk, topic, *"abcdefgh")
    put(desk, topic, *"aijklmno")
    desk.parts.deletion.delete_seqs(topic, Ranges([(9, 9)]), lambda records, error: None)
    desk.settle()
    run(desk)
    assert living(desk, topic) == [*range(1, 9), *range(10, 17)]


def test_records_of_a_commit_under_way_wait(desk: Desk, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    put(desk, topic, *"aaaaaaaa")
    monkeypatch.setattr(type(topic.commits), "settled", lambda self, visible: 7)
    assert next_segment(topic) is None
    run(desk)
    assert len(living(desk, topic)) == 8


def test_tags_are_looked_for_in_portions(desk: Desk, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "TAGS_AT_ONCE", 3)
    monkeypatch.setattr(compaction, "RANGES_AT_ONCE", 2)
    put(desk, topic, *"abcdefgh")
    put(desk, topic, *"abcdefgh")
    run(desk)
    assert living(desk, topic) == list(range(9, 17))


def test_a_table_that_cannot_be_read_keeps_its_records(desk: Desk, topic: Topic) -> None:
    put(desk, topic, *"abcdefgh")
    put(desk, topic, *"abcdefgh")
    path = resolve(desk.parts.place.topic_dir(topic.id), 1).file(TAGS)
    desk.disk.damage(path, desk.disk.size(path) - 4, b"\xff\xff\xff\xff")
    run(desk)
    assert living(desk, topic) == list(range(1, 17))
    assert topic.compacted is not None and topic.compacted.through == 16


def test_nothing_happens_where_it_is_not_asked_for_and_it_can_be_ended(desk: Desk, topic: Topic) -> None:
    other = desk.topic("plain", durability="memory")
    put(desk, other, *"aaaaaaaa")
    run(desk)
    assert len(living(desk, other)) == 8
    assert other.compacted is None
    desk.parts.catalog.configure(topic, {"compact": "none"}, lambda topic, error: None)
    desk.settle()
    put(desk, topic, *"aaaaaaaa")
    run(desk)
    assert len(living(desk, topic)) == 8
    desk.parts.catalog.configure(other, {"compact": "last-per-tag"}, lambda topic, error: None)
    desk.settle()
    run(desk)
    assert living(desk, other) == [8]


def test_a_disk_that_refuses_ends_it_for_now(desk: Desk, topic: Topic) -> None:
    put(desk, topic, *"aaaaaaaa")
    desk.parts.compaction.tick()
    with suppress(AssertionError):
        desk.fail_wal(5)
    for _ in range(50):
        _turns(desk)
    assert topic.compacted is not None
    assert topic.compacted.through in (0, 8)


@pytest.mark.parametrize("config", [{"type": "queue"}, {"durability": "ephemeral"}])
def test_it_is_refused_where_it_makes_no_sense(desk: Desk, config: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        TopicConfig.from_fields({"compact": "last-per-tag", **config})
