"""The stats page of a delivery shard: counters, gauges, the topics written last, the consumers furthest
behind. Each key is one of topicd.metrics.DELIVERY.
"""

from __future__ import annotations

from typing import Any

from topicd.clock import Clock
from topicd.shards.delivery.channels.tallies import Tallies
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.laggards import Laggards
from topicd.shards.delivery.load import Load
from topicd.shards.delivery.queues.queues import Queues
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.reading.subscriptions import Pushing
from topicd.shards.delivery.ready import effective_priority
from topicd.shards.delivery.routing.workshop import Workshop
from topicd.shards.delivery.sessions.connections import Connections
from topicd.shards.delivery.storing.backup_hold import BackupHold
from topicd.shards.delivery.storing.rounds import Rounds
from topicd.shards.delivery.storing.tiering import Tiering
from topicd.shards.delivery.survey import Survey
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.outlet import Outlet


class Figures:
    def __init__(
        self,
        counters: Counters,
        catalog: Catalog,
        outlets: list[Outlet],
        rounds: Rounds,
        segments: Segments,
        connections: Connections,
        survey: Survey,
        queues: Queues,
        load: Load,
        clock: Clock,
        pushing: Pushing,
        tallies: Tallies,
        shop: Workshop,
        reader: Reader,
        backup_hold: BackupHold,
        laggards: Laggards,
        tiering: Tiering,
    ) -> None:
        self._counters = counters
        self._catalog = catalog
        self._outlets = outlets
        self._rounds = rounds
        self._segments = segments
        self._connections = connections
        self._survey = survey
        self._queues = queues
        self._load = load
        self._clock = clock
        self._pushing = pushing
        self._tallies = tallies
        self._shop = shop
        self._reader = reader
        self._backup_hold = backup_hold
        self._laggards = laggards
        self._tiering = tiering

    def page(self) -> dict[str, Any]:
        return {
            "topics": len(self._catalog.by_name),
            "sessions": self._connections.clients,
            **self._counters.page(),
            "damaged": self._counters.told(),
            "delivered": self._reader.delivered,
            **self._load.page(),
            "lagging": len(self._pushing.lagging),
            "cut_off": self._connections.cut_off,
            "top_topics": [self._row(topic) for topic in self._survey.top if topic.live],
            "in_flight_bytes": sum(outlet.in_flight_bytes for outlet in self._outlets),
            "ring_backlog_bytes": sum(outlet.backlog_bytes for outlet in self._outlets),
            "append_histogram": [sum(row) for row in zip(*(o.latency.counts for o in self._outlets), strict=True)],
            "append_seconds_total": sum(outlet.latency.total_s for outlet in self._outlets),
            "mapped_bytes": self._segments.held_bytes,
            **self._laggards.page(),
            **self._queues.page(),
            **self._shop.page(),
            **self._rounds.page(),
            **self._tallies.page(),
            **self._backup_hold.page(),
            **self._tiering.page(),
        }

    def _row(self, topic: Topic) -> list[Any]:
        """Name, newest seq, records, bytes, priority, then the figures of its parts: as topicd.metrics.TOPIC lists
        them."""
        if topic.queue is not None:
            self._queues.of(topic).look()
        visible, earliest, contents = topic.seqs.visible, topic.floors.earliest, topic.contents
        priority = effective_priority(topic, self._clock.now_ms(), self._clock.monotonic())
        figures = [figure for part in topic.parts() for figure in part.figures(visible, earliest)]
        return [topic.name[:64], visible, contents.count, contents.bytes, priority, *figures]
