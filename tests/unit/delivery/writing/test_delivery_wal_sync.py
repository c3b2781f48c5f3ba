"""Waiting until the WAL has everything on the disk; at a stop, for one that left, once."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable

import pytest

from tests.unit.delivery.desk import Desk
from topicd.shards.delivery.writing import wal_sync
from topicd.shards.delivery.writing.wal_sync import WalSync


def test_with_nothing_under_way_nobody_waits(desk: Desk) -> None:
    desk.topic()
    before = desk.wal.ring.head
    desk.loop.run_until_complete(asyncio.wait_for(desk.parts.wal_sync.wait(), 1))
    assert desk.wal.ring.head == before


def test_it_waits_for_every_wal_shard(open_desk: Callable[..., Desk]) -> None:
    desk = open_desk(wals=2)
    topics = [desk.topic(f"t{n}", durability="disk") for n in range(8)]
    assert {topic.outlet for topic in topics} == {0, 1}
    for topic in topics:
        desk.append(topic, [b"x"])
    desk.parts.turn.end()
    waiting = desk.loop.create_task(desk.parts.wal_sync.wait())
    desk.turn()
    for wal in desk.wals:  # no write shall wait for it
        assert wal.ring.sync_wanted_pos < wal.ring.head == wal.ring.sync_wished_pos
    for index in (0, 1):
        desk.turn()
        assert not waiting.done()
        desk.wals[index].write()
        desk.turn()
        desk.parts.turn.doorbell()
        assert not waiting.done()  # written is not synced
        desk.wals[index].sync()
        desk.parts.turn.doorbell()
    desk.turn()
    desk.turn()
    assert waiting.done()
    assert not desk.parts.wal_sync.wal_is_away


def test_a_failure_ends_the_wait_too(desk: Desk) -> None:
    topic = desk.topic(durability="disk")
    desk.append(topic, [b"x"])
    desk.parts.turn.end()
    waiting = desk.loop.create_task(desk.parts.wal_sync.wait())
    desk.turn()
    desk.fail_wal(errno.EIO)
    desk.turn()
    desk.turn()
    assert waiting.done()


@pytest.mark.parametrize(("draining", "waits"), [(True, 1), (False, 2)])
def test_only_on_the_way_out_a_silent_wal_shard_is_given_up(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, draining: bool, waits: int
) -> None:
    monkeypatch.setattr(wal_sync, "_PATIENCE_S", 0.01)
    topic = desk.topic(durability="disk")
    desk.append(topic, [b"x"])
    desk.parts.turn.end()
    made = WalSync(desk.parts.outlets)
    made.draining = draining
    asked: list[str] = []
    when_synced = desk.parts.outlets[0].when_synced

    def ask(done: Callable[[], None], *, patient: bool) -> bool:
        asked.append("asked")
        return when_synced(done, patient=patient)

    monkeypatch.setattr(desk.parts.outlets[0], "when_synced", ask)
    for _ in range(2):
        desk.loop.run_until_complete(made.wait())
    assert (made.wal_is_away, len(asked)) == (draining, waits)
