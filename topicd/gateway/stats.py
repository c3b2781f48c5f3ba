"""What the processes tell of themselves, for whoever watches. Promise: the supervisor is asked once in PERIOD_S however
many watch, and not at all when nobody does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from topicd.errors import TopicdError
from topicd.gateway.shards import Shards
from topicd.gateway.web.messages import consumed
from topicd.ipc.protocol.messages import Status

PERIOD_S = 1.0

Told = Callable[[dict[str, Any]], None]


class StatsFeed:
    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._watchers: dict[int, Told] = {}
        self._next = 0
        self._task: asyncio.Task[None] | None = None
        self.last: dict[str, Any] = {}
        self._text = b""

    @property
    def text(self) -> bytes:
        """The last status as JSON, made once for all who want it so."""
        if not self._text:
            self._text = msgspec.json.encode(self.last)
        return self._text

    def watch(self, told: Told) -> Callable[[], None]:
        """`told` gets each status from now on; call what is returned to end that."""
        self._next += 1
        number = self._next
        self._watchers[number] = told
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._look())
            self._task.add_done_callback(consumed)
        elif self.last:
            told(self.last)
        return lambda: self._watchers.pop(number, None) and None

    async def _look(self) -> None:
        while self._watchers:
            try:
                status: dict[str, Any] = await self._shards.ask_supervisor(Status(stats=True))
                self.last, self._text = status, b""
                for told in list(self._watchers.values()):
                    told(self.last)
            except TopicdError:
                pass  # it stops, or is about to: the connection ends by itself
            await asyncio.sleep(PERIOD_S)
