"""A topic to and from its entry in a snapshot, and to the label of its directory."""

from __future__ import annotations

from topicd.model import TopicConfig
from topicd.shards.delivery.topic.contents import Damaged
from topicd.shards.delivery.topic.floors import Loss
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.settle_marks import on_record
from topicd.shards.storage.topic_entry import TopicEntry
from topicd.shards.storage.topic_label import Label


def entry_of(topic: Topic) -> TopicEntry:
    seqs, floors, contents = topic.seqs, topic.floors, topic.contents
    derived = topic.inflows.derived is not None  # then a start has what segments have
    return TopicEntry(
        id=topic.id,
        name=topic.name,
        config=topic.config.to_fields(),
        created_ms=topic.created_ms,
        earliest=floors.earliest,
        evict_floor=floors.evict_floor,
        losses=[(loss.floor, loss.reason, loss.records) for loss in floors.losses],
        delete_below=floors.delete_below,
        reserved=seqs.reserved,
        gone=list(contents.gone),
        lost=[(first, last, contents.missed.get(first, last - first + 1)) for first, last in contents.lost],
        head=seqs.stored if derived else seqs.visible,
        last_ts=topic.inflows.last_ts if derived else seqs.last_ts,
        damaged=[(place.first_seq, place.last_seq, place.where) for place in contents.damaged],
        changes=topic.changes.settled,
        parts={part.KEY: part.to_snapshot(seqs.visible) for part in topic.parts()},
        dead={first: on_record(marks, contents.unmarked.get(first)) for first, marks in contents.marks.items()},
    )


def label_of(topic: Topic) -> Label:
    return Label(topic.id, topic.name, topic.config.to_fields(), topic.created_ms)


def topic_of(entry: TopicEntry, outlet: int) -> Topic:
    """Without its records, which segments and log bring."""
    topic = Topic(entry.id, entry.name, TopicConfig.from_stored(entry.config), outlet, entry.created_ms)
    seqs, floors, contents = topic.seqs, topic.floors, topic.contents
    floors.earliest = entry.earliest
    floors.evict_floor = entry.evict_floor
    floors.losses = [Loss(*loss) for loss in entry.losses]
    floors.delete_below = entry.delete_below
    seqs.reserve(entry.reserved)
    seqs.last_ts = entry.last_ts
    if not topic.policy.logged:
        seqs.reach(entry.head)
    if entry.gone:
        contents.gone = Ranges(entry.gone)
    if entry.lost:
        contents.lost = Ranges((first, last) for first, last, *_ in entry.lost)
        contents.missed = {first: about[0] if about else last - first + 1 for first, last, *about in entry.lost}
    if entry.damaged:
        contents.damaged = [Damaged(*place) for place in entry.damaged]
    topic.changes.newest = entry.changes
    for part in topic.parts():
        if part.KEY in entry.parts:
            part.restore(entry.parts[part.KEY])
    return topic
