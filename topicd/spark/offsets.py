"""Offsets of a stream, as Spark keeps them in its checkpoint:

    {"orders": {"id": 5, "seq": 1200}, "audit": {"id": 9, "seq": 80, "after": 30, "lost": "11-30"}}

`seq` is the last one read. `after` is there where a batch does not begin behind the previous one: a topic that is new
or was created anew, or one that lost records, which `lost` names. Promise: (start, end) say exactly what a batch reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from topicd.errors import FormatError, InvalidRequest
from topicd.spark.plan import Range

Offset = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Place:
    topic_id: int
    seq: int
    after: int | None = None
    lost: str | None = None


Places = dict[str, Place]


def encode(places: Mapping[str, Place]) -> Offset:
    """In the order of names: Spark compares offsets as text."""
    return {topic: _fields(place) for topic, place in sorted(places.items())}


def _fields(place: Place) -> dict[str, Any]:
    given = {"id": place.topic_id, "seq": place.seq, "after": place.after, "lost": place.lost}
    return {name: value for name, value in given.items() if value is not None}


def decode(offset: Mapping[str, Any]) -> Places:
    try:
        return {
            topic: Place(int(row["id"]), int(row["seq"]), row.get("after"), row.get("lost"))
            for topic, row in offset.items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        raise FormatError(f"the checkpoint holds an offset that is not topicd's: {offset!r:.300}") from None


def ranges(start: Offset, end: Offset) -> Iterator[Range]:
    """What lies between two offsets, in the order of names."""
    before = decode(start)
    for topic, place in sorted(decode(end).items()):
        known = before.get(topic)
        if known == place:
            continue
        after = place.after
        if after is None:
            after = known.seq if known is not None and known.topic_id == place.topic_id else 0
        if place.seq < after:
            raise InvalidRequest(f"topic {topic}: a batch cannot end at {place.seq}, before its start {after}")
        yield Range(topic, place.topic_id, after, place.seq)


# ---- how far a batch goes ----


def at_most(places: Places, target: Places) -> Places:
    """Not beyond the target; without topics that are not in it."""
    return {
        topic: replace(place, seq=max(min(place.seq, target[topic].seq), place.after or 0))
        for topic, place in places.items()
        if topic in target and target[topic].topic_id == place.topic_id
    }


def limited(before: Places, reachable: Places, most: int | None) -> Places:
    """So many records at most: one of each topic that has some, so that none starves, and the rest in proportion."""
    begins = {topic: _begin(before.get(topic), place) for topic, place in reachable.items()}
    backlog = backlogs(before, reachable)
    total = sum(backlog.values())
    if most is None or total <= most:
        return reachable
    largest = sorted(backlog, key=lambda topic: -backlog[topic])[:most]
    rest, left = most - len(largest), total - len(largest)
    shares = {topic: 1 + rest * (backlog[topic] - 1) // left for topic in largest}
    return {**before, **{topic: replace(reachable[topic], seq=begins[topic] + shares[topic]) for topic in largest}}


def backlogs(before: Places, reachable: Places) -> dict[str, int]:
    """How many seqs of each topic are new; only topics that have some."""
    new = {topic: place.seq - _begin(before.get(topic), place) for topic, place in reachable.items()}
    return {topic: count for topic, count in new.items() if count > 0}


def _begin(known: Place | None, place: Place) -> int:
    """Behind which seq a batch that ends at `place` begins."""
    if place.after is not None and place != known:
        return place.after
    return known.seq if known is not None else 0
