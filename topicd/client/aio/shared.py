"""What all parts of an asyncio client share, and how they hear that topics have moved to other shards."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Protocol, TypeVar
from weakref import WeakSet

from topicd.client.blocking import finding
from topicd.client.core.events import Events
from topicd.client.core.options import DIAL_S, Shared
from topicd.client.core.requests import CLIENT_NAME
from topicd.client.core.shardmap import ShardMap
from topicd.errors import TopicdError
from topicd.ipc.protocol.retry import Tempo

T = TypeVar("T")


class Movable(Protocol):
    """Holds connections to the shards of topics."""

    def follow_topics(self) -> None: ...


class AioShared(Shared):
    def __init__(
        self, shard_map: ShardMap, *, tempo: Tempo, timeout: float, token: str | None, events: Events | None = None
    ) -> None:
        super().__init__(shard_map, tempo=tempo, timeout=timeout, token=token, events=events)
        self.client_name = CLIENT_NAME
        self.loop = asyncio.get_running_loop()
        self._movable: WeakSet[Movable] = WeakSet()
        shard_map.on_move(self._moved)

    def tell(self, movable: Movable) -> None:
        """From now on, when topics have moved."""
        self._movable.add(movable)

    async def refresh(self) -> None:
        """Asks the daemon's front door where the shards are, in another thread since it may take a while to answer."""
        try:
            hello = await self.in_thread(lambda: finding.ask(self.shard_map.path, DIAL_S, self.token))
        except TopicdError:
            return
        self.shard_map.learn(hello)

    def in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """For what blocks."""
        return self.loop.run_in_executor(None, work)

    def _moved(self) -> None:
        # Somebody may have heard of it in another thread, and the loop may be gone.
        with contextlib.suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self._follow)

    def _follow(self) -> None:
        if not self.closed:
            for movable in list(self._movable):
                movable.follow_topics()
