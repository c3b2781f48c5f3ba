"""Directories of records that snapshots and log do not know: adopted loudly, or named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.delivery.kit import make_disk, make_place
from topicd.shards.delivery.starting.orphans import Orphans
from topicd.shards.delivery.starting.snapshot_entries import Loaded, Settled
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.storage.segment.names import DATA
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.topic_label import Label, add_label


class Scene:
    def __init__(self, *, ids: set[int] | None = None, below: int = 0) -> None:
        self.disk = make_disk()
        self.place = make_place(self.disk)
        nothing: Any = None
        self.catalog = Catalog(self.place, nothing, nothing)
        self.damage: list[str] = []
        self.orphans = Orphans(self.place, self.catalog, self.damage.append)
        self._loaded = Loaded([], [Settled(1, 0, below)] if below else [], ids or set(), {})

    def directory(self, topic_id: int, name: str | None, **config: Any) -> None:
        where = self.place.data.topic(topic_id)
        self.disk.mkdir(where)
        if name is not None:
            add_label(self.disk, where, Label(topic_id, name, config, 5))
        file = self.disk.open(resolve(where, 1).file(DATA), write=True, create=True)
        file.pwrite([b"x"], 0)
        file.close()

    def open(self) -> Orphans:
        self.orphans.open(self._loaded)
        return self.orphans


def test_a_directory_that_says_whose_it_is_is_adopted_loudly_and_without_limits() -> None:
    scene = Scene()
    scene.directory(7, "orders", cap_records=5, ttl_ms=9, durability="fsync")
    [topic] = scene.open().adopt_rest()
    assert (topic.id, topic.name, topic.config.durability) == (7, "orders", "fsync")
    assert (topic.config.cap_records, topic.config.ttl_ms) == (0, 0)
    assert scene.catalog.by_name["orders"] is topic
    assert any("orders" in line and "adopted" in line for line in scene.damage)


def test_what_a_snapshot_holds_or_has_seen_deleted_is_no_orphan() -> None:
    for scene in (Scene(ids={7}), Scene(below=8)):
        scene.directory(7, "orders")
        assert scene.open().adopt_rest() == []
        assert scene.orphans.nameless() == scene.damage == []


def test_what_the_log_speaks_of_is_no_orphan() -> None:
    scene = Scene()
    scene.directory(7, "orders")
    scene.open().note_known(7)
    assert scene.orphans.adopt_rest() == []


def test_records_without_a_creation_are_served_under_a_name_of_their_own() -> None:
    topic = Scene().open().adopt(7)
    assert topic is not None
    assert topic.name.startswith("recovered.")


def test_a_name_that_is_taken_stays_with_its_topic() -> None:
    scene = Scene()
    scene.directory(7, "orders")
    scene.directory(9, "orders")
    assert [topic.id for topic in scene.open().adopt_rest()] == [7]
    assert any("earlier topic orders" in line for line in scene.damage)


@pytest.mark.parametrize("known", [True, False])
def test_a_directory_without_a_label_is_named_if_nobody_knows_it(known: bool) -> None:
    scene = Scene(ids={7} if known else set())
    scene.directory(7, None)
    found = scene.open().nameless()
    assert (len(found) == 0) is known
