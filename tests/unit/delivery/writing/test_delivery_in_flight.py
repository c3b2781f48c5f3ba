"""Batches on their way: all of them become visible together, or the topic is as it was before."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from topicd.model import TagMatch
from topicd.shards.delivery.topic.follower import Follower
from topicd.shards.delivery.topic.topic import Topic

TAG = TagMatch(b"t")


def picture(desk: Desk, topic: Topic) -> dict[str, Any]:
    seqs, contents, flight = topic.seqs, topic.contents, topic.flight
    return {
        "seqs": (seqs.head, seqs.visible, seqs.stored),
        "contents": (contents.count, contents.bytes, len(contents.tail), contents.tail.bytes),
        "flight": (flight.count, flight.bytes, flight.synced, len(flight.under_way)),
        "producer": topic.producers.expected(7, seqs.visible),
        "tags": contents.recent_tags.matching(TAG, 1, 1000),
        "tail_bytes": desk.parts.backlog.tail_bytes,
        "dirty": list(desk.parts.backlog.dirty),
        "records": desk.parts.counters.records,
    }


def test_batches_that_travel_together_become_visible_together(desk: Desk) -> None:
    topic = desk.topic(durability="fsync")
    writer = desk.append(topic, [b"abc"], request_id=1, producer=7, number=1)
    desk.append(topic, [b"de", b"f"], writer=writer, request_id=2, producer=7, number=2, tags=b"t")
    desk.parts.turn.end()
    assert (topic.seqs.head, topic.seqs.visible, topic.contents.count, topic.flight.count) == (3, 0, 0, 3)
    desk.settle()
    after = picture(desk, topic)
    assert [(told.how, told.request_id, told.first_seq) for told in writer.told] == [
        ("appended", 1, 1),
        ("appended", 2, 2),
    ]
    assert after["seqs"] == (3, 3, 0)
    assert after["contents"][:2] == (3, 8)  # two records have a tag of one byte
    assert (after["flight"], after["producer"], after["tags"]) == ((0, 0, 0, 0), 3, [2, 3])
    assert after["tail_bytes"] == topic.contents.tail.bytes > 0
    assert (after["dirty"], after["records"], desk.parts.counters.appends) == ([topic.id], 3, 1)


def test_a_failure_leaves_the_topic_as_it_was(desk: Desk) -> None:
    topic = desk.topic(durability="fsync")
    desk.write(topic, [b"before"], producer=7, number=1)
    before = picture(desk, topic)
    writer = desk.append(topic, [b"x"], request_id=1, producer=7, number=2, tags=b"t")
    desk.append(topic, [b"y"], writer=writer, request_id=2, key=b"k")
    desk.parts.turn.end()
    desk.fail_wal(errno.EIO)
    assert [(told.how, told.request_id) for told in writer.told] == [("storage_failed", 1), ("storage_failed", 2)]
    assert picture(desk, topic) == before
    # Number and key are free again.
    told = desk.write(topic, [b"x"], producer=7, number=2) + desk.write(topic, [b"y"], key=b"k")
    assert [(one.how, one.first_seq) for one in told] == [("appended", 2), ("appended", 3)]


def test_several_entries_that_fail_go_back_step_by_step(desk: Desk) -> None:
    topic = desk.topic(durability="fsync")
    before = picture(desk, topic)
    for number in (1, 2, 3):
        desk.append(topic, [b"x"], producer=7, number=number)
        desk.parts.turn.end()
    assert len(topic.flight.under_way) == 3
    desk.fail_wal(errno.EIO)
    assert picture(desk, topic) == before


def test_an_ephemeral_topic_has_nothing_to_store(desk: Desk) -> None:
    topic = desk.topic(durability="ephemeral")
    desk.write(topic, [b"x"])
    assert (topic.contents.count, desk.parts.backlog.tail_bytes, desk.parts.backlog.dirty) == (1, 0, {})


@pytest.mark.parametrize(("followers", "awaited"), [(0, False), (1, True), (8, True), (9, False)])
def test_a_few_followers_are_served_before_the_writer(desk: Desk, followers: int, awaited: bool) -> None:
    topic = desk.topic(durability="fsync")
    topic.followers.update(Follower() for _ in range(followers))
    desk.append(topic, [b"x"])
    assert topic.flight.under_way[0].awaited is awaited
    topic.followers.clear()
