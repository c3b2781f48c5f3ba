"""Named durable consumers of a topic: up to where each has acknowledged. The changes themselves: ops/consumers.py."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from topicd.frames import FrameType
from topicd.shards.delivery.topic.part import TopicPart

CONSUMERS_MAX = 1_000  # per topic


class NamedConsumer(NamedTuple):
    name: str
    acked: int
    updated_ms: int


class ConsumerTable(TopicPart):
    KEY: ClassVar[str] = "consumers"
    FRAMES: ClassVar[frozenset[FrameType]] = frozenset({FrameType.CURSOR})

    def __init__(self) -> None:
        self._by_name: dict[str, NamedConsumer] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[NamedConsumer]:
        return iter(self._by_name.values())

    def get(self, name: str) -> NamedConsumer | None:
        return self._by_name.get(name)

    @property
    def acked_by_all(self) -> int:
        """Every consumer has acknowledged up to here; 0 without consumers."""
        return min((consumer.acked for consumer in self), default=0)

    @staticmethod
    def lag(consumer: NamedConsumer, visible: int, earliest: int) -> int:
        """Records that it has not acknowledged and can still read."""
        return max(0, visible - max(consumer.acked, earliest - 1))

    def figures(self, visible: int, earliest: int) -> tuple[int, ...]:
        """The lag of the one that is furthest behind."""
        return (max((self.lag(consumer, visible, earliest) for consumer in self), default=0),)

    def replay(self, kind: FrameType, body: dict[str, Any], ts: int) -> None:
        """Requests that were under way together: the first to open wins, an acknowledgement only goes forward and
        does not bring a removed consumer back."""
        name, acked, action = str(body["name"]), body["acked"], body["action"]
        known = self._by_name.get(name)
        if action == "open":
            counts = known is None
        elif action == "ack":
            counts = known is not None and known.acked < acked
        else:
            counts = True
        if counts and acked is None:
            self._by_name.pop(name, None)
        elif counts:
            self._by_name[name] = NamedConsumer(name, int(acked), ts)

    def to_snapshot(self, visible: int) -> list[Any]:
        return [[consumer.name, consumer.acked, consumer.updated_ms] for consumer in self]

    def restore(self, body: list[Any]) -> None:
        self._by_name = {row[0]: NamedConsumer(*row) for row in body}
