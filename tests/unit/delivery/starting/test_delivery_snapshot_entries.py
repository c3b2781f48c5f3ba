"""Which topics the snapshots give to a shard, whatever the number of shards was when they were taken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.delivery.kit import make_disk, make_place, make_topic
from topicd.paths import snapshot_name
from topicd.placement import delivery_shard
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.starting.snapshot_entries import Loaded, Settled, load_entries
from topicd.shards.delivery.storing.topic_state import entry_of
from topicd.shards.storage.snapshot import SnapshotStore

NAMES = [f"t{n}" for n in range(12)]


def save(fs: Any, run: int, shard: int, shards: int, names: dict[str, int], below: int = 1000) -> None:
    place = make_place(fs)
    topics = [entry_of(make_topic(name, topic_id)).to_wire() for name, topic_id in names.items()]
    body = {"run": run, "shard": shard, "shards": shards, "settled_below": below, "topics": topics}
    siblings = [place.data.snapshots(index) for index in range(shards)]
    SnapshotStore(fs, place.data.snapshots(shard), run).save(body, siblings)


def owned(shard: int, shards: int, base: int = 0) -> dict[str, int]:
    return {name: base + n for n, name in enumerate(NAMES, 1) if delivery_shard(name, shards) == shard}


def at(fs: Any, run: int, index: int, shards: int) -> Place:
    place = make_place(fs, index=index, shards=shards)
    place.run = run
    return place


def load(fs: Any, run: int, index: int, shards: int) -> dict[str, int]:
    damage: list[str] = []
    entries = load_entries(at(fs, run, index, shards), damage.append).entries
    assert damage == []
    return {entry.name: entry.id for entry in entries}


def test_without_snapshots_there_is_nothing() -> None:
    assert load_entries(at(make_disk(), 1, 0, 1), lambda what: None) == Loaded([], [], set(), {})


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("before", [1, 2, 3])
def test_every_topic_goes_to_exactly_one_shard(before: int, after: int) -> None:
    disk = make_disk()
    for shard in range(before):
        save(disk, 1, shard, before, owned(shard, before))
    found = [load(disk, 2, index, after) for index in range(after)]
    assert found == [owned(index, after) for index in range(after)]


def test_a_snapshot_is_the_last_word_on_the_names_of_its_partition() -> None:
    """Two shards in run 1; one in run 2, where a topic was deleted and one created again."""
    disk = make_disk()
    for shard in range(2):
        save(disk, 1, shard, 2, owned(shard, 2))
    later = owned(0, 1)
    del later["t3"]
    later["t4"] = 500
    save(disk, 2, 0, 1, later)
    assert load(disk, 3, 0, 1) == later
    assert "t3" not in {**load(disk, 3, 0, 2), **load(disk, 3, 1, 2)}


def test_one_of_ours_of_this_run_says_all() -> None:
    disk = make_disk()
    save(disk, 1, 0, 1, owned(0, 1))
    save(disk, 2, 0, 1, {"t1": 2})
    assert load(disk, 2, 0, 1) == {"t1": 2}


def test_those_of_siblings_of_this_run_do_not_count_before_ours() -> None:
    """They hold what the siblings had, and nothing of ours."""
    disk = make_disk()
    save(disk, 1, 0, 1, owned(0, 1))
    save(disk, 2, 1, 2, {})
    assert load(disk, 2, 0, 2) == owned(0, 2)
    assert load(disk, 2, 1, 2) == {}


def test_the_newest_of_a_shard_counts() -> None:
    disk = make_disk()
    save(disk, 1, 0, 1, {"t1": 1, "t2": 2})
    save(disk, 1, 0, 1, {"t1": 1})
    assert load(disk, 2, 0, 1) == {"t1": 1}


def test_one_that_cannot_be_read_is_said_and_the_one_before_it_counts() -> None:
    disk, damage = make_disk(), []
    place = at(disk, 2, 0, 1)
    save(disk, 1, 0, 1, {"t1": 1})
    save(disk, 1, 0, 1, {"t1": 1, "t2": 2})
    store = SnapshotStore(disk, place.data.snapshots(0))
    file = disk.open(place.data.snapshots(0) / snapshot_name(store.numbers()[-1]), write=True)
    file.pwrite([b"\xff" * 8], 20)
    file.close()
    entries = load_entries(place, damage.append).entries
    assert [entry.name for entry in entries] == ["t1"]
    assert len(damage) == 1


def test_settled_covers_the_names_of_its_partition_below_its_id() -> None:
    settled = Settled(2, delivery_shard("t1", 2), 10)
    other = next(name for name in NAMES if delivery_shard(name, 2) != settled.index)
    assert [settled.covers("t1", topic_id) for topic_id in (9, 10)] == [True, False]
    assert not settled.covers(other, 9)


def test_every_snapshot_that_counts_says_what_is_settled() -> None:
    disk = make_disk()
    for shard in range(2):
        save(disk, 1, shard, 2, owned(shard, 2), below=100 + shard)
    settled = load_entries(at(disk, 2, 0, 1), lambda what: None).settled
    assert sorted(settled) == [Settled(2, 0, 100), Settled(2, 1, 101)]
