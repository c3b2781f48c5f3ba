"""The operation log of a chat store: an internal topic, written and read as any client does it. Promise: entries are
stored once and in the order in which they were given, as durable as the topic's class says before their seq is known.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import NamedTuple

from topicd.client.aio.caller import AioCaller
from topicd.client.aio.client import AsyncClient
from topicd.client.aio.routes import AioRoutes
from topicd.client.core import requests
from topicd.client.core.encode import encode_one
from topicd.client.core.shardmap import SUPERVISOR, ShardMap
from topicd.errors import BatchTooLarge, ConnectionLost, FormatError, StorageCorrupt, StorageFailed
from topicd.ipc.protocol.codec import Hello
from topicd.ipc.protocol.retry import Tempo
from topicd.limits import CHAT_KEEPER, CHATS, KIB, MAX_DATA_AND_META
from topicd.paths import RunDir
from topicd.shards.chat.operations import LogEntry, Unreadable, unpacked

WINDOW = 512  # entries under way at once
TIMEOUT_S = 30.0
ENTRY_MAX = MAX_DATA_AND_META - 1_024
PIECE_BYTES = 256 * KIB  # read at a time: applying them keeps the loop for some ten milliseconds


def topic_of(index: int) -> str:
    return f"{CHATS}{index:02d}"


class Place(NamedTuple):
    topic_id: int
    earliest_seq: int
    head_seq: int
    bytes: int


class OperationLog:
    def __init__(self, run: RunDir, delivery_shards: int, index: int, durability: str) -> None:
        self.topic = topic_of(index)
        self._durability = durability
        paths = tuple(str(run.delivery_socket(shard)) for shard in range(delivery_shards))
        shard_map = ShardMap(run.socket, Hello(SUPERVISOR, paths, {}))
        self._caller = AioCaller(shard_map, tempo=Tempo(), timeout=TIMEOUT_S, token=None)
        self._caller.client_name = CHAT_KEEPER
        self._client = AsyncClient(self._caller, node=None, serializer="json")
        self._routes = AioRoutes(self._caller, WINDOW, creates=False)

    async def open(self) -> Place:
        config = {"durability": self._durability}
        await self._caller.ask(requests.configure(self.topic, config, create=True, internal=True))
        return await self.place()

    async def place(self) -> Place:
        state = await self._client.state(self.topic, touch=False)
        return Place(state.topic_id, state.earliest_seq, state.head_seq, state.bytes)

    def append(self, raw: bytes) -> asyncio.Future[int]:
        """A future of its seq."""
        if len(raw) > ENTRY_MAX:
            raise BatchTooLarge(f"one request has at most {ENTRY_MAX} bytes in the log, this one has {len(raw)}")
        frames = encode_one(raw, None, None, None, lambda value: b"")
        # A full disk is told at once: whoever asked tries again as long as he likes.
        return self._routes.append(self.topic, frames, 1, impatient=(StorageFailed,)).future

    async def read(
        self, after: int, up_to: int, *, over_holes: bool = False
    ) -> AsyncIterator[list[tuple[int, LogEntry]]]:
        """Entries behind a seq, in pieces. FormatError if any is not there any more, StorageCorrupt if its bytes are
        damaged; over_holes: those are told as one Unreadable instead."""
        at = after
        while at < up_to:
            try:
                found = await self._client.fetch(self.topic, at, limit=2_000, max_bytes=PIECE_BYTES)
            except StorageCorrupt as exc:
                last = min(int(exc.detail.get("last_seq", 0)), up_to)
                if not over_holes or last <= at:
                    raise
                yield [(last, Unreadable(exc.message, last - at))]
                at = last
                continue
            read = [(record.seq, unpacked(record.data)) for record in found if record.seq <= up_to]
            entries: list[tuple[int, LogEntry]] = []
            for seq, entry in (*read, *(() if read else ((up_to + 1, None),))):
                if seq != at + 1:
                    missing = f"the log {self.topic} has no {_entries(at + 1, seq - 1)} any more"
                    if not over_holes:
                        raise FormatError(missing)
                    entries.append((seq - 1, Unreadable(missing, seq - 1 - at)))
                if entry is not None:
                    entries.append((seq, entry))
                at = seq
            yield entries

    async def forget(self, before: int) -> None:
        """Entries below a seq are needed no more."""
        await self._client.delete(self.topic, before_seq=before)

    async def close(self) -> None:
        await self._routes.end(ConnectionLost("the chat process stops"))
        await self._client.close()


def _entries(first: int, last: int) -> str:
    return f"entry {first}" if first == last else f"entries {first} to {last}"
