"""The file channel for asyncio. Same directory, same bytes, same promises; waiting costs no thread for each receiver.

A thread of the channel sleeps until something is published and tells the loop. Calls that sync or wait for room run in
threads; what only talks to the system's cache is done on the spot.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import suppress
from threading import Event, Lock, Thread
from time import monotonic
from types import TracebackType
from typing import Any, Generic, TypeVar

from topicd.filechannel import channel as blocking
from topicd.filechannel.arguments import deadline_of
from topicd.filechannel.channel import DEFAULT_RECEIVER, Pair, Start
from topicd.filechannel.codecs import Codec, CodecName
from topicd.filechannel.errors import ChannelClosed, NotEnough
from topicd.filechannel.layout import Span
from topicd.filechannel.page import WRITTEN_AT, Page
from topicd.filechannel.reading import Gap
from topicd.filechannel.receiver import Receiver
from topicd.filechannel.sender import Sender
from topicd.filechannel.settings import MAX_UNACKED, Settings, settings_of
from topicd.filechannel.stats import Stats

T = TypeVar("T")


class FileChannel(Generic[T]):
    """`async with FileChannel(directory, …) as channel:`, with the options of the blocking one."""

    def __init__(
        self, directory: str | os.PathLike[str], *, codec: CodecName | Codec[T] | Pair[T] = "bytes", **options: Any
    ) -> None:
        self._settings = settings_of(options)
        make: Any = blocking.FileChannel
        self._make: Callable[[], blocking.FileChannel[T]] = lambda: make(directory, codec=codec, **options)
        self._channel: blocking.FileChannel[T] | None = None
        self._watcher: Watcher | None = None

    async def open(self) -> FileChannel[T]:
        if self._channel is None:
            channel = await asyncio.to_thread(self._make)
            self._channel, self._watcher = channel, Watcher(channel.page)
        return self

    async def close(self) -> None:
        """Whoever waits gets ChannelClosed."""
        channel, watcher = self._channel, self._watcher
        if channel is not None and watcher is not None:
            await asyncio.to_thread(channel.close)
            await asyncio.to_thread(watcher.stop)

    @property
    def blocking(self) -> blocking.FileChannel[T]:
        """The channel itself, for what has no waiting in it: stats, damage, receivers' positions."""
        if self._channel is None:
            raise ChannelClosed("the channel is not open: use `async with`")
        return self._channel

    def sender(self) -> AsyncSender[T]:
        return AsyncSender(self.blocking.sender(), self._settings)

    def receiver(
        self,
        name: str = DEFAULT_RECEIVER,
        *,
        auto_ack: bool = False,
        start: Start = "oldest",
        temporary: bool = False,
        max_unacked: int = MAX_UNACKED,
    ) -> AsyncReceiver[T]:
        inner = self.blocking.receiver(
            name, auto_ack=auto_ack, start=start, temporary=temporary, max_unacked=max_unacked
        )
        if self._watcher is None:
            raise ChannelClosed("the channel is not open: use `async with`")
        synced = self._settings.is_synced
        return AsyncReceiver(inner, self._watcher, recv_in_thread=synced and auto_ack, ack_in_thread=synced)

    def stats(self) -> Stats:
        return self.blocking.stats()

    async def flush(self) -> None:
        await asyncio.to_thread(self.blocking.flush)

    async def sync(self) -> None:
        await asyncio.to_thread(self.blocking.sync)

    async def __aenter__(self) -> FileChannel[T]:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.close()


class AsyncSender(Generic[T]):
    def __init__(self, inner: Sender[T], settings: Settings) -> None:
        self._inner = inner
        self._in_thread = settings.is_synced or (settings.max_bytes is not None and settings.full == "block")

    async def send(self, message: T, timeout: float | None = None) -> int:
        if self._in_thread:
            return await asyncio.to_thread(self._inner.send, message, timeout)
        return self._inner.send(message)

    async def send_many(self, messages: Iterable[T], timeout: float | None = None) -> int:
        if self._in_thread:
            return await asyncio.to_thread(self._inner.send_many, messages, timeout)
        return self._inner.send_many(messages)

    def close(self) -> None:
        self._inner.close()


class AsyncReceiver(Generic[T]):
    def __init__(
        self, inner: Receiver[T], watcher: Watcher, *, recv_in_thread: bool = False, ack_in_thread: bool = False
    ) -> None:
        self._inner = inner
        self._watcher = watcher
        self._recv_in_thread = recv_in_thread
        self._ack_in_thread = ack_in_thread
        self._turn = asyncio.Lock()
        # A thread goes on although the task that waited for it was cancelled: what it took is for who comes next.
        self._taking: asyncio.Task[list[T | Gap]] | None = None
        self._taken: list[T | Gap] = []

    async def recv(self, timeout: float | None = None) -> T | Gap:
        return (await self._received(lambda: [self._inner.recv(0)], 1, timeout))[0]

    def try_recv(self) -> T | Gap:
        return self._taken.pop(0) if self._taken else self._inner.try_recv()

    async def recv_many(self, limit: int, timeout: float | None = None) -> list[T | Gap]:
        return await self._received(lambda: self._inner.recv_many(limit, 0), limit, timeout)

    async def _received(self, take: Callable[[], list[T | Gap]], limit: int, timeout: float | None) -> list[T | Gap]:
        deadline = deadline_of(timeout)
        while True:
            try:
                return await self._take_in_thread(take, limit) if self._recv_in_thread else take()
            except NotEnough:
                left = None if deadline is None else deadline - monotonic()
                if left is not None and left <= 0:
                    raise
            await self._watcher.wait(self._inner.next_offset, left)

    async def _take_in_thread(self, take: Callable[[], list[T | Gap]], limit: int) -> list[T | Gap]:
        async with self._turn:
            if not self._taken:
                if self._taking is None:
                    self._taking = asyncio.create_task(asyncio.to_thread(take))
                    self._taking.add_done_callback(lambda task: task.cancelled() or task.exception())
                try:
                    self._taken = await asyncio.shield(self._taking)
                except asyncio.CancelledError:
                    raise
                except BaseException:
                    self._taking = None
                    raise
                self._taking = None
            found, self._taken = self._taken[:limit], self._taken[limit:]
            return found

    async def messages(self, timeout: float | None = None) -> AsyncIterator[T | Gap]:
        """Until the channel is closed, or nothing has come for so long."""
        while True:
            try:
                yield await self.recv(timeout)
            except (ChannelClosed, NotEnough):
                return

    def __aiter__(self) -> AsyncIterator[T | Gap]:
        return self.messages()

    async def ack(self, count: int = 1) -> None:
        if self._ack_in_thread:
            await asyncio.to_thread(self._inner.ack, count)
        else:
            self._inner.ack(count)

    async def ack_all(self) -> None:
        if self._ack_in_thread:
            await asyncio.to_thread(self._inner.ack_all)
        else:
            self._inner.ack_all()

    def skip_damage(self) -> Span | None:
        return self._inner.skip_damage()

    @property
    def unacked(self) -> int:
        return self._inner.unacked

    @property
    def offset(self) -> int:
        return self._inner.offset

    @property
    def name(self) -> str:
        return self._inner.name

    def close(self) -> None:
        """The offset stays; a temporary receiver's goes. Tasks that wait are woken."""
        self._inner.close()
        self._watcher.look()

    async def __aenter__(self) -> AsyncReceiver[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


class Watcher:
    """One thread that sleeps on the page for all tasks that wait."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._lock = Lock()
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._wanted = Event()
        self._stopped = False
        self._all = False  # everybody is to look again
        self._thread = Thread(target=self._run, name="filechannel-watch", daemon=True)

    async def wait(self, offset: int, timeout: float | None) -> None:
        """Until something behind the offset was published, or there is another reason to look; or for so long."""
        future = asyncio.get_running_loop().create_future()
        with self._lock:
            if self._stopped:
                return
            self._waiting.append((offset, future))
            if not self._thread.is_alive() and not self._thread.ident:
                self._thread.start()
        self._wanted.set()
        try:
            # The thread may have seen this publication before it knew of us.
            if self._page.published <= offset:
                await asyncio.wait([future], timeout=timeout)
        finally:
            with self._lock:
                self._waiting = [entry for entry in self._waiting if entry[1] is not future]

    def look(self) -> None:
        self._all = True
        self._page.wake(WRITTEN_AT)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        self._wanted.set()
        self.look()
        if self._thread.ident:
            self._thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            seen, published = self._page.count(WRITTEN_AT), self._page.published
            with self._lock:
                everybody, self._all = self._all or self._stopped, False
                for offset, future in self._waiting:
                    if everybody or published > offset:
                        _tell(future)
                if self._stopped:
                    return
                if not self._waiting:
                    self._wanted.clear()
                    continue
            self._page.wait_written(seen, published, None)


def _tell(future: asyncio.Future[None]) -> None:
    with suppress(RuntimeError):  # its loop is closed: nobody waits
        future.get_loop().call_soon_threadsafe(_done, future)


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
