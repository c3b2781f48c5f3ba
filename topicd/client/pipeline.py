"""Single records, many under way, one thread: for callers that need an acknowledgement of each and cannot wait for it.

Promise: seqs come back in the order of the appends; what is under way when the connection breaks is sent again and
stored once.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from topicd.client.engine import Engine
from topicd.client.forksafe import track
from topicd.client.line import OutBatch
from topicd.client.links import Links
from topicd.client.serial import Serializer, encode, encode_one
from topicd.errors import ConnectionLost, InvalidRequest, TopicdError

MAX_INFLIGHT = 512


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
        self, engine: Engine, topic: str, *, max_inflight: int, serialize: Serializer, node: bytes | None
    ) -> None:
        if not 1 <= max_inflight <= MAX_INFLIGHT:
            raise InvalidRequest(f"max_inflight must be 1 to {MAX_INFLIGHT}, not {max_inflight!r:.50}")
        self._engine = engine
        self._now = engine.tempo.monotonic
        self._links = Links(engine, max_inflight)
        self._line = self._links.line(topic)
        self._link = self._links.link_of(self._line)
        self._max = max_inflight
        self._burst = max(1, max_inflight // 2)
        self._serialize = serialize
        self._node = node
        self._pending: deque[OutBatch] = deque()
        self._unsent = 0
        self._seqs: list[int] = []
        self._settled = 0
        self.failures: list[tuple[int, TopicdError]] = []
        """(position among all appends, error) of records that were refused; `drain` raises the first of them."""

        self._closed = False
        track(self)

    def forked(self) -> None:
        self._closed = True
        self._links.forked()

    @property
    def unacknowledged(self) -> int:
        return len(self._pending)

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
        batch = OutBatch(self._line, frames, 1, self._now() + self._engine.timeout)
        self._link.appender.submit(batch)
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
        seqs, self._seqs = self._seqs, []
        if self.failures:
            _, error = self.failures[0]
            error.detail["refused"] = len(self.failures)
            self.failures, failures = [], self.failures
            error.detail["positions"] = [position for position, _ in failures[:100]]
            raise error
        return seqs

    def _await(self) -> None:
        """Until at least one thing has happened."""
        self._unsent = 0
        link = self._link
        if link.connected:
            link.flush()
            if link.wait(None):
                link.receive()
                self._settle()
                if link.connected:
                    return
        self._turn()
        if self._pending and not self._link.connected:
            self._link.wait(None)

    def _turn(self) -> None:
        self._links.turn()
        self._link = self._links.link_of(self._line)
        self._settle()

    def _settle(self) -> None:
        pending, seqs = self._pending, self._seqs
        while pending and pending[0].done:
            batch = pending.popleft()
            if batch.error is None:
                seqs.append(batch.first_seq)
            else:
                self.failures.append((self._settled, batch.error))
            self._settled += 1

    def close(self) -> None:
        """Gives up what is unacknowledged; `drain` first."""
        self._closed = True
        self._links.close()
        for batch in self._pending:
            batch.fail(ConnectionLost("the pipeline was closed before this record was acknowledged"))

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                self.drain()
        finally:
            self.close()
