"""Messages into a channel's log, and out of it again. Promise: a message is answered when it is as durable as the
channel says, and it is stored once however often it is repeated; a member that is connected gets it from the log,
like any subscriber.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from topicd.channel import ChannelState
from topicd.errors import Conflict, Internal, QueueFull, StorageCorrupt, TopicdError
from topicd.frames import core
from topicd.limits import CHANNEL_HISTORY_MAX, FETCH_BYTES_MAX
from topicd.shards.delivery.channels import acl
from topicd.shards.delivery.channels.channel import Channel
from topicd.shards.delivery.channels.tallies import Tallies
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.topic.flight import InFlight, Waiter
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.append import Appender
from topicd.shards.delivery.writing.outlet import Outlet

Stored = Callable[[int, bool], None]  # its seq, and whether it was there before
Refused = Callable[[TopicdError], None]


class _Publication:
    """Waits for the outcome of one message."""

    def __init__(self, stored: Stored, refused: Refused) -> None:
        self._stored = stored
        self._refused = refused

    def appended(self, waiter: Waiter, head: int, entry: InFlight) -> None:
        self._stored(waiter.first_seq, False)

    def run_appended(self, request_ids: bytes, first_seq: int, head: int) -> None:
        raise Internal("messages of channels do not come in runs")

    def deduped(self, waiter: Waiter, head: int) -> None:
        self._stored(waiter.first_seq, True)

    def append_refused(self, request_id: int, error: TopicdError) -> None:
        self._refused(error)


class Publishing:
    def __init__(
        self,
        place: Place,
        loop: asyncio.AbstractEventLoop,
        appender: Appender,
        reader: Reader,
        outlets: list[Outlet],
        tallies: Tallies,
    ) -> None:
        self._place = place
        self._loop = loop
        self._appender = appender
        self._reader = reader
        self._outlets = outlets
        self._tallies = tallies

    # ---- in ----

    def publish(
        self, channel: Channel, state: ChannelState, user: str, data: bytes, key: int, stored: Stored, refused: Refused
    ) -> None:
        """Raises what refuses it at once. key: the same for each repetition of one message; 0: it is not repeated."""
        acl.may_publish(state, user, len(data))
        self._append(channel, state, user, data, key, stored, refused)

    def push(
        self, channel: Channel, state: ChannelState, user: str, data: bytes, key: int, stored: Stored, refused: Refused
    ) -> None:
        """An element for the queue; who may, the caller has asked."""
        acl.check_type(state, fifo=True)
        acl.check_payload(state, len(data))
        topic, queue = channel.log(), channel.queue
        if queue is None:
            raise Internal(f"channel {channel.handler!r} is a queue without one")
        queue.check()
        limit = state.config.max_persist_messages
        # A repetition of what is in it already does not need room.
        if queue.depth(topic) >= limit and not (key and not topic.producers.is_next(key, 1)):
            message = f"channel {channel.handler!r} holds {limit} elements"
            raise QueueFull(message, channel=channel.handler, max_persist_messages=limit)
        self._append(channel, state, user, data, key, stored, refused)

    def _append(
        self, channel: Channel, state: ChannelState, user: str, data: bytes, key: int, stored: Stored, refused: Refused
    ) -> None:
        topic = channel.log()
        frames = core.encode_batch([data], None, user.encode(), None)
        self._appender.append_own(_Publication(stored, refused), topic, frames, 1, once=key)
        self._tallies.published += 1
        interval = state.config.message_flush_interval
        # The log syncs by itself within disk_sync_ms: sooner is what has to be seen to here.
        if 0 < interval < self._place.settings.disk_sync_ms and channel.flush_due is None and state.config.persist:
            channel.flush_due = self._loop.call_later(interval / 1000, self._flush, channel, topic)

    def _flush(self, channel: Channel, topic: Topic) -> None:
        channel.flush_due = None
        self._outlets[topic.outlet].when_synced(lambda: None)

    # ---- out ----

    def history(self, channel: Channel, state: ChannelState, from_seq: int, limit: int) -> list[dict[str, Any]]:
        """Inclusive; from the first that is kept if that is later; at most CHANNEL_HISTORY_MAX. Messages that cannot be
        read end the page before them; StorageCorrupt if it would begin with them."""
        self._check_persistent(state)
        topic = channel.log()
        found: list[dict[str, Any]] = []
        position, left = from_seq - 1, min(limit, CHANNEL_HISTORY_MAX)
        size = 0
        while left > 0 and position < topic.seqs.visible and size < FETCH_BYTES_MAX:
            try:
                answer = self._reader.fetch(topic, position, left, FETCH_BYTES_MAX - size, NO_FILTER)
            except StorageCorrupt:
                if not found:
                    raise
                break
            if answer.next_from <= position and not answer.count:
                break
            for part in answer.parts:
                for seq, ts, node, _, _, data in core.decode_frames(part, 0, len(part)):
                    found.append({"seq": seq, "ts": ts, "from": (node or b"").decode(), "data": bytes(data)})
            left, position, size = left - answer.count, answer.next_from, size + answer.bytes
        return found

    def seqs(self, channel: Channel, state: ChannelState) -> tuple[int, int]:
        """The first and the last message that is kept; (0, 0): there is none."""
        self._check_persistent(state)
        topic = channel.log()
        first, last = topic.floors.earliest, topic.seqs.visible
        if channel.queue is not None:
            first = max(first, channel.queue.next_seq)
        return (first, last) if first <= last and topic.contents.count else (0, 0)

    @staticmethod
    def _check_persistent(state: ChannelState) -> None:
        if not state.config.persist:
            message = f"channel {state.handler!r} is not persistent: it has no history"
            raise Conflict(message, channel=state.handler)
