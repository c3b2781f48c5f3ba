"""The segments of this shard's topics, open for reading, by topic."""

from __future__ import annotations

from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.elsewhere import FramesElsewhere
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.lookup import SegmentLookup
from topicd.shards.storage.segment.reader import SegmentReader
from topicd.shards.storage.segment.reader_cache import ReaderCache


class Segments:
    def __init__(self, place: Place, elsewhere: FramesElsewhere | None = None) -> None:
        self._topic_dir = place.topic_dir
        self._elsewhere = elsewhere
        opens = None if elsewhere is None else elsewhere.open
        self._cache = ReaderCache(place.fs, place.settings.map_cache_bytes, elsewhere=opens)

    def reader(self, topic: Topic, info: SegmentInfo) -> SegmentReader:
        return self._cache.get(topic.id, self._topic_dir(topic.id), info)

    def glance(self, topic: Topic, info: SegmentInfo) -> SegmentReader:
        """Cheaper for few records; see ReaderCache.glance."""
        return self._cache.glance(topic.id, self._topic_dir(topic.id), info)

    def lookup(self, topic: Topic, info: SegmentInfo) -> SegmentLookup:
        return self._cache.lookup(topic.id, self._topic_dir(topic.id), info)

    def drop(self, topic: Topic, first_seq: int | None = None) -> None:
        """Forget what is open of one segment, or of all."""
        self._cache.drop(topic.id, first_seq)
        if self._elsewhere is not None:
            self._elsewhere.drop(self._topic_dir(topic.id), first_seq)

    @property
    def held_bytes(self) -> int:
        return self._cache.held_bytes
