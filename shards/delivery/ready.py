"""Topics that moved and whose followers have not been told yet: each at most once, first in, first out."""

from __future__ import annotations

from topicd.shards.delivery.topic.topic import Topic

_BOOST = 500
_HALF_LIFE_MS = 30_000
_FORGOTTEN_MS = 300_000


class Ready:
    def __init__(self) -> None:
        self._topics: dict[int, Topic] = {}

    def __len__(self) -> int:
        return len(self._topics)

    def add(self, topic: Topic) -> None:
        if topic.id not in self._topics:
            self._topics[topic.id] = topic

    def next(self) -> Topic | None:
        for topic_id in self._topics:
            return self._topics.pop(topic_id)
        return None

    def forget(self, topic: Topic) -> None:
        self._topics.pop(topic.id, None)


def effective_priority(topic: Topic, now_ms: int) -> int:
    """The topic's own priority plus a boost that fades after the last read."""
    base = topic.config.priority or 0
    if not topic.config.auto_priority or not topic.last_read_ms:
        return base
    idle = max(0, now_ms - topic.last_read_ms)
    return base + (round(_BOOST * 2 ** (-idle / _HALF_LIFE_MS)) if idle < _FORGOTTEN_MS else 0)
