"""The client with a spool: publishing does not need the daemon, everything else does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Literal

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.client import Client
from topicd.client.core.encode import Serializer, encode_list, encode_one, label, named_serializer
from topicd.client.core.records import Published
from topicd.client.spool.spool import Spool
from topicd.errors import InvalidRequest
from topicd.model import check_topic_name


class SpooledClient(Client):
    """Made by `topicd.connect(spool=DIR)`. It finds the daemon when it needs it: reading and watching raise
    ConnectionLost while there is none."""

    def __init__(
        self,
        connect: Callable[[], Client],
        directory: str,
        *,
        durability: Literal["os", "fsync"],
        max_bytes: int,
        node: str | None,
        serializer: str | Serializer,
    ) -> None:
        # Not the parent's: there may be no daemon to have connections to.
        self._node = label(node, "node")
        self._serialize = named_serializer(serializer)
        self._connect = connect
        self._lock = Lock()
        self._client: Client | None = None
        self._closed = False
        self._spool = Spool(directory, self._connected, durability=durability, max_bytes=max_bytes)

    def _connected(self) -> Client:
        with self._lock:
            if self._closed:
                raise InvalidRequest("the client is closed")
            if self._client is None:
                self._client = self._connect()
            return self._client

    @property
    def _caller(self) -> Caller:
        return self._connected().caller

    @_caller.setter
    def _caller(self, caller: Caller) -> None:
        raise AttributeError("a client with a spool finds its daemon by itself")

    @property
    def spool(self) -> Spool:
        return self._spool

    def publish(
        self,
        topic: str,
        data: Any,
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        meta: dict[str, Any] | None = None,
        key: str | bytes | None = None,
    ) -> int:
        """Puts one record into the spool and returns its place there: it has no seq yet. Stored once without a key."""
        if key is not None:
            raise InvalidRequest("a spool stores each publish once; it takes no key")
        frames = encode_one(data, tag, node or self._node, meta, self._serialize)
        return self._spool.put(check_topic_name(topic), 1, frames)

    def publish_many(
        self,
        topic: str,
        records: Sequence[Any],
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        performance: bool = False,
    ) -> Published:
        """Puts a list of records into the spool, batch by batch. Seqs are 0: they are not known yet."""
        check_topic_name(topic)
        if performance:
            raise InvalidRequest("a spool does not know where the daemon's time goes")
        total = 0
        for frames, count in encode_list(records, tag, node, self._node, self._serialize):
            self._spool.put(topic, count, frames)
            total += count
        return Published(0, 0, total)

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidRequest("the client is closed")

    def close(self) -> None:
        """What is still in the spool stays there for the next client. May be called twice."""
        if self._closed:
            return
        self._spool.stop()
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            client.close()
        self._spool.close()
