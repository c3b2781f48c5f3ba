"""Which topics the snapshots of all shards give to this one. Promise: a snapshot is the last word on the names of its
partition, whatever the number of shards was then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from topicd import paths
from topicd.placement import delivery_shard
from topicd.shards.delivery.place import Place
from topicd.shards.storage.snapshot import Settled, SnapshotStore, logs_on_record
from topicd.shards.storage.topic_entry import TopicEntry


class Loaded(NamedTuple):
    entries: list[TopicEntry]  # of this shard's topics
    settled: list[Settled]
    ids: set[int]  # of all topics that the snapshots hold, whichever shard they belong to
    logs: dict[int, int]  # by WAL shard: so far its log was durable


def load_entries(place: Place, note_damage: Callable[[str], None], alive: Callable[[], None] = lambda: None) -> Loaded:
    """One of ours of this run says all; before the first of them, those of all shards of earlier runs do. alive: called
    often meanwhile."""
    found: list[tuple[tuple[int, int], dict[str, Any]]] = []
    for name in place.fs.listdir(place.data.meta):
        shard = paths.parse_shard_dir(name)
        if shard is None:
            continue
        alive()
        store = SnapshotStore(place.fs, place.data.snapshots(shard))
        found += [((int(body["run"]), number), body) for number, body in store.load_by_run()]
        for problem in store.problems:
            note_damage(f"snapshot passed over: {problem}")
    ids = {int(entry["id"]) for _, body in found for entry in body["topics"]}
    ours = [item for item in found if item[0][0] == place.run and int(item[1]["shard"]) == place.index]
    found = ours or [item for item in found if item[0][0] < place.run]
    entries: dict[str, TopicEntry] = {}
    settled: list[Settled] = []
    for _, body in sorted(found, key=lambda item: item[0]):
        shards, index = int(body["shards"]), int(body["shard"])
        entries = {name: e for name, e in entries.items() if delivery_shard(name, shards) != index}
        for row in body["topics"]:
            alive()
            entry = TopicEntry.from_wire(row)
            entries[entry.name] = entry
        settled.append(Settled(shards, index, int(body["settled_below"])))
    mine = [e for e in entries.values() if delivery_shard(e.name, place.delivery_shards) == place.index]
    return Loaded(mine, settled, ids, logs_on_record([body for _, body in found]))
