"""Named consumers that are furthest behind. Promise: whatever the number of consumers, the stats page holds a fixed
number of them, and how many there are and what all of them have not acknowledged together.

Found by the survey, which looks at every topic; the figures of those that were found are of the moment.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic

TOP_CONSUMERS = 20  # on the stats page
_NAME_SHOWN = 64


class Laggards:
    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._found: list[tuple[int, int, str]] = []  # lag, topic id, consumer: a heap of this look
        self._looked = (0, 0)  # consumers and their lag, so far
        self._furthest: list[tuple[int, str]] = []
        self._all = (0, 0)

    def begin(self) -> None:
        self._found, self._looked = [], (0, 0)

    def look(self, topic: Topic) -> None:
        if not len(topic.consumers):
            return
        visible, earliest = topic.seqs.visible, topic.floors.earliest
        number, total = self._looked
        for consumer in topic.consumers:
            lag = topic.consumers.lag(consumer, visible, earliest)
            number, total = number + 1, total + lag
            if len(self._found) < TOP_CONSUMERS:
                heapq.heappush(self._found, (lag, topic.id, consumer.name))
            elif lag > self._found[0][0]:
                heapq.heapreplace(self._found, (lag, topic.id, consumer.name))
        self._looked = (number, total)

    def finish(self) -> None:
        self._furthest = [(topic_id, name) for _, topic_id, name in sorted(self._found, reverse=True)]
        self._all = self._looked

    def page(self) -> dict[str, Any]:
        number, lag = self._all
        return {"consumers": number, "consumer_lag": lag, "top_consumers": list(self._rows())}

    def _rows(self) -> Iterator[list[Any]]:
        """Topic, consumer, the seq that it has acknowledged, its lag: as topicd.metrics.CONSUMER lists them."""
        for topic_id, name in self._furthest:
            topic = self._catalog.by_id.get(topic_id)
            consumer = topic.consumers.get(name) if topic is not None and topic.live else None
            if topic is None or consumer is None:
                continue  # gone since the look
            lag = topic.consumers.lag(consumer, topic.seqs.visible, topic.floors.earliest)
            yield [topic.name[:_NAME_SHOWN], name[:_NAME_SHOWN], consumer.acked, lag]
