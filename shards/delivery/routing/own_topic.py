"""Records that the shard itself writes to a topic of its own. Promise: what is returned is stored as the topic's class
demands."""

from __future__ import annotations

import asyncio

from topicd.errors import TopicdError
from topicd.frames import core
from topicd.model import TopicConfig
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.flight import InFlight, Waiter
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.append import Appender


class _Answer:
    """Who waits for one append (topic.flight.Replier)."""

    def __init__(self, future: asyncio.Future[int]) -> None:
        self._future = future

    def appended(self, waiter: Waiter, head: int, entry: InFlight) -> None:
        if not self._future.done():
            self._future.set_result(waiter.first_seq)

    def append_refused(self, request_id: int, error: TopicdError) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    def deduped(self, waiter: Waiter, head: int) -> None:
        self._future.set_result(waiter.first_seq)

    def run_appended(self, request_ids: bytes, first_seq: int, head: int) -> None:
        raise AssertionError("one record at a time")


class OwnTopic:
    def __init__(
        self,
        name: str,
        loop: asyncio.AbstractEventLoop,
        catalog: Catalog,
        appender: Appender,
        agenda: Agenda,
    ) -> None:
        self._name = name
        self._loop = loop
        self._catalog = catalog
        self._appender = appender
        self._agenda = agenda

    @property
    def topic(self) -> Topic | None:
        return self._catalog.find(self._name)

    async def open(self) -> Topic:
        """Made at first use, synced with every record."""
        topic = self.topic
        if topic is not None:
            return topic
        future: asyncio.Future[Topic] = self._loop.create_future()

        def done(born: Topic | None, error: TopicdError | None) -> None:
            if future.done():
                return
            if born is not None:
                future.set_result(born)
            else:
                future.set_exception(error or TopicdError("not created"))

        self._catalog.create(self._name, TopicConfig.from_fields({"durability": "fsync"}), done)
        return await future

    async def append(self, topic: Topic, data: bytes, tag: str) -> int:
        """Its seq."""
        frames = core.encode_batch([data], tag.encode(), None, None)
        future: asyncio.Future[int] = self._loop.create_future()
        self._appender.append_own(_Answer(future), topic, frames, 1)
        self._agenda.start_turn()
        return await future
