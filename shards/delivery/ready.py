"""How eagerly a topic is served: its own priority plus a boost that fades after the last read."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topicd.shards.delivery.topic.topic import Topic

_BOOST = 500
_HALF_LIFE_MS = 30_000
_FORGOTTEN_MS = 300_000


def effective_priority(topic: Topic, now_ms: int) -> int:
    base = topic.config.priority or 0
    if not topic.config.auto_priority or not topic.last_read_ms:
        return base
    idle = max(0, now_ms - topic.last_read_ms)
    return base + (round(_BOOST * 2 ** (-idle / _HALF_LIFE_MS)) if idle < _FORGOTTEN_MS else 0)
