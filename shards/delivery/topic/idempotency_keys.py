"""Free idempotency keys, for writers without a producer id: remembered for a while, in memory only.

Promise: bounded in number and age; losing the window at a restart is harmless, the key is then new.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from topicd.clock import Clock

KEYS_KEPT = 100_000  # per shard, oldest go first


class _Known(NamedTuple):
    expires_ms: int
    first_seq: int
    records: int


class IdempotencyKeys:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[tuple[int, bytes], _Known] = OrderedDict()

    def lookup(self, topic_id: int, key: bytes) -> tuple[int, int] | None:
        known = self._known.get((topic_id, key))
        if known is None or known.expires_ms < self._clock.now_ms():
            return None
        return known.first_seq, known.records

    def remember(self, topic_id: int, key: bytes, first_seq: int, count: int, window_ms: int) -> None:
        if not window_ms:
            return
        expires = self._clock.now_ms() + window_ms
        self._known[(topic_id, key)] = _Known(expires, first_seq, count)
        self._known.move_to_end((topic_id, key))
        while len(self._known) > KEYS_KEPT:
            self._known.popitem(last=False)

    def forget(self, topic_id: int, key: bytes) -> None:
        self._known.pop((topic_id, key), None)
