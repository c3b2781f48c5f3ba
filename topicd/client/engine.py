"""Blocking operations on shards, repeated until they succeed, are refused for good, or time is up.

Promise: an append that is repeated carries the same producer id and number, so it is stored once; numbers
whose outcome stays unknown are never used again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from topicd.client.backoff import Patience, Tempo
from topicd.client.connection import Connection, dial
from topicd.client.context import Context
from topicd.client.directory import SUPERVISOR, Directory, Place, candidates, not_found
from topicd.client.forksafe import track
from topicd.client.lanes import Lane, Lanes
from topicd.client.wire import Appended, number
from topicd.errors import (
    ConnectionLost,
    FormatError,
    InvalidRequest,
    OutOfOrder,
    TopicdError,
    TopicNotFound,
    WrongShard,
)
from topicd.ipc.protocol.messages import Op
from topicd.model import check_topic_name

T = TypeVar("T")

HANDLES_KEPT = 65_536
DIAL_TIMEOUT_S = 5.0


class Handle:
    """What is known of a topic: its shard by name, its id once it was opened (0: not yet)."""

    __slots__ = ("shard", "topic", "topic_id")

    def __init__(self, topic: str, shard: int) -> None:
        self.topic = topic
        self.shard = shard
        self.topic_id = 0


class Engine(Context):
    def __init__(
        self, directory: Directory, *, tempo: Tempo, timeout: float, token: str | None, max_connections: int
    ) -> None:
        super().__init__(directory, tempo=tempo, timeout=timeout, token=token)
        self._lanes = Lanes(max_connections, timeout)
        self._handles: dict[str, Handle] = {}
        directory.on_move(self._forget)
        track(self)

    def forked(self) -> None:
        self.directory.forked()
        self._lanes.forked()

    # ---- topics and connections ----

    def handle(self, topic: str) -> Handle:
        found = self._handles.get(topic)
        if found is None:
            if self.closed:
                raise InvalidRequest("the client is closed")
            if len(self._handles) >= HANDLES_KEPT:
                self._handles.clear()
            found = Handle(check_topic_name(topic), self.directory.shard_of(topic))
            self._handles[topic] = found
        return found

    def _forget(self) -> None:
        self._handles.clear()
        self._lanes.close_idle()

    def dial(self, shard: int, timeout: float) -> Connection:
        """A new connection. When the shard is not where it was, the map is fetched anew for the next
        attempt."""
        try:
            connection = dial(self.directory.path_of(shard), min(timeout, DIAL_TIMEOUT_S), self.token)
        except ConnectionLost:
            if shard != SUPERVISOR:
                self.refresh(timeout)
            raise
        if connection.hello is not None and self.directory.learn(connection.hello):
            connection.close()
            raise WrongShard("the daemon was started anew with other shards")
        connection.set_timeout(timeout)
        return connection

    def refresh(self, timeout: float) -> None:
        """Asks the daemon's front door where the shards are. Raises WrongShard if they are elsewhere now."""
        try:
            front = dial(self.directory.path, min(timeout, DIAL_TIMEOUT_S), self.token)
        except TopicdError:
            return  # It is the shard's error that counts; the daemon is on its way down or up.
        front.close()
        if front.hello is not None and self.directory.learn(front.hello):
            raise WrongShard("the daemon was started anew with other shards")

    def _connection(self, lane: Lane, timeout: float) -> Connection:
        connection = lane.connection
        if connection is None or connection.closed:
            connection = lane.connection = self.dial(lane.shard, timeout)
        return connection

    # ---- requests that may be repeated freely ----

    def on_shard(self, shard: Callable[[], int], attempt: Callable[[Connection], T], timeout: float | None = None) -> T:
        """Runs attempt on a connection to that shard until it succeeds. The shard is asked for anew each
        time."""
        if self.closed:
            raise InvalidRequest("the client is closed")
        limit = self.timeout if timeout is None else timeout
        patience: Patience | None = None
        while True:
            lane = self._lanes.take(shard())
            try:
                connection = self._connection(lane, limit if patience is None else patience.remaining())
                connection.set_timeout(limit)
                return attempt(connection)
            except TopicdError as exc:
                error = exc
            finally:
                self._lanes.give(lane)
            if self.closed:
                raise error
            patience = patience or Patience(self.tempo, limit)
            patience.pause(error)

    def call(self, topic: str, op: int, body: dict[str, Any]) -> dict[str, Any]:
        """A request about a topic by name."""
        check_topic_name(topic)
        return self.on_shard(lambda: self.directory.shard_of(topic), lambda c: c.call(op, body))

    def call_shard(self, shard: int, op: int, body: dict[str, Any]) -> dict[str, Any]:
        return self.on_shard(lambda: shard, lambda c: c.call(op, body))

    def with_topic(
        self,
        topic: str,
        attempt: Callable[[Connection, int], T],
        *,
        create: bool,
        timeout: float | None = None,
    ) -> T:
        """A request about a topic by id; an id that is out of date is looked up again, once."""

        def run(connection: Connection) -> T:
            handle = self.handle(topic)
            known = handle.topic_id != 0
            try:
                return attempt(connection, handle.topic_id or self._open(connection, handle, create))
            except TopicNotFound:
                handle.topic_id = 0
                if not known:
                    raise
            return attempt(connection, self._open(connection, handle, create))

        return self.on_shard(lambda: self.handle(topic).shard, run, timeout)

    def _open(self, connection: Connection, handle: Handle, create: bool) -> int:
        answer = connection.call(Op.OPEN, {"topic": handle.topic, "create": create})
        handle.topic_id = number(answer, "topic_id")
        return handle.topic_id

    # ---- appends ----

    def append(self, topic: str, frames: bytearray, count: int, key: bytes = b"", flags: int = 0) -> Appended:
        handle = self._handles.get(topic) or self.handle(topic)
        lane = self._lanes.take(handle.shard)
        repeated = _Repeated(self)
        try:
            while True:
                try:
                    return self._append(lane, handle, (frames, count, key, flags), repeated)
                except TopicdError as error:
                    repeated.after(error, lane, handle)
                handle = self.handle(topic)
                if handle.shard != lane.shard:
                    self._lanes.moved(lane, handle.shard)
        except BaseException as exc:
            if repeated.unknown or not isinstance(exc, TopicdError):
                lane.renew()
            raise
        finally:
            self._lanes.give(lane)

    def _append(
        self, lane: Lane, handle: Handle, batch: tuple[bytearray, int, bytes, int], repeated: _Repeated
    ) -> Appended:
        frames, count, key, flags = batch
        connection = lane.connection
        if connection is None or connection.closed:
            connection = self._connection(lane, repeated.remaining())
        topic_id = handle.topic_id or self._open(connection, handle, create=True)
        batch_no = lane.numbers.get(topic_id, 1)
        # Keys are forgotten when the daemon restarts, numbers are not: our own repetitions need the number as well.
        answer = connection.append(topic_id, lane.producer_id, batch_no, count, frames, key, flags)
        # A key known from elsewhere leaves the number unused; the daemon then says which it expects. Using a number
        # twice would lose a record, skipping one costs a round trip.
        lane.numbers[topic_id] = batch_no + 1
        return answer

    def close(self) -> None:
        self.closed = True
        self._handles.clear()
        self._lanes.close()


class _Repeated:
    """What became of the attempts at one append so far."""

    __slots__ = ("_engine", "_patience", "_reopened", "unknown")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._patience: Patience | None = None
        self._reopened = False
        self.unknown = False  # an attempt may have been stored without our hearing of it

    def remaining(self) -> float:
        return self._engine.timeout if self._patience is None else self._patience.remaining()

    def after(self, error: TopicdError, lane: Lane, handle: Handle) -> None:
        """Returns when the append may be tried again; raises what the caller shall see."""
        if self._patience is None:
            self._patience = Patience(self._engine.tempo, self._engine.timeout)
        if isinstance(error, ConnectionLost | FormatError):
            self.unknown = True
        if isinstance(error, OutOfOrder):
            expected = error.detail.get("expected")
            # Refused, therefore not stored; the daemon may have forgotten a producer that was silent for
            # long.
            if isinstance(expected, int) and 1 <= expected < lane.numbers.get(handle.topic_id, 1):
                lane.numbers[handle.topic_id] = expected
                return
        if isinstance(error, TopicNotFound) and handle.topic_id and not self._reopened:
            self._reopened = True
            handle.topic_id = 0
            return
        self._patience.pause(error)


def find_daemon(
    target: str | os.PathLike[str] | None,
    environ: Mapping[str, str],
    *,
    timeout: float,
    token: str | None,
    wait: float,
    tempo: Tempo,
) -> Directory:
    """The first daemon that answers. A missing one is an error at once unless `wait` gives it time to
    appear; one that is there but not ready is waited for."""
    ready = Patience(tempo, timeout)
    there = Patience(tempo, wait)
    while True:
        tried: list[tuple[str, Place, str]] = []
        for hint, path in candidates(target, environ):
            try:
                front = dial(path, min(timeout, DIAL_TIMEOUT_S), token)
            except ConnectionLost as exc:
                tried.append((hint, path, exc.message.removeprefix(f"cannot connect to {path}: ")))
                continue
            except TopicdError as exc:
                ready.pause(exc)
                break
            front.close()
            if front.hello is None:
                raise FormatError("the daemon sent no hello")
            return Directory(path, front.hello)
        else:
            there.pause(not_found(tried))
