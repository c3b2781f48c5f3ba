"""Snapshots: when they are due, what they hold, and that the WAL forgets nothing that only one of them has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from tests.unit.delivery.desk import Desk
from topicd.shards.delivery.storing.snapshots import Snapshots
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.snapshot import SnapshotStore


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return desk.topic(durability="memory")


@pytest.fixture
def snapshots(desk: Desk, topic: Topic) -> Snapshots:
    """Two are there and nothing has changed since."""
    desk.serve()
    while desk.parts.snapshots.due:
        desk.snapshot()
    return desk.parts.snapshots


def newest(desk: Desk) -> dict[str, Any]:
    found = SnapshotStore(desk.disk, desk.parts.place.data.snapshots(0)).load_newest()
    assert found is not None
    body: dict[str, Any] = found[1]
    return body


def absorbed(desk: Desk) -> int:
    found = desk.wal.ring.absorbed_pos
    assert found is not None
    return found


def test_it_holds_every_topic_and_below_which_id_that_is_all(desk: Desk, topic: Topic, snapshots: Snapshots) -> None:
    other = desk.topic("other")
    desk.snapshot()
    body = newest(desk)
    assert [entry["name"] for entry in body["topics"]] == ["orders", "other"]
    assert (body["settled_below"], body["run"], body["shard"], body["shards"]) == (other.id + 1, 1, 0, 1)


def test_one_that_is_being_deleted_counts_until_its_end_is_stored(
    desk: Desk, topic: Topic, snapshots: Snapshots
) -> None:
    desk.parts.catalog.delete(topic, if_empty=False, done=lambda topic, error: None)
    entries: list[bytes] = []
    assert list(snapshots._add_topics(entries)) == []
    assert [msgpack.unpackb(entry)["name"] for entry in entries] == ["orders"]
    desk.settle()
    entries = []
    assert list(snapshots._add_topics(entries)) == []
    assert entries == []


def test_without_a_change_none_is_due(desk: Desk, topic: Topic, snapshots: Snapshots) -> None:
    desk.clock.advance(10 * desk.parts.place.settings.snapshot_ms)
    assert not snapshots.due
    desk.parts.backlog.metadata_changed = True
    assert snapshots.due
    desk.snapshot()
    desk.parts.backlog.metadata_changed = True
    assert not snapshots.due  # not so soon


def test_a_change_with_something_to_give_back_is_not_waited_for(desk: Desk, topic: Topic, snapshots: Snapshots) -> None:
    desk.write(topic, [b"x"] * 8)
    desk.checkpoint()
    desk.parts.deletion.delete(topic, 9, None, lambda body, error: None)
    desk.settle()
    assert list(desk.parts.survey.run()) == []
    assert snapshots.due


def test_the_wal_forgets_what_two_snapshots_and_the_segments_have(
    desk: Desk, topic: Topic, snapshots: Snapshots
) -> None:
    before = absorbed(desk)
    desk.write(topic, [b"x"])
    head = desk.parts.outlets[0].placed_pos
    desk.snapshot()
    desk.snapshot()
    assert absorbed(desk) == before  # no segment has it
    desk.checkpoint()
    assert before < absorbed(desk) <= head


def test_one_snapshot_is_not_enough(desk: Desk, topic: Topic, snapshots: Snapshots) -> None:
    before = absorbed(desk)
    desk.write(topic, [b"x"])
    stored_at = desk.parts.outlets[0].placed_pos
    desk.checkpoint()
    desk.snapshot()
    assert absorbed(desk) == before
    desk.snapshot()
    assert absorbed(desk) >= stored_at


def test_it_waits_for_the_log(desk: Desk, topic: Topic, snapshots: Snapshots) -> None:
    """Else it could hold a producer's batch whose records are nowhere."""
    desk.append(topic, [b"x"], producer=7, number=1)
    desk.parts.turn.end()
    saved = snapshots.saved
    snapshots.start()
    for _ in range(5):
        desk.turn()
    assert snapshots.saved == saved
    desk.settle()
    assert snapshots.saved == saved + 1


def test_one_at_a_time(desk: Desk, topic: Topic, snapshots: Snapshots) -> None:
    saved = snapshots.saved
    snapshots.start()
    under_way = snapshots.round
    snapshots.start()
    assert (snapshots.round, snapshots.due, snapshots.wal_is_long) == (under_way, False, False)
    desk.settle()
    assert (snapshots.saved, snapshots.round) == (saved + 1, None)


def test_one_that_fails_is_counted_and_takes_nothing_for_granted(
    desk: Desk, topic: Topic, snapshots: Snapshots, caplog: pytest.LogCaptureFixture
) -> None:
    desk.write(topic, [b"x"])
    desk.checkpoint()
    before, saved = absorbed(desk), snapshots.saved
    desk.fail_disk(lambda name, path: "meta" in path.parts)
    for _ in range(3):
        desk.snapshot()
    assert (snapshots.failures, snapshots.saved, absorbed(desk)) == (3, saved, before)
    assert desk.parts.backlog.metadata_changed
    assert len([record for record in caplog.records if record.message == "snapshot failed"]) == 1
    desk.mend_disk()
    desk.snapshot()
    assert snapshots.saved == saved + 1


def test_a_long_wal_asks_for_one(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(wal_file_bytes=10_000).serve()
    topic, snapshots = desk.topic(durability="memory"), desk.parts.snapshots
    desk.snapshot()
    assert not snapshots.wal_is_long
    desk.parts.rounds._opened = False  # so that no round answers it at once
    desk.write(topic, [bytes(6_000)])
    desk.write(topic, [bytes(6_000)])
    snapshots.note_stored([desk.parts.outlets[0].placed_pos])
    assert snapshots.wal_is_long
    desk.snapshot()
    assert not snapshots.wal_is_long
    desk.parts.direct.stored_bytes = 16 * 10_000
    assert snapshots.wal_is_long
    desk.snapshot()
    assert (snapshots.wal_is_long, desk.parts.direct.stored_bytes) == (False, 0)
