"""A topic to and from its entry in a snapshot: whatever lasts comes back."""

from __future__ import annotations

import msgpack
import pytest

from tests.unit.delivery.kit import TS, make_topic, publish
from topicd.frames import FrameType
from topicd.shards.delivery.storing.topic_state import entry_of, topic_of
from topicd.shards.delivery.topic.contents import Damaged
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.topic_entry import TopicEntry


def lived(durability: str = "disk") -> Topic:
    """One that has seen everything."""
    topic = make_topic(durability=durability, cap_records=5, ttl_ms=10**9)
    publish(topic, [b"x"] * 20)
    topic.producers.assign(7, 1, 1, 20)
    topic.consumers.replay(FrameType.CURSOR, {"action": "open", "name": "c", "acked": 12}, TS)
    topic.seqs.reserve(2048)
    topic.floors.note_loss(5, "cap", 4)
    topic.floors.note_loss(8, "ttl", 3)
    topic.floors.delete_through(9)
    topic.floors.advance(11)
    topic.contents.gone, topic.contents.lost = Ranges([(12, 13)]), Ranges([(15, 15)])
    topic.contents.damaged = [Damaged(17, 18, "seg")]
    topic.changes.begin()
    return topic


def carried(topic: Topic) -> Topic:
    body = msgpack.unpackb(msgpack.packb(entry_of(topic).to_wire()))
    return topic_of(TopicEntry.from_wire(body), 3)


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
def test_whatever_lasts_comes_back(durability: str) -> None:
    before = lived(durability)
    after = carried(before)
    assert (after.id, after.name, after.config, after.created_ms) == (before.id, before.name, before.config, TS)
    assert repr(after.floors) == repr(before.floors)
    assert after.floors.losses == before.floors.losses
    assert (after.seqs.reserved, after.seqs.last_ts) == (before.seqs.reserved, before.seqs.last_ts)
    for name in ("gone", "lost", "damaged"):
        assert getattr(after.contents, name) == getattr(before.contents, name)
    assert [part.to_snapshot(20) for part in after.parts()] == [part.to_snapshot(20) for part in before.parts()]
    assert entry_of(before).changes == after.changes.newest
    assert after.outlet == 3


def test_a_second_snapshot_of_what_came_back_says_the_same() -> None:
    before = lived("ephemeral")
    before.changes.end(1)
    assert entry_of(carried(before)) == entry_of(before)


def test_records_come_from_segments_and_log_and_the_seqs_of_an_ephemeral_topic_from_here() -> None:
    assert [carried(lived(d)).seqs.head for d in ("disk", "ephemeral")] == [0, 20]
    assert carried(lived()).contents.count == 0


def test_what_is_under_way_is_not_in_it() -> None:
    topic = lived()
    topic.seqs.give_out(5, TS)
    topic.producers.assign(7, 2, 21, 5)
    entry = entry_of(topic)
    assert (entry.head, entry.changes) == (20, 0)
    assert topic_of(entry, 0).producers.expected(7, 20) == 2


def test_a_part_that_an_older_snapshot_does_not_know_begins_empty() -> None:
    entry = entry_of(lived())
    after = topic_of(entry._replace(parts={}), 0)
    assert (len(after.producers), len(after.consumers)) == (0, 0)
