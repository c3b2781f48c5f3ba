"""The log of a channel is a topic of the same shard. Promise: each log has a name of its own, so a new one is made
before the old one goes, and what the metadata names is what counts; logs that no metadata names are swept.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from topicd.channel import ChannelConfig, ChannelState, channel_topic
from topicd.errors import Conflict, TopicdError
from topicd.limits import MIB
from topicd.model import Durability, TopicConfig
from topicd.shards.delivery.topic.catalog import Catalog, Done
from topicd.shards.delivery.topic.topic import Topic

log = logging.getLogger(__name__)

LIVE_RECORDS = 1_000  # of a channel that is not persistent: what a slow reader may be behind
LIVE_BYTES = 1 * MIB


def topic_config(config: ChannelConfig, *, fifo: bool) -> TopicConfig:
    """What a channel's configuration means for its log. A queue is bounded by its own depth, never by eviction."""
    if not config.persist:
        cap_bytes = max(LIVE_BYTES, 4 * config.max_payload_size)
        fields = {"durability": Durability.EPHEMERAL.value, "cap_records": LIVE_RECORDS, "cap_bytes": cap_bytes}
    else:
        durability = Durability.DISK if config.message_flush_interval else Durability.FSYNC
        fields = {"durability": durability.value, "cap_records": 0 if fifo else config.max_persist_messages}
    return TopicConfig.from_fields(fields)


class Logs:
    def __init__(self, loop: asyncio.AbstractEventLoop, catalog: Catalog) -> None:
        self._loop = loop
        self._catalog = catalog

    def find(self, state: ChannelState) -> Topic | None:
        topic = self._catalog.by_name.get(state.topic)
        return topic if topic is not None and topic.live else None

    async def create(self, handler: str, config: ChannelConfig, *, fifo: bool = False) -> tuple[str, Topic]:
        """A new one: what the metadata calls it, and the topic."""
        name = os.urandom(8).hex()
        return name, await self.create_as(f"{channel_topic(handler)}.{name}", config, fifo=fifo)

    async def create_as(self, topic: str, config: ChannelConfig, *, fifo: bool) -> Topic:
        wanted = topic_config(config, fifo=fifo)
        return await self._outcome(lambda done: self._catalog.create(topic, wanted, done))

    async def configure(self, topic: Topic, config: ChannelConfig, *, fifo: bool) -> None:
        fields = topic_config(config, fifo=fifo).to_fields()
        if topic.config.to_fields() != fields or topic.next_config is not None:
            await self._outcome(lambda done: self._catalog.configure(topic, fields, done))

    def drop(self, topic: Topic) -> None:
        """Begun, not waited for: if it fails, the next start sweeps it."""

        def done(gone: Topic | None, error: TopicdError | None) -> None:
            if error is not None:
                log.warning("log of a channel stays", extra={"topic": topic.name, "error": error.message})

        if topic.live:
            try:
                self._catalog.delete(topic, if_empty=False, done=done)
            except TopicdError as exc:
                done(None, exc)

    async def _outcome(self, begin: Callable[[Done], None]) -> Topic:
        future: asyncio.Future[Topic] = self._loop.create_future()

        def done(topic: Topic | None, error: TopicdError | None) -> None:
            if future.done():
                return
            if topic is not None:
                future.set_result(topic)
            else:
                future.set_exception(error or Conflict("nothing was changed"))

        begin(done)
        return await future
