"""A channel that is a queue: elements of its log from a cursor on. Promise: an element is handed out at most once, for
the cursor behind it is durable before anybody gets it; pops that come while the cursor is written share the next write.

Where the cursor cannot be read, nothing is handed out until the queue is cleared: it might have been before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from topicd.errors import Internal, NeedsRecovery, QueueEmpty, TopicdError
from topicd.frames import core
from topicd.limits import CHANNEL_PAYLOAD_MAX
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.topic.topic import Topic

log = logging.getLogger(__name__)

TRIM_AFTER = 256  # popped elements stay in the log so long

SaveCursor = Callable[[int], Coroutine[Any, Any, None]]


class Element(NamedTuple):
    seq: int
    ts: int
    user: str
    data: bytes


class Queue:
    def __init__(self, handler: str, reader: Reader, save: SaveCursor, next_seq: int | None) -> None:
        self._handler = handler
        self._reader = reader
        self._save = save
        self.broken = next_seq is None  # the cursor could not be read
        self._durable = next_seq or 1  # what the file says
        self._given = self._durable  # what is promised to those whose pop is under way
        self._writing: asyncio.Future[None] | None = None
        self._failure: TopicdError = Internal("the cursor was not written")  # of the last write that failed
        self.trimmed = 0  # of the log, everything below it is on its way out

    @property
    def next_seq(self) -> int:
        return self._durable

    def depth(self, topic: Topic) -> int:
        """Elements that are there, or on their way in."""
        return max(0, topic.seqs.head - max(self._given, topic.floors.earliest) + 1)

    def check(self) -> None:
        if self.broken:
            raise NeedsRecovery(
                f"where channel {self._handler!r} goes on cannot be read: clear it, and what is in it is given up",
                channel=self._handler,
            )

    async def pop(self, topic: Topic) -> Element:
        self.check()
        element = self._next(topic)
        self._given = element.seq + 1
        while self._durable <= element.seq:
            if self._writing is None:
                await self._write()
            else:
                await asyncio.shield(self._writing)
            if self._given <= element.seq:
                # The write failed, for all whose pop it was: nobody got anything, and the next pop begins there again.
                raise self._failure
        return element

    async def _write(self) -> bool:
        """False: it could not be written, and nothing is promised to anybody any more."""
        writing = self._writing = asyncio.get_running_loop().create_future()
        upto = self._given
        try:
            await self._save(upto)
            self._durable = upto
            return True
        except TopicdError as exc:
            self._failure = exc
            self._given = self._durable
            return False
        finally:
            self._writing = None
            writing.set_result(None)

    def _next(self, topic: Topic) -> Element:
        if self._given <= topic.seqs.visible:
            found = self._reader.fetch(topic, self._given - 1, 1, 2 * CHANNEL_PAYLOAD_MAX, NO_FILTER)
            if found.count:
                part = found.parts[0]
                (row,) = core.decode_frames(part, 0, len(part))
                return Element(row[0], row[1], (row[2] or b"").decode(), bytes(row[5]))
        raise QueueEmpty(f"channel {self._handler!r} is empty", channel=self._handler)

    async def clear(self, head: int) -> None:
        """Everything up to head is given up."""
        while self._writing is not None:
            await asyncio.shield(self._writing)
        self._given = head + 1
        if not await self._write():
            raise self._failure
        self.broken = False

    def to_trim(self, topic: Topic) -> int:
        """Below this seq the log is not needed any more; 0: it is not worth a delete yet."""
        floor = max(self.trimmed, topic.floors.earliest)
        if self._durable - floor >= TRIM_AFTER or (self._durable > floor and self._durable > topic.seqs.head):
            self.trimmed = self._durable
            return self._durable
        return 0
