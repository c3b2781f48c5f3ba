"""Free idempotency keys, for writers without a producer id: remembered for a while, in memory only.

Promise: bounded in number and age; losing the window at a restart is harmless, the key is then new.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from topicd.clock import Clock

if TYPE_CHECKING:
    from topicd.shards.delivery.topic.topic import Topic

KEYS_KEPT = 100_000  # per shard, oldest go first


class _Known(NamedTuple):
    expires_ms: int
    first_seq: int
    records: int


class KeyWindow:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[tuple[int, bytes], _Known] = OrderedDict()

    def lookup(self, topic: Topic, key: bytes) -> tuple[int, int] | None:
        known = self._known.get((topic.id, key))
        if known is None or known.expires_ms < self._clock.now_ms():
            return None
        return known.first_seq, known.records

    def remember(self, topic: Topic, key: bytes, first_seq: int, count: int) -> None:
        window = topic.config.idempotency_window_ms
        if not window:
            return
        expires = self._clock.now_ms() + window
        self._known[(topic.id, key)] = _Known(expires, first_seq, count)
        self._known.move_to_end((topic.id, key))
        while len(self._known) > KEYS_KEPT:
            self._known.popitem(last=False)

    def forget(self, topic: Topic, key: bytes) -> None:
        if key:
            self._known.pop((topic.id, key), None)
