"""Jobs on their way to the dead letters, perhaps in another shard. Promise: a job is appended there before it is
deleted here, under a number of its own, so that it is there once however often this is repeated; one that cannot be
appended goes back to its queue.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol

from topicd.errors import Conflict, NotReady, TopicdError, TopicNotFound
from topicd.limits import SCATTERED
from topicd.shards.delivery.queues.letters import letter
from topicd.shards.delivery.queues.service import QueueService
from topicd.shards.delivery.queues.tools import Tools
from topicd.shards.delivery.reading.filters import NO_FILTER

log = logging.getLogger(__name__)

AT_ONCE = 64  # of one shard
_TRIES = 8
_PAUSE_S = 0.05
_PAUSE_MAX_S = 1.0
_BACK_MS = 1_000  # so long a job waits whose burial failed


class Road(Protocol):
    """To a topic of any shard."""

    async def open(self, topic: str, *, create: bool = True, internal: bool = False) -> int: ...

    async def append(
        self,
        topic: str,
        topic_id: int,
        producer_id: int,
        batch_no: int,
        frames: bytes | bytearray,
        count: int,
        options: bytes = b"",
    ) -> object: ...


class Burials:
    def __init__(self, tools: Tools, road: Road, loop: asyncio.AbstractEventLoop) -> None:
        self._tools = tools
        self._road = road
        self._loop = loop
        self._waiting: deque[tuple[QueueService, int]] = deque()
        self._under_way: set[tuple[int, int]] = set()  # (topic id, seq)
        self._tasks: set[asyncio.Task[None]] = set()
        self._others: set[asyncio.Task[None]] = set()
        tools.bury = self.bury

    def bury(self, service: QueueService) -> None:
        """All that are on their way out of this queue."""
        for seq in service.jobs.dying:
            if (service.topic.id, seq) not in self._under_way:
                self._under_way.add((service.topic.id, seq))
                self._waiting.append((service, seq))
        self._go_on()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Something that asks other shards, beside the requests."""
        task = self._loop.create_task(work)
        self._others.add(task)
        task.add_done_callback(self._others.discard)

    def _go_on(self) -> None:
        while self._waiting and len(self._tasks) < AT_ONCE and not self._tools.draining:
            service, seq = self._waiting.popleft()
            task = self._loop.create_task(self._bury(service, seq))
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._go_on()

    async def _bury(self, service: QueueService, seq: int) -> None:
        topic, jobs = service.topic, service.jobs
        error: TopicdError | None = None
        try:
            error = await self._try_often(service, seq)
        except Exception:
            log.exception("a dead letter could not be made", extra={"topic": topic.name, "seq": seq})
            error = NotReady("it could not be made")
        finally:
            self._under_way.discard((topic.id, seq))
        if self._tools.draining or not topic.live or seq not in jobs.dying:
            return  # a start goes on with it
        if error is None:
            service.ending().buried.append(seq)
            return
        where = topic.config.dead_letter
        log.warning("not buried", extra={"topic": topic.name, "seq": seq, "dead_letter": where, "error": str(error)})
        service.note_unburied(seq, str(error), _BACK_MS)

    async def _try_often(self, service: QueueService, seq: int) -> TopicdError | None:
        """None: it is there."""
        pause, error = _PAUSE_S, None
        for _ in range(_TRIES):
            if self._tools.draining or seq not in service.jobs.dying:
                break
            try:
                await self._append(service, seq)
                return None
            except TopicdError as exc:
                error = exc
                if not exc.retriable and not isinstance(exc, TopicNotFound):
                    break
            await asyncio.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)
        return error or NotReady("the daemon is stopping")

    async def _append(self, service: QueueService, seq: int) -> None:
        topic, jobs = service.topic, service.jobs
        name = topic.config.dead_letter
        if name is None:
            raise Conflict("the queue has no dead_letter any more")
        found = self._tools.reader.fetch(topic, seq - 1, 1, 1, NO_FILTER)
        stored = b"".join([bytes(part) for part in found.parts])
        frames = letter(stored, topic.name, jobs, jobs.past[seq])
        topic_id = await self._road.open(name)
        await self._road.append(name, topic_id, SCATTERED | topic.id, seq, frames, 1)
