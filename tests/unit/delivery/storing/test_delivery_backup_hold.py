"""What is held for a backup, frozen for its cut, and let go whatever becomes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import Conflict, Throttled
from topicd.shards.delivery.storing.backup_hold import BackupHold
from topicd.shards.delivery.topic.topic import Topic

LEASE_MS = 15_000


@pytest.fixture
def topic(desk: Desk) -> Topic:
    return desk.topic(durability="fsync")


@pytest.fixture
def hold(desk: Desk, topic: Topic) -> BackupHold:
    """Held by "me"."""
    desk.serve()
    run(desk, desk.parts.backup_hold.hold("me", LEASE_MS))
    return desk.parts.backup_hold


def run(desk: Desk, work: Any) -> Any:
    task = desk.loop.create_task(work)
    desk.settle()
    return task.result()


def test_what_was_in_memory_is_in_segments_and_snapshots_when_it_is_held(desk: Desk, topic: Topic) -> None:
    desk.serve()
    desk.write(topic, [b"one"])
    saved = desk.parts.snapshots.saved
    run(desk, desk.parts.backup_hold.hold("me", LEASE_MS))
    assert topic.seqs.stored == 1
    assert desk.parts.snapshots.saved >= saved + 2


def test_the_log_forgets_nothing_while_it_is_held(desk: Desk, topic: Topic, hold: BackupHold) -> None:
    before = desk.wal.ring.absorbed_pos
    for _ in range(3):
        desk.write(topic, [b"more"])
        desk.checkpoint()
        run(desk, desk.parts.snapshots.take())  # as at a stop
    assert desk.wal.ring.absorbed_pos == before
    hold.release("me")
    desk.write(topic, [b"more"])
    desk.checkpoint()
    desk.snapshot()
    desk.snapshot()
    assert desk.wal.ring.absorbed_pos != before


def test_no_snapshot_is_taken_and_so_nothing_is_reclaimed(desk: Desk, topic: Topic, hold: BackupHold) -> None:
    saved = desk.parts.snapshots.saved
    desk.write(topic, [b"more"])
    desk.snapshot()
    assert (desk.parts.snapshots.saved, desk.parts.snapshots.due, desk.parts.snapshots.wal_is_long) == (saved, 0, 0)
    hold.release("me")
    desk.snapshot()
    assert desk.parts.snapshots.saved == saved + 1


def test_a_deleted_topics_files_stay_until_it_is_released(desk: Desk, topic: Topic, hold: BackupHold) -> None:
    desk.write(topic, [b"one"])
    desk.checkpoint()
    directory = desk.parts.place.topic_dir(topic.id)
    desk.parts.catalog.delete(topic, if_empty=False, done=lambda topic, error: None)
    desk.settle()
    assert desk.disk.exists(directory)
    hold.release("me")
    desk.settle()
    assert not desk.disk.exists(directory)


def test_large_writes_go_through_the_log_while_it_is_held(desk: Desk, hold: BackupHold) -> None:
    direct, stage = desk.parts.direct, desk.topic("topicd.stage.x", durability="fsync")
    settings = desk.parts.place.settings
    size = settings.direct_bytes
    assert not direct.takes(stage, size, 1, copied=True)
    hold.release("me")
    assert direct.takes(stage, size, 1, copied=True)


def test_nothing_is_placed_and_nobody_is_told_while_it_is_frozen(desk: Desk, topic: Topic, hold: BackupHold) -> None:
    memory = desk.topic("quick", durability="memory")
    run(desk, hold.still("me"))
    run(desk, hold.freeze("me"))
    head = desk.parts.outlets[0].placed_pos
    assert desk.write(topic, [b"late"]) == desk.write(memory, [b"late"]) == []
    assert desk.parts.outlets[0].placed_pos == head
    assert (topic.seqs.visible, memory.seqs.visible) == (0, 0)
    hold.thaw()
    desk.settle()
    assert (topic.seqs.visible, memory.seqs.visible) == (1, 1)


def test_what_was_under_way_is_synced_before_the_freeze_is_answered(desk: Desk, topic: Topic, hold: BackupHold) -> None:
    run(desk, hold.still("me"))
    desk.append(topic, [b"under way"])
    desk.parts.turn.end()
    task = desk.loop.create_task(hold.freeze("me"))
    for _ in range(5):
        desk.turn()
    assert not task.done()
    desk.settle()
    assert task.done()
    assert desk.parts.outlets[0].everything_synced


def test_a_cut_without_a_freeze_is_refused(desk: Desk, hold: BackupHold) -> None:
    with pytest.raises(Conflict):
        hold.cut("me")
    run(desk, hold.still("me"))
    run(desk, hold.freeze("me"))
    hold.thaw()  # as its time does
    with pytest.raises(Conflict):
        hold.cut("me")


def test_a_freeze_needs_channels_that_stand_still(desk: Desk, hold: BackupHold) -> None:
    with pytest.raises(Conflict):
        run(desk, hold.freeze("me"))


def test_changes_of_channels_wait_until_it_is_over(desk: Desk, hold: BackupHold) -> None:
    files = desk.parts.channels.files
    run(desk, hold.still("me"))
    done: list[int] = []

    async def change() -> None:
        await files._change(lambda: done.append(1))

    task = desk.loop.create_task(change())
    for _ in range(5):
        desk.turn()
    assert done == []
    hold.release("me")
    desk.settle()
    assert task.done()
    assert done == [1]


def test_another_backup_waits_its_turn(desk: Desk, hold: BackupHold) -> None:
    with pytest.raises(Throttled):
        run(desk, hold.hold("you", LEASE_MS))
    assert hold.release("you") is False
    assert hold.release("me") is True
    assert hold.release("me") is False


def test_who_is_not_heard_of_any_more_holds_nothing(desk: Desk, hold: BackupHold) -> None:
    run(desk, hold.hold("me", 100))
    run(desk, hold.still("me"))
    run(desk, hold.freeze("me"))

    async def wait() -> None:
        while desk.parts.backlog.held:
            await asyncio.sleep(0.01)

    desk.loop.run_until_complete(asyncio.wait_for(wait(), 10))
    with pytest.raises(Conflict):
        run(desk, hold.still("me"))
    assert hold.lapsed == 1
