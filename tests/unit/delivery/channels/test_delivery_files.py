"""The store from the loop: what the disk refuses is an error of the contract."""

from __future__ import annotations

import pytest

from tests.unit.delivery.desk import Desk
from topicd.channel import ChannelConfig, ChannelState
from topicd.errors import Internal, StorageFailed
from topicd.shards.delivery.channels.files import ChannelFiles
from topicd.shards.delivery.channels.store import ChannelStore
from topicd.shards.delivery.channels.tallies import Tallies

STATE = ChannelState("lobby", "ann", members=("ann",), config=ChannelConfig(persist=True), log="a")


@pytest.fixture
def files(desk: Desk) -> ChannelFiles:
    place = desk.parts.place
    return ChannelFiles(desk.loop, desk_pool(desk), ChannelStore(place.fs, place.data, Tallies()))


def desk_pool(desk: Desk) -> object:
    from tests.faults.machine import Inline

    return Inline()


def test_saved_and_deleted(desk: Desk, files: ChannelFiles) -> None:
    run = desk.loop.run_until_complete
    saved = run(files.save(STATE, None))
    assert files.store.load(saved.hash) == (STATE, saved)
    run(files.delete(saved))
    run(files.delete(None))
    assert files.store.enumerate().hashes == []


def test_what_the_disk_refuses(desk: Desk, files: ChannelFiles) -> None:
    desk.fail_disk(code=28)
    with pytest.raises(StorageFailed) as refused:
        desk.loop.run_until_complete(files.save(STATE, None))
    assert refused.value.detail["errno"] == 28


def test_a_queue_writes_its_cursor_beside_the_metadata(desk: Desk, files: ChannelFiles) -> None:
    saved = desk.loop.run_until_complete(files.save(STATE, None))
    queue = files.queue(STATE, saved, desk.parts.reader, 1)
    desk.loop.run_until_complete(queue.clear(41))
    assert files.store.load_cursor(saved.hash) == 42
    with pytest.raises(Internal):
        files.queue(STATE, None, desk.parts.reader, 1)
