"""What is in use, and how much of it there may be: requests under way and open streams, in all and per key. Promise: a
place that was taken is given back once, and no more are taken than there are; 0 is no limit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from topicd.config import Settings
from topicd.gateway.errors import capped


class Usage:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.streams = 0
        self._requests_of: Counter[str] = Counter()
        self._streams_of: Counter[str] = Counter()

    def begin_request(self, key: str | None) -> None:
        if key is None:
            return
        most = self.settings.max_inflight_per_key
        if most and self._requests_of[key] >= most:
            raise capped("max_inflight_per_key", most)
        self._requests_of[key] += 1

    def end_request(self, key: str | None) -> None:
        if key is not None:
            _less(self._requests_of, key)

    def check_stream(self, key: str | None) -> None:
        most, each = self.settings.max_sse_connections, self.settings.max_sse_connections_per_key
        if most and self.streams >= most:
            raise capped("max_sse_connections", most)
        if key is not None and each and self._streams_of[key] >= each:
            raise capped("max_sse_connections_per_key", each)

    @contextmanager
    def stream(self, key: str | None) -> Iterator[None]:
        """A place for an open stream; Refusal if there is none."""
        self.check_stream(key)
        self.streams += 1
        if key is not None:
            self._streams_of[key] += 1
        try:
            yield
        finally:
            self.streams -= 1
            if key is not None:
                _less(self._streams_of, key)


def _less(counts: Counter[str], key: str) -> None:
    counts[key] -= 1
    if counts[key] <= 0:
        del counts[key]
