"""Topics that neither snapshots nor the log know any more. Promise: no directory of records is passed over in silence,
and none whose label can be read is left out: it is adopted, loudly, and nothing is removed from it until somebody
configures it again.

A topic that was deleted is no orphan: a snapshot that covers its id and does not hold it says so, or the log does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from topicd import paths
from topicd.disk.fs import is_directory
from topicd.disk.refusal import raise_refusal
from topicd.errors import FormatError, TopicdError
from topicd.model import TopicConfig
from topicd.placement import delivery_shard, wal_shard
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.starting.snapshot_entries import Loaded
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.places import list_segments
from topicd.shards.storage.snapshot import Settled
from topicd.shards.storage.topic_label import Label, read_label

_NAMELESS = "recovered."  # and the id


class Orphans:
    def __init__(self, place: Place, catalog: Catalog, note_damage: Callable[[str], None]) -> None:
        self._place = place
        self._catalog = catalog
        self._note_damage = note_damage
        self._settled: list[Settled] = []
        self._known: set[int] = set()  # of whichever shard; those that were deleted too
        self._labels: dict[int, Label] = {}

    def open(self, snapshots: Loaded) -> None:
        """Before the log is read."""
        self._settled = snapshots.settled
        self._known = set(snapshots.ids)
        self._labels = {label.id: label for label in self._find()}

    def note_known(self, topic_id: int) -> None:
        """The log speaks of its creation or its end."""
        self._known.add(topic_id)
        self._labels.pop(topic_id, None)

    def adopt(self, topic_id: int) -> Topic | None:
        """A frame of a topic that nobody knows. None: it belongs to another shard, or is gone."""
        label = self._labels.pop(topic_id, None)
        if label is not None:
            return self._take(label)
        if topic_id in self._known or any(topic_id < settled.below for settled in self._settled):
            return None
        # Its creation was in the log and cannot be read; its records can.
        name = f"{_NAMELESS}{paths.topic_dir_name(topic_id)}"
        if delivery_shard(name, self._place.delivery_shards) != self._place.index or name in self._catalog.by_name:
            self._known.add(topic_id)
            return None
        return self._take(Label(topic_id, name, {}, self._place.clock.now_ms()))

    def adopt_rest(self) -> list[Topic]:
        """At the end of the log."""
        found = [self._take(self._labels.pop(topic_id)) for topic_id in sorted(self._labels)]
        return [topic for topic in found if topic is not None]

    def _find(self) -> list[Label]:
        """Labels of directories that no snapshot knows, and that are this shard's by their names."""
        place, found = self._place, []
        for name in sorted(place.fs.listdir(place.data.topics)):
            parsed = paths.parse_topic_dir(name)
            if parsed is None or parsed[1] or parsed[0] in self._known:
                continue
            directory = place.data.topic(parsed[0])
            try:
                label = read_label(place.fs, directory)
            except (FormatError, OSError) as exc:
                raise_refusal(exc)
                continue  # missing, as in earlier versions, torn, or rotten: see nameless()
            mine = delivery_shard(label.name, place.delivery_shards) == place.index
            covered = any(settled.covers(label.name, label.id) for settled in self._settled)
            if label.id == parsed[0] and mine and not covered:
                found.append(label)
        return found

    def nameless(self) -> list[str]:
        """Directories with records that belong to nobody known. One shard asks, at the end of the log."""
        place, found = self._place, []
        for name in place.fs.listdir(place.data.topics):
            parsed = paths.parse_topic_dir(name)
            if parsed is None or parsed[1] or parsed[0] in self._known or parsed[0] in self._catalog.by_id:
                continue
            if any(parsed[0] < settled.below for settled in self._settled):
                continue  # deleted, and its files have not gone yet
            directory = place.data.topic(parsed[0])
            try:
                read_label(place.fs, directory)
            except (FormatError, OSError) as exc:
                raise_refusal(exc)
                if is_directory(place.fs, directory) and list_segments(place.fs, directory):
                    found.append(f"{directory}: belongs to no topic that is known, and does not say whose it is: {exc}")
        return sorted(found)

    def _take(self, label: Label) -> Topic | None:
        place = self._place
        self._known.add(label.id)
        other = self._catalog.by_name.get(label.name)
        if other is not None:
            self._note_damage(f"{place.data.topic(label.id)}: belongs to an earlier topic {label.name}, left as it is")
            return None
        try:
            config = TopicConfig.from_stored(label.config)
        except TopicdError:
            config = TopicConfig()
        # What limits it now is not known: nothing goes before somebody says so.
        config = replace(config, ttl_ms=0, cap_records=0, cap_bytes=0, retain="all")
        topic = Topic(label.id, label.name, config, wal_shard(label.id, place.wal_shards), label.created_ms)
        self._catalog.add(topic)
        self._note_damage(
            f"topic {label.name}: neither snapshots nor the log know of it; adopted with what is left of its records, "
            "without limits, deletes and consumers"
        )
        return topic
