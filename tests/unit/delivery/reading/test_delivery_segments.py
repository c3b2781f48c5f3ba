"""Open segments, by topic: kept for the next read, forgotten when told to."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk
from topicd.model import TagMatch
from topicd.shards.delivery.topic.topic import Topic


@pytest.fixture
def desk(open_desk: Callable[..., Desk]) -> Desk:
    return open_desk(map_cache_bytes=1 << 20).serve()


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return stored(desk, "a")


def stored(desk: Desk, name: str) -> Topic:
    made = desk.topic(name)
    desk.write(made, [name.encode()] * 16, tags=b"t")
    desk.checkpoint()
    assert [info.sealed for info in made.contents.segments] == [True, True]
    return made


def test_a_reader_is_kept_and_reads_its_own_topic(desk: Desk, topic: Topic) -> None:
    other, segments = stored(desk, "b"), desk.parts.segments
    for one in (topic, other):
        info = one.contents.segments[0]
        reader = segments.reader(one, info)
        assert segments.reader(one, info) is reader
        assert one.name.encode() * 1 in bytes(reader.read(1, 1))
    assert segments.held_bytes > 0


def test_one_segment_is_forgotten_and_the_others_are_not(desk: Desk, topic: Topic) -> None:
    segments, (first, second) = desk.parts.segments, topic.contents.segments
    before = [segments.reader(topic, info) for info in (first, second)]
    segments.drop(topic, first.first_seq)
    assert segments.reader(topic, first) is not before[0]
    assert segments.reader(topic, second) is before[1]


def test_all_segments_of_a_topic_are_forgotten_and_no_other_topics(desk: Desk, topic: Topic) -> None:
    other, segments = stored(desk, "b"), desk.parts.segments
    kept = segments.reader(other, other.contents.segments[0])
    before = segments.held_bytes
    for info in topic.contents.segments:
        segments.reader(topic, info)
        segments.lookup(topic, info)
    assert segments.held_bytes > before
    segments.drop(topic)
    assert segments.held_bytes == before
    assert segments.reader(other, other.contents.segments[0]) is kept


def test_a_glance_reads_the_same_without_a_checked_index(desk: Desk, topic: Topic) -> None:
    segments, info = desk.parts.segments, topic.contents.segments[0]
    glanced = segments.glance(topic, info)
    assert segments.held_bytes == 0
    span = glanced.locate(0, 8, 1 << 20)
    assert span is not None
    assert bytes(glanced.read_span(span)) == bytes(segments.reader(topic, info).read(1, 8))


def test_a_lookup_knows_tags(desk: Desk, topic: Topic) -> None:
    info = topic.contents.segments[1]
    assert list(desk.parts.segments.lookup(topic, info).find(TagMatch(b"t"))) == list(range(9, 17))
