"""Records of the shard itself."""

from __future__ import annotations

import errno

import pytest

from tests.unit.delivery.desk import Desk
from topicd.errors import StorageFailed
from topicd.shards.delivery.routing.own_topic import OwnTopic


def own_topic(desk: Desk) -> OwnTopic:
    parts = desk.parts
    return OwnTopic("topicd.routers", desk.loop, parts.catalog, parts.appender, parts.agenda)


def test_it_is_made_at_first_use_and_synced(desk: Desk) -> None:
    own = own_topic(desk)
    assert own.topic is None
    opening = desk.loop.create_task(own.open())
    desk.settle()
    topic = opening.result()
    assert topic.config.durability == "fsync"
    writing = desk.loop.create_task(own.append(topic, b"data", "tag"))
    desk.turn()
    desk.turn()
    assert not writing.done()
    desk.settle()
    assert writing.result() == 1


def test_what_the_disk_refuses_is_an_error(desk: Desk) -> None:
    own = own_topic(desk)
    opening = desk.loop.create_task(own.open())
    desk.settle()
    writing = desk.loop.create_task(own.append(opening.result(), b"data", "tag"))
    desk.turn()
    desk.turn()
    desk.fail_wal(errno.EIO)
    desk.settle()
    with pytest.raises(StorageFailed):
        writing.result()
