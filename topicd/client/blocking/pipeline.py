"""Single records, many under way, one thread: for callers that need an acknowledgement of each and cannot wait for it.

Promise: seqs come back in the order of the appends; what is under way when the connection breaks is sent again and
stored once.
"""

from __future__ import annotations

from typing import Any

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.forksafe import track
from topicd.client.blocking.routes import DrivenRoutes
from topicd.client.core.encode import Serializer, encode, encode_one
from topicd.client.core.pipelining import Pipelined
from topicd.errors import ConnectionLost, InvalidRequest, TopicdError
from topicd.ipc.protocol.outbox import OutBatch


class Pipeline:
    """Made by `client.pipeline`. Not for use by several threads at once.

    While records are under way, up to half of max_inflight more are collected before they are sent together;
    `flush` sends them at once, `drain` waits for everything.

    >>> with client.pipeline("orders") as pipe:
    ...     for n in range(1000):
    ...         pipe.append(b"%d" % n)
    ...     seqs = pipe.drain()
    """

    def __init__(
        self, caller: Caller, topic: str, *, max_inflight: int, serialize: Serializer, node: bytes | None
    ) -> None:
        self._pipelined = Pipelined(max_inflight)
        self._pending = self._pipelined.pending
        self._caller = caller
        self._now = caller.tempo.monotonic
        self._routes = DrivenRoutes(caller, max_inflight)
        self._outbox = self._routes.outbox(topic)
        self._link = self._routes.link_of(self._outbox)
        self._max = max_inflight
        self._burst = max(1, max_inflight // 2)
        self._serialize = serialize
        self._node = node
        self._unsent = 0
        self._closed = False
        track(self)

    def forked(self) -> None:
        self._closed = True
        self._routes.forked()

    @property
    def unacknowledged(self) -> int:
        """How many records are under way."""
        return len(self._pending)

    @property
    def failures(self) -> list[tuple[int, TopicdError]]:
        """(position among all appends, error) of records that were refused; `drain` raises the first of them."""
        return self._pipelined.failures

    def append(
        self,
        data: Any,
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        """Sends one record; waits only while max_inflight are unacknowledged."""
        if type(data) is bytes and tag is None and node is None and meta is None:
            frames = encode((data,), None, self._node, None)
        else:
            frames = encode_one(data, tag, node or self._node, meta, self._serialize)
        if self._closed:
            raise InvalidRequest("the pipeline is closed")
        pending = self._pending
        while len(pending) >= self._max:
            self._await()
        batch = OutBatch(self._outbox, frames, 1, self._now() + self._caller.timeout)
        self._link.sender.submit(batch)
        pending.append(batch)
        self._unsent += 1
        if self._unsent >= self._burst or self._unsent == len(pending):
            self.flush()

    def flush(self) -> None:
        """Sends what was collected, without waiting for acknowledgements."""
        self._unsent = 0
        if self._link.connected:
            self._link.flush()
        else:
            self._turn()

    def drain(self) -> list[int]:
        """Waits until everything is acknowledged; the seqs of all records since the last drain, in order."""
        self._turn()
        while self._pending:
            self._await()
        return self._pipelined.drained()

    def _await(self) -> None:
        """Until at least one thing has happened."""
        self._unsent = 0
        link = self._link
        if link.connected:
            link.flush()
            if link.wait(None):
                link.receive()
                self._pipelined.settle()
                if link.connected:
                    return
        self._turn()
        if self._pending and not self._link.connected:
            self._link.wait(None)

    def _turn(self) -> None:
        self._routes.turn()
        self._link = self._routes.link_of(self._outbox)
        self._pipelined.settle()

    def close(self) -> None:
        """Gives up what is unacknowledged; `drain` first."""
        self._closed = True
        self._routes.close()
        self._pipelined.give_up(ConnectionLost("the pipeline was closed before this record was acknowledged"))

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            self.close()
