"""Blocking operations on shards, repeated until they succeed, are refused for good, or time is up.

Promise: an append that is repeated carries the same producer id and number, so it is stored once; numbers
whose outcome stays unknown are never used again. The timeout counts from the beginning of an operation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from topicd.client.blocking import finding
from topicd.client.blocking.connection import Connection, dial
from topicd.client.blocking.forksafe import track
from topicd.client.blocking.pool import Pool, PooledConnection
from topicd.client.core.channels import Unanswered
from topicd.client.core.events import Events
from topicd.client.core.options import DIAL_S, TOPIC_IDS_KEPT, Shared
from topicd.client.core.requests import Request, check_queue, open_any
from topicd.client.core.shardmap import SUPERVISOR, ShardMap
from topicd.errors import ConnectionLost, InvalidRequest, TopicdError, TopicNotFound, WrongShard
from topicd.ipc.protocol.codec import Appended
from topicd.ipc.protocol.once import Verdict, expected_number, outcome_unknown, verdict
from topicd.ipc.protocol.retry import Patience, Tempo
from topicd.model import check_topic_name

T = TypeVar("T")


class Handle:
    """What is known of a topic: its shard by name, its id once it was opened (0: not yet)."""

    __slots__ = ("shard", "topic", "topic_id", "type")

    def __init__(self, topic: str, shard: int) -> None:
        self.topic = topic
        self.shard = shard
        self.topic_id = 0
        self.type = ""


class Caller(Shared):
    def __init__(
        self,
        shard_map: ShardMap,
        *,
        tempo: Tempo,
        timeout: float,
        token: str | None,
        max_connections: int,
        events: Events | None = None,
    ) -> None:
        super().__init__(shard_map, tempo=tempo, timeout=timeout, token=token, events=events)
        self._pool = Pool(max_connections, timeout)
        self._handles: dict[str, Handle] = {}
        shard_map.on_move(self._forget)
        track(self)

    def forked(self) -> None:
        self.shard_map.forked()
        self._pool.forked()

    # ---- topics and connections ----

    def handle(self, topic: str) -> Handle:
        found = self._handles.get(topic)
        if found is None:
            if self.closed:
                raise InvalidRequest("the client is closed")
            if len(self._handles) >= TOPIC_IDS_KEPT:
                self._handles.clear()
            found = Handle(check_topic_name(topic), self.shard_map.shard_of(topic))
            self._handles[topic] = found
        return found

    def _forget(self) -> None:
        self._handles.clear()
        self._pool.close_idle()

    def dial(self, shard: int, timeout: float) -> Connection:
        """A new connection. When the shard is not where it was, the map is fetched anew for the next
        attempt."""
        try:
            connection = dial(self.shard_map.path_of(shard), min(timeout, DIAL_S), self.token)
        except ConnectionLost as exc:
            self.events.lost(shard, exc)
            if shard != SUPERVISOR:
                self.refresh(timeout)
            raise
        self.events.connected(shard)
        if connection.hello is not None and self.shard_map.learn(connection.hello):
            connection.close()
            raise WrongShard("the daemon was started anew with other shards")
        connection.set_timeout(timeout)
        return connection

    def refresh(self, timeout: float) -> None:
        """Asks the daemon's front door where the shards are. Raises WrongShard if they are elsewhere now."""
        try:
            hello = finding.ask(self.shard_map.path, timeout, self.token)
        except TopicdError:
            return  # It is the shard's error that counts; the daemon is on its way down or up.
        if self.shard_map.learn(hello):
            raise WrongShard("the daemon was started anew with other shards")

    def _connection(self, pooled: PooledConnection, timeout: float) -> Connection:
        connection = pooled.connection
        if connection is None or connection.closed:
            connection = pooled.connection = self.dial(pooled.shard, timeout)
        connection.set_timeout(timeout)
        return connection

    # ---- requests that may be repeated freely ----

    def on_shard(self, shard: Callable[[], int], attempt: Callable[[Connection], T], timeout: float | None = None) -> T:
        """Runs attempt on a connection to that shard until it succeeds. The shard is asked for anew each
        time."""
        if self.closed:
            raise InvalidRequest("the client is closed")
        left = limit = self.timeout if timeout is None else timeout
        began = self.tempo.monotonic()
        patience: Patience | None = None
        while True:
            pooled = self._pool.take(shard())
            try:
                return attempt(self._connection(pooled, left))
            except TopicdError as exc:
                error = exc
                self.events.lost(pooled.shard, exc)
            finally:
                self._pool.give(pooled)
            if self.closed:
                raise error
            patience = patience or Patience(self.tempo, limit, began)
            patience.pause(error)
            left = patience.remaining()

    def ask(self, request: Request[T]) -> T:
        """Of the shard of its topic; without one, of the daemon's front door."""
        topic = request.topic
        if topic is None:
            return self.ask_shard(SUPERVISOR, request)
        return self.on_shard(lambda: self.shard_map.shard_of(topic), lambda connection: connection.ask(request))

    def ask_once(self, request: Request[T]) -> T:
        """Of the shard of its topic, for what must not be done twice: raises Unanswered when nobody knows whether it
        was done."""

        def attempt(connection: Connection) -> T:
            try:
                return connection.ask(request)
            except ConnectionLost as exc:
                raise Unanswered(f"nobody knows whether this was done: {exc.message}") from exc

        return self.on_shard(lambda: self.shard_map.shard_of(str(request.topic)), attempt)

    def ask_shard(self, shard: int, request: Request[T]) -> T:
        return self.on_shard(lambda: shard, lambda connection: connection.ask(request))

    def with_topic(
        self,
        topic: str,
        attempt: Callable[[Connection, int], T],
        *,
        create: bool,
        queue: bool = False,
        timeout: float | None = None,
    ) -> T:
        """A request about a topic by id; an id that is out of date is looked up again, once. `queue`: what is created
        is a queue, and anything else is NotAQueue."""

        def run(connection: Connection) -> T:
            handle = self.handle(topic)
            known = handle.topic_id != 0
            try:
                return attempt(connection, self._id(connection, handle, create, queue))
            except TopicNotFound:
                handle.topic_id = 0
                if not known:
                    raise
            return attempt(connection, self._id(connection, handle, create, queue))

        return self.on_shard(lambda: self.handle(topic).shard, run, timeout)

    def with_queue(
        self, topic: str, attempt: Callable[[Connection, int], T], *, create: bool, timeout: float | None = None
    ) -> T:
        """`with_topic` of a queue; the short way where its id is known and a connection is at hand."""
        handle = self._handles.get(topic)
        if handle is not None and handle.topic_id and handle.type == "queue" and not self.closed:
            pooled = self._pool.take(handle.shard)
            try:
                connection = pooled.connection
                if connection is not None and not connection.closed:
                    connection.set_timeout(self.timeout if timeout is None else timeout)
                    return attempt(connection, handle.topic_id)
            except TopicdError as exc:
                if not exc.retriable and not isinstance(exc, TopicNotFound):
                    raise
            finally:
                self._pool.give(pooled)
        return self.with_topic(topic, attempt, create=create, queue=True, timeout=timeout)

    def _id(self, connection: Connection, handle: Handle, create: bool, queue: bool) -> int:
        if not handle.topic_id:
            opened = connection.ask(open_any(handle.topic, create=create, queue=queue))
            handle.topic_id, handle.type = opened
        if queue:
            check_queue(handle.topic, handle.type)
        return handle.topic_id

    # ---- appends ----

    def append(
        self,
        topic: str,
        frames: bytearray,
        count: int,
        key: bytes = b"",
        flags: int = 0,
        options: bytes | None = None,
    ) -> Appended:
        """`options`: of jobs, packed; the topic is a queue then, if need be with empty ones."""
        handle = self._handles.get(topic) or self.handle(topic)
        pooled = self._pool.take(handle.shard)
        repeated = _Repeated(self)
        try:
            while True:
                try:
                    return self._append(pooled, handle, (frames, count, key, flags, options), repeated)
                except TopicdError as error:
                    self.events.lost(handle.shard, error)
                    repeated.after(error, pooled, handle)
                handle = self.handle(topic)
                if handle.shard != pooled.shard:
                    self._pool.moved(pooled, handle.shard)
        except BaseException as exc:
            if repeated.unknown or not isinstance(exc, TopicdError):
                pooled.numbers.renew()
            raise
        finally:
            self._pool.give(pooled)

    def _append(
        self,
        pooled: PooledConnection,
        handle: Handle,
        batch: tuple[bytearray, int, bytes, int, bytes | None],
        repeated: _Repeated,
    ) -> Appended:
        frames, count, key, flags, options = batch
        connection = self._connection(pooled, repeated.left)
        topic_id = handle.topic_id
        if not topic_id or options is not None:
            topic_id = self._id(connection, handle, True, options is not None)
        numbers = pooled.numbers
        batch_no = numbers.next(topic_id)
        # Keys are forgotten when the daemon restarts, numbers are not: our own repetitions need the number as well.
        answer = connection.append(topic_id, numbers.producer_id, batch_no, count, frames, key, flags, options or b"")
        # A key known from elsewhere leaves the number unused; the daemon then says which it expects. Using a number
        # twice would lose a record, skipping one costs a round trip.
        numbers.continue_at(topic_id, batch_no + 1)
        return answer

    def close(self) -> None:
        self.closed = True
        self._handles.clear()
        self._pool.close()


class _Repeated:
    """What became of the attempts at one append so far."""

    __slots__ = ("_began", "_caller", "_patience", "_reopened", "left", "unknown")

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._began = caller.tempo.monotonic()
        self._patience: Patience | None = None
        self._reopened = False
        self.left = caller.timeout  # seconds
        self.unknown = False  # an attempt may have been stored without our hearing of it

    def after(self, error: TopicdError, pooled: PooledConnection, handle: Handle) -> None:
        """Returns when the append may be tried again; raises what the caller shall see."""
        self.unknown = self.unknown or outcome_unknown(error)
        what = verdict(error, reopened=self._reopened or not handle.topic_id)
        if what is Verdict.REOPEN:
            self._reopened = True
            handle.topic_id = 0
            return
        expected = expected_number(error) if what is Verdict.RENUMBER else 0
        if 0 < expected < pooled.numbers.next(handle.topic_id):
            # Refused, therefore not stored; the daemon may have forgotten a producer that was silent for long.
            pooled.numbers.continue_at(handle.topic_id, expected)
            return
        if self._patience is None:
            self._patience = Patience(self._caller.tempo, self._caller.timeout, self._began)
        self._patience.pause(error)
        self.left = self._patience.remaining()
