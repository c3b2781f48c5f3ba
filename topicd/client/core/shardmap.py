"""Which shard owns a topic, and where it is. Promise: what is known is replaced whole, never half."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from topicd.client.core.address import Address, Target
from topicd.errors import InvalidRequest, WrongShard
from topicd.ipc.protocol.codec import Hello
from topicd.paths import RunDir
from topicd.placement import delivery_shard

SUPERVISOR = -1
CHAT = -2  # the chat store


class ShardMap:
    """The shards as last heard of. `learn` says whether topics may have moved and tells the listeners."""

    def __init__(self, path: Target, hello: Hello) -> None:
        # The address may be that of any shard.
        self.path = path.of_shard(-hello.shard) if isinstance(path, Address) and hello.shard > 0 else path
        self.paths = hello.shards
        self.chat_port = hello.chat_port
        self.chat = hello.chat
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []

    def forked(self) -> None:
        self._lock = threading.Lock()

    def on_move(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def learn(self, hello: Hello) -> bool:
        with self._lock:
            moved = hello.shards != self.paths
            self.paths = hello.shards
            self.chat_port = hello.chat_port or self.chat_port
            self.chat = self.chat if hello.chat is None else hello.chat
        if moved:
            for listener in self._listeners:
                listener()
        return moved

    def shard_of(self, topic: str) -> int:
        return delivery_shard(topic, len(self.paths))

    def shards(self) -> range:
        return range(len(self.paths))

    def path_of(self, shard: int) -> Target:
        if shard == SUPERVISOR:
            return self.path
        if shard == CHAT:
            return self._chat()
        paths = self.paths
        if shard >= len(paths):
            raise WrongShard(f"there is no shard {shard} any more, the daemon has {len(paths)}")
        if isinstance(self.path, Address):
            return self.path.of_shard(shard)
        # A map seen through another mount or a relative run directory still names files next to the front door.
        return self.path.parent / paths[shard]

    def _chat(self) -> Target:
        if isinstance(self.path, Address):
            if not self.chat_port:
                raise InvalidRequest("the daemon serves no chat store over TCP: it needs chat and chat_listen")
            return replace(self.path, port=self.chat_port)
        found = RunDir(self.path.parent).chat_socket(0)
        # While the process begins anew there is no file either: that is waited for.
        if not (self.chat or found.exists()):
            raise InvalidRequest("the daemon keeps no chat store: start it with --chat")
        return found

    def history_socket(self, topic: str) -> Path | None:
        """Where sealed segments of the topic are handed out; None when the daemon is on another machine."""
        shard = self.shard_of(topic)
        path = self.path_of(shard)
        return RunDir(path.parent).history_socket(shard) if isinstance(path, Path) else None
