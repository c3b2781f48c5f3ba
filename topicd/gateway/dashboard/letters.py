"""Dead letters as somebody looks at them and chooses of them. Promise: at most SCAN letters are looked at for one
question, and the answer says where to go on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from topicd._native import core
from topicd._native.interface import Decoded
from topicd.client.core.queue_answers import DeadLetter
from topicd.client.core.records import received
from topicd.client.core.requests import fetch
from topicd.errors import FormatError
from topicd.gateway.dashboard.showing import shown
from topicd.gateway.shards import Shards
from topicd.limits import MIB

SCAN = 20_000
_BLOCK = 1_000


class Letter(NamedTuple):
    record: Decoded
    letter: DeadLetter

    def row(self) -> dict[str, Any]:
        one = self.letter
        found = shown(self.record)
        found.pop("meta", None)
        told = {"job_seq": one.job_seq, "deliveries": one.deliveries, "reason": one.reason, "queue": one.queue}
        return {**found, **told, "first_ts": one.first_ts, "last_ts": one.last_ts}

    def contains(self, needle: str) -> bool:
        """In its reason, tag or data, whatever the case."""
        if not needle:
            return True
        low = needle.lower()
        texts = (self.letter.reason, self.letter.tag or "")
        return any(low in text.lower() for text in texts) or low.encode() in bytes(self.letter.data).lower()


class Letters:
    """Of one queue in its dead-letter topic; `at` is how far was looked, None at the end."""

    def __init__(self, shards: Shards, topic: str, queue: str, from_seq: int, needle: str) -> None:
        self._shards = shards
        self._topic = topic
        self._queue = queue
        self._needle = needle
        self.at: int | None = from_seq
        self.looked = 0

    async def __aiter__(self) -> AsyncIterator[Letter]:
        while self.at is not None and self.looked < SCAN:
            request = fetch(
                self.at,
                limit=_BLOCK,
                max_bytes=1 * MIB,
                match=None,
                nodes=None,
                from_time=None,
                metadata_only=False,
                performance=False,
                epoch=None,
            )
            page = await self._shards.fetch(self._topic, request)
            try:
                records = core.decode_frames(page.buffer, page.start, page.end)
            except ValueError as exc:
                raise FormatError(f"a shard sent records that are malformed: {exc.args[-1]}") from None
            for record in records:
                self.at = record[0]
                self.looked += 1
                one = Letter(record, DeadLetter(received(self._topic, record)))
                if one.letter.queue == self._queue and one.contains(self._needle):
                    yield one
            self.at = None if page.next_from_seq >= page.head_seq else page.next_from_seq
