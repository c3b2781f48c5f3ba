"""A look at every topic, again and again, for what nobody's request brings about: records that outlived their TTL, seqs
that a topic at rest gives back, segments that are old enough to be sealed, files that could be given back, the bytes in
all, the topics written last, the consumers furthest behind.

Promise: it takes a small share of the processor, whatever the number of topics; with few of them it is done every
second.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from topicd.shards.delivery.laggards import Laggards
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.removing.reclaim import Reclaimer
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.slices import in_slices
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.log import Log
from topicd.shards.delivery.writing.reservation import return_seqs

PAUSE_S = 0.04  # between two slices, ten times as long: a tenth of the processor at most
TOP_TOPICS = 20  # whose figures are on the stats page


class Survey:
    def __init__(
        self,
        place: Place,
        catalog: Catalog,
        retention: Retention,
        backlog: Backlog,
        reclaimer: Reclaimer,
        log: Log,
        laggards: Laggards,
    ) -> None:
        self._place = place
        self._catalog = catalog
        self._retention = retention
        self._backlog = backlog
        self._reclaimer = reclaimer
        self._log = log
        self._laggards = laggards
        self._found: list[tuple[int, int]] = []  # the topics written last so far: when, id; a heap
        self._bytes = 0
        self.top: list[Topic] = []

    def run(self) -> Iterator[None]:
        """Once through all of them; yields where others may have their turn."""
        self._found, self._bytes = [], 0
        self._laggards.begin()
        yield from in_slices(list(self._catalog.by_name.values()), self._look)
        self._backlog.total_bytes = self._bytes
        self._laggards.finish()
        by_id = self._catalog.by_id
        self.top = [by_id[number] for _, number in sorted(self._found, reverse=True) if number in by_id]
        yield from self._find_aged()
        yield from self._reclaimer.look()

    def _look(self, topic: Topic) -> None:
        now = self._place.clock.now_ms()
        if self._retention.is_due(topic, now):
            self._retention.expire(topic)
        return_seqs(self._log, topic, now)
        self._bytes += topic.contents.bytes
        self._laggards.look(topic)
        found, written = self._found, topic.last_write_ms
        if len(found) < TOP_TOPICS:
            heapq.heappush(found, (written, topic.id))
        elif written > found[0][0]:
            heapq.heapreplace(found, (written, topic.id))

    def _find_aged(self) -> Iterator[None]:
        """Active segments that are old enough are sealed with the next round, whether they have new records or not."""
        age = self._place.settings.segment_max_age_ms
        if not age:
            return
        created_by = self._place.clock.now_ms() - age
        active, aged = self._backlog.active, self._backlog.aged

        def look(topic: Topic) -> None:
            segments = topic.contents.segments
            if topic.id in active and segments and segments[-1].created_ms <= created_by:
                aged[topic.id] = topic

        yield from in_slices(list(active.values()), look)
