"""The store, used from the shard's loop: what blocks is done by threads, and what the disk refuses is told as an error
of the contract."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from topicd.channel import ChannelState
from topicd.errors import FormatError, Internal
from topicd.shards.delivery.channels.fifo import Queue
from topicd.shards.delivery.channels.store import ChannelStore, Saved
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.writing.durability import storage_failed

T = TypeVar("T")
_POLL_S = 0.001


class ChannelFiles:
    def __init__(self, loop: asyncio.AbstractEventLoop, threads: Executor, store: ChannelStore) -> None:
        self._loop = loop
        self._threads = threads
        self.store = store
        self._saving = 0
        self._still: asyncio.Future[None] | None = None  # changes of metadata wait for it

    async def be_still(self) -> None:
        """From now on no file of a channel changes but cursors, until go_on(): what is saved or deleted waits. Returns
        when what was under way is done."""
        if self._still is None:
            self._still = self._loop.create_future()
        while self._saving:
            await asyncio.sleep(_POLL_S)

    def go_on(self) -> None:
        still, self._still = self._still, None
        if still is not None:
            still.set_result(None)

    async def save(self, state: ChannelState, before: Saved | None) -> Saved:
        return await self._change(partial(self.store.save, state, before))

    async def delete(self, saved: Saved | None) -> None:
        if saved is not None:
            await self._change(partial(self.store.delete, saved.hash, saved))

    def queue(self, state: ChannelState, saved: Saved | None, reader: Reader, next_seq: int | None) -> Queue:
        if saved is None:
            raise Internal(f"channel {state.handler!r} is a queue without a file")
        hash = saved.hash

        async def save_cursor(next_seq: int) -> None:
            await self._do(partial(self.store.save_cursor, hash, next_seq))

        return Queue(state.handler, reader, save_cursor, next_seq)

    async def _change(self, work: Callable[[], T]) -> T:
        while self._still is not None:
            await asyncio.shield(self._still)
        self._saving += 1
        try:
            return await self._do(work)
        finally:
            self._saving -= 1

    async def _do(self, work: Callable[[], T]) -> T:
        try:
            return await self._loop.run_in_executor(self._threads, work)
        except OSError as exc:
            raise storage_failed(exc.errno or errno.EIO) from exc
        except FormatError as exc:
            raise Internal(exc.message) from exc
