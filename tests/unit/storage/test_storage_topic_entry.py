"""A topic as a snapshot holds it: what is written is read, and what cannot be read is refused as a whole."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from topicd.errors import FormatError
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.topic_entry import DeadOnRecord, TopicEntry

ENTRY = TopicEntry(
    id=7,
    name="orders",
    config={"cap_records": 5},
    created_ms=1,
    earliest=2,
    evict_floor=3,
    losses=[(3, "cap", 2)],
    delete_below=4,
    reserved=1024,
    gone=[(5, 6)],
    lost=[(7, 8)],
    head=20,
    last_ts=9,
    damaged=[(10, 11, "seg")],
    changes=12,
    parts={"consumers": [["c", 1, 2]], "producers": []},
    dead={1: DeadOnRecord(3, Ranges([(1, 3)])), 9: DeadOnRecord(5_000, None)},
)


def wire() -> dict[str, Any]:
    body: dict[str, Any] = msgpack.unpackb(msgpack.packb(ENTRY.to_wire()))
    return body


def test_what_is_written_is_read() -> None:
    assert TopicEntry.from_wire(wire()) == ENTRY


def test_each_part_stands_under_its_own_key() -> None:
    body = wire()
    assert body["consumers"] == [["c", 1, 2]]
    assert "parts" not in body


def test_dead_seqs_of_segments_may_be_missing_as_in_earlier_versions() -> None:
    body = wire()
    del body["dead"]
    assert TopicEntry.from_wire(body).dead is None


def test_a_part_that_is_not_known_here_is_kept() -> None:
    assert TopicEntry.from_wire({**wire(), "leases": [1]}).parts["leases"] == [1]


@pytest.mark.parametrize("key", [field for field in TopicEntry._fields if field not in ("parts", "dead")])
def test_without_one_of_its_fields_it_is_none(key: str) -> None:
    body = wire()
    del body[key]
    with pytest.raises(FormatError):
        TopicEntry.from_wire(body)


@pytest.mark.parametrize(
    "change", [{"head": "many"}, {"gone": 5}, {"lost": [5]}, {"config": 7}, {"losses": None}, {"id": None}]
)
def test_a_field_of_another_kind_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        TopicEntry.from_wire({**wire(), **change})


@pytest.mark.parametrize("body", [None, [], "text", 5, {}])
def test_what_is_no_map_is_refused(body: Any) -> None:
    with pytest.raises(FormatError):
        TopicEntry.from_wire(body)


def test_it_explains_what_no_segment_has_to_hold() -> None:
    assert ENTRY.explains() == [(5, 6), (7, 8), (10, 11)]
