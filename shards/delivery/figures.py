"""The stats page of a delivery shard: counters, gauges and the topics written last. Each key is one of
topicd.metrics.DELIVERY.
"""

from __future__ import annotations

from typing import Any

from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.sessions.connections import Connections
from topicd.shards.delivery.storing.rounds import Rounds
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
    ) -> None:
        self._counters = counters
        self._catalog = catalog
        self._outlets = outlets
        self._rounds = rounds
        self._segments = segments
        self._connections = connections
        self._survey = survey

    def page(self) -> dict[str, Any]:
        return {
            "topics": len(self._catalog.by_name),
            "sessions": len(self._connections.open),
            **self._counters.page(),
            "top_topics": [_row(topic) for topic in self._survey.top if topic.live],
            "in_flight_bytes": sum(outlet.in_flight_bytes for outlet in self._outlets),
            "ring_backlog_bytes": sum(outlet.backlog_bytes for outlet in self._outlets),
            "mapped_bytes": self._segments.held_bytes,
            **self._rounds.page(),
        }


def _row(topic: Topic) -> list[Any]:
    """Name, newest seq, records, bytes, then the figures of its parts: as topicd.metrics.TOPIC lists them."""
    visible, earliest, contents = topic.seqs.visible, topic.floors.earliest, topic.contents
    figures = [figure for part in topic.parts() for figure in part.figures(visible, earliest)]
    return [topic.name[:64], visible, contents.count, contents.bytes, *figures]
