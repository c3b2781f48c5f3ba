"""All that a shard does with channels, in one hand: made here, restored, served and brought to rest. The operations are
in ops/channels.py."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any

from topicd.errors import Internal, NotReady, TopicdError
from topicd.shards.delivery.channels.channel import Channel
from topicd.shards.delivery.channels.files import ChannelFiles
from topicd.shards.delivery.channels.logs import Logs
from topicd.shards.delivery.channels.mutations import Mutations
from topicd.shards.delivery.channels.publishing import Publishing
from topicd.shards.delivery.channels.registry import Registry
from topicd.shards.delivery.channels.restoring import Restoring
from topicd.shards.delivery.channels.slots import AskShard, Slots, TellShard
from topicd.shards.delivery.channels.store import ChannelStore
from topicd.shards.delivery.channels.tallies import Tallies
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.removing.deletion import Deletion
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.append import Appender
from topicd.shards.delivery.writing.outlet import Outlet

log = logging.getLogger(__name__)

_AT_ONCE = 16  # channels that are looked after together once the shard serves


class Channels:
    def __init__(
        self,
        place: Place,
        loop: asyncio.AbstractEventLoop,
        threads: Executor,
        catalog: Catalog,
        appender: Appender,
        reader: Reader,
        deletion: Deletion,
        outlets: list[Outlet],
        ask: AskShard,
        tell: TellShard,
    ) -> None:
        self._loop = loop
        self._deletion = deletion
        self._tasks: set[asyncio.Task[None]] = set()
        self.draining = False
        tallies = self.tallies = Tallies()
        self.registry = Registry(catalog, tallies)
        files = self.files = ChannelFiles(loop, threads, ChannelStore(place.fs, place.data, tallies))
        logs = self._logs = Logs(loop, catalog)
        self.slots = Slots(place, self.registry, ask, tell)
        self.mutations = Mutations(place, self.registry, files, logs, self.slots, reader)
        self.publishing = Publishing(place, loop, appender, reader, outlets, tallies)
        self._restoring = Restoring(place, self.registry, files, logs, catalog, reader)

    # ---- life ----

    def restore(self, pulse: Callable[[], None] = lambda: None) -> list[str]:
        """Before the shard serves; what could not be read."""
        return self._restoring.run(pulse)

    def open(self) -> None:
        """The shard serves: what a crash has left is put in order."""
        for topic in self._restoring.orphans():
            self._logs.drop(topic)
        self.begin(self._mend(self.registry.all()))

    async def _mend(self, channels: list[Channel]) -> None:
        for at in range(0, len(channels), _AT_ONCE):
            for channel in channels[at : at + _AT_ONCE]:
                try:
                    await self._restoring.mend(channel)
                except TopicdError as exc:
                    log.warning("channel not in order", extra={"channel": channel.handler, "error": exc.message})

    @property
    def idle(self) -> bool:
        """No change is under way."""
        return not self._tasks

    # ---- requests ----

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def answer_later(
        self,
        work: Coroutine[Any, Any, dict[str, Any]],
        answer: Callable[[dict[str, Any]], None],
        refuse: Callable[[TopicdError], None],
    ) -> None:
        """The work is done whatever becomes of who asked for it."""
        if self.draining:
            work.close()
            raise NotReady("the daemon is stopping", retry_after_ms=500)
        self.begin(self._answer(work, answer, refuse))

    @staticmethod
    async def _answer(
        work: Coroutine[Any, Any, dict[str, Any]],
        answer: Callable[[dict[str, Any]], None],
        refuse: Callable[[TopicdError], None],
    ) -> None:
        try:
            answer(await work)
        except TopicdError as exc:
            refuse(exc)
        except Exception:
            log.exception("change of a channel failed")
            refuse(Internal("the request failed inside the daemon; its log says why"))

    # ---- queues ----

    async def pop(self, channel: Channel, topic: Topic) -> dict[str, Any]:
        queue = channel.queue
        if queue is None:
            raise Internal(f"channel {channel.handler!r} is a queue without one")
        element = await queue.pop(topic)
        self.tallies.popped += 1
        self._trim(channel, topic)
        return {"seq": element.seq, "ts": element.ts, "from": element.user, "data": element.data}

    async def clear(self, channel: Channel) -> dict[str, Any]:
        """The cursor first: what it has passed is given up, whether the log still holds it or not."""
        async with channel.turn():
            queue, topic = channel.queue, channel.log()
            if queue is None:
                raise Internal(f"channel {channel.handler!r} is a queue without one")
            cleared = 0 if queue.broken else queue.depth(topic)
            await queue.clear(topic.seqs.head)
            self._trim(channel, topic)
            return {"cleared": cleared, "next_seq": queue.next_seq}

    def _trim(self, channel: Channel, topic: Topic) -> None:
        below = channel.queue.to_trim(topic) if channel.queue is not None else 0
        if below and topic.live:
            self._deletion.delete(topic, below, None, lambda body, error: None)
