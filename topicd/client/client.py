"""The blocking client. Promise: every call returns what happened, or raises an error of topicd.errors;
restarts of the daemon within the timeout are waited out, and nothing is stored twice because of them.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicd.client import requests
from topicd.client.backoff import Tempo
from topicd.client.batch import Batch, ReadResult, fetched_from
from topicd.client.bulk import publish_batches
from topicd.client.connection import Connection
from topicd.client.consumer import Consumer
from topicd.client.delivery import Delivery
from topicd.client.directory import SUPERVISOR
from topicd.client.engine import Engine, find_daemon
from topicd.client.history import Stretch, bulk_read, history
from topicd.client.pipeline import Pipeline
from topicd.client.producer import OnFull, Producer
from topicd.client.records import Published
from topicd.client.remote import TOKEN_ENV, with_ca_file
from topicd.client.serial import (
    Match,
    Serializer,
    Start,
    cursor,
    encode_many,
    encode_one,
    label,
    match_wire,
    serializer,
)
from topicd.client.subscription import Wanted
from topicd.client.topics import ConsumerInfo, Deleted, TopicInfo, TopicState, config_of, info
from topicd.client.watch import OnGap, Watch
from topicd.client.wire import checked_key, number
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import MessageFlag
from topicd.limits import KIB, LIST_PAGE_MAX, MAX_SEQ, MIB
from topicd.model import TagMatch, TopicConfig
from topicd.paths import RunDir

if TYPE_CHECKING:
    from topicd.client.staging.stages import Stages

DEFAULT_TIMEOUT_S = 30.0
MAX_CONNECTIONS = 32


def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    timeout: float = DEFAULT_TIMEOUT_S,
    wait: float = 0.0,
    node: str | None = None,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    serializer: str | Serializer = "json",
    max_connections: int = MAX_CONNECTIONS,
    tempo: Tempo | None = None,
) -> Client:
    """A client of the daemon at target: a socket, a unix:// URL or a run directory; on another machine
    tls://host:port or tcp://host:port. Without one: TOPICD_SOCKET, then $XDG_RUNTIME_DIR/topicd, /run/topicd and
    ./var/run.

    `timeout` bounds every operation including its repetitions; `wait` is how long a daemon may take to
    appear; `node` is written into every record that names none. `token` (or TOPICD_TOKEN) is for daemons on other
    machines; `ca_file` (or TOPICD_CA_FILE) holds the certificates to trust instead of the system's.

    >>> with topicd.connect() as client:
    ...     seq = client.publish("orders", {"id": 7})
    """
    tempo = tempo or Tempo()
    target = with_ca_file(target, ca_file)
    token = token or os.environ.get(TOKEN_ENV)
    directory = find_daemon(target, os.environ, timeout=timeout, token=token, wait=wait, tempo=tempo)
    engine = Engine(directory, tempo=tempo, timeout=timeout, token=token, max_connections=max_connections)
    return Client(engine, node=node, serializer=serializer)


class Client:
    """Made by `topicd.connect`. Safe to use from many threads: each call borrows a connection of its own."""

    def __init__(self, engine: Engine, *, node: str | None = None, serializer: str | Serializer = "json") -> None:
        self._engine = engine
        self._node = label(node, "node")
        self._serialize = _serializer(serializer)

    @property
    def engine(self) -> Engine:
        """For what is built on the client."""
        return self._engine

    # ---- writing ----

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
        """Stores one record and returns its seq. A record with a `key` that was used within the topic's
        idempotency window is not stored again; the seq is that of the first.

        >>> client.publish("orders", b"hello", tag="greeting")
        1
        """
        frames = encode_one(data, tag, node or self._node, meta, self._serialize)
        return self._engine.append(topic, frames, 1, b"" if key is None else checked_key(key)).first_seq

    def publish_many(
        self,
        topic: str,
        records: Sequence[Any],
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        performance: bool = False,
    ) -> Published:
        """Stores a list of bytes (fastest), text, JSON values, `Record`s or (data, tag, node, meta) tuples,
        in order.

        Up to 10,000 records and 64 MiB are one batch: all of it is stored or nothing. Longer lists are several
        batches; when one of them is refused, detail["stored"] of the error says how many records preceded it. With
        `performance` the answer to a single batch says where the daemon's time went.

        >>> client.publish_many("orders", [b"a", b"b", b"c"]).count
        3
        """
        if not isinstance(records, list | tuple):
            records = list(records)
        if not records:
            raise InvalidRequest("publish_many needs at least one record")
        batches = encode_many(records, label(tag, "tag"), label(node, "node") or self._node, self._serialize)
        if len(batches) > 1:
            return publish_batches(self._engine, topic, batches)
        flags = int(MessageFlag.PERFORMANCE) if performance else 0
        answer = self._engine.append(topic, *batches[0], flags=flags)
        last_seq = answer.first_seq + answer.stored - 1
        return Published(answer.first_seq, last_seq, answer.stored, answer.deduped, answer.performance)

    def stages(self, query: str, *, ends: bool = False, ttl: float = 86_400.0) -> Stages:
        """Records of many writers that become visible together and once, batch by batch; `ends`: there is a single
        batch. What was staged `ttl` seconds ago and is not committed expires."""
        from topicd.client.staging.stages import Stages

        return Stages(self, query, ends=ends, ttl=ttl, serialize=self._serialize)

    def pipeline(self, topic: str, *, max_inflight: int = 64) -> Pipeline:
        """Single records with up to max_inflight of them unacknowledged, in one thread."""
        return Pipeline(self._engine, topic, max_inflight=max_inflight, serialize=self._serialize, node=self._node)

    def producer(
        self,
        *,
        linger: float = 0.005,
        max_batch_bytes: int = 256 * KIB,
        max_batch_records: int = 1000,
        max_inflight: int = 64,
        on_full: OnFull = "block",
        timeout: float | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
        serializer: str | Serializer | None = None,
    ) -> Producer:
        """A producer that collects records for up to `linger` seconds, max_batch_records or max_batch_bytes, and keeps
        up to max_inflight batches unacknowledged. Beyond that `send` blocks, or raises Throttled with on_full="raise".
        `on_delivery` is called with the `Delivery` of every record."""
        return Producer(
            self._engine,
            linger=linger,
            max_batch_bytes=max_batch_bytes,
            max_batch_records=max_batch_records,
            max_inflight=max_inflight,
            on_full=on_full,
            timeout=timeout,
            on_delivery=on_delivery,
            serialize=self._serialize if serializer is None else _serializer(serializer),
            node=self._node,
        )

    # ---- reading ----

    def read(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        limit: int = 0,
        max_bytes: int = 0,
        wait: float = 0.0,
        match: Match = None,
        nodes: str | Sequence[str] | None = None,
        from_time: datetime | None = None,
        metadata_only: bool = False,
        performance: bool = False,
        epoch: int | None = None,
    ) -> ReadResult:
        """Records with a seq above from_seq, oldest first, up to limit and max_bytes (0: the daemon's
        defaults).

        `wait` is how long to wait for a first record. `match` takes a tag, or a beginning with a trailing
        star. `nodes` names origins whose records are left out. `epoch` is the topic_id the cursor belongs
        to: if the topic was created anew since, the answer says so and begins at its start.

        >>> stored = client.publish_many("letters", [b"a", b"b", b"c"])
        >>> client.read("letters", 1).payloads()
        [b'b', b'c']
        """
        request = requests.fetch(
            from_seq,
            limit=limit,
            max_bytes=max_bytes,
            match=match,
            nodes=nodes,
            from_time=from_time,
            metadata_only=metadata_only,
            performance=performance,
            epoch=epoch,
        )
        ends = self._engine.tempo.monotonic() + wait
        while True:
            left = ends - self._engine.tempo.monotonic() if wait else 0.0
            found = self._fetch(topic, request, requests.wait_ms(left))
            if requests.enough(found, left):
                return found

    def _fetch(self, topic: str, request: requests.Fetch, wait_ms: int) -> ReadResult:
        body = request.body(wait_ms)

        def attempt(connection: Connection, topic_id: int) -> ReadResult:
            arrived = connection.exchange(Op.FETCH, body(topic_id), request.flags)
            return ReadResult(topic, fetched_from(arrived, connection.inbox.buffer))

        timeout = self._engine.timeout + wait_ms / 1000
        return self._engine.with_topic(topic, attempt, create=False, timeout=timeout)

    def history(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        to_seq: int | None = None,
        match: Match = None,
        epoch: int | None = None,
    ) -> Iterator[Batch]:
        """Everything with a seq above from_seq, up to to_seq and at most to the head, in large batches, then ends.

        On the daemon's own host and as its user the sealed part is read from the files themselves. `match` and `epoch`
        are as in `read`.

        >>> stored = client.publish_many("letters", [b"a", b"b", b"c"])
        >>> sum(len(batch) for batch in client.history("letters", to_seq=2))
        2
        """
        tag = TagMatch.from_wire(wire) if (wire := match_wire(match)) is not None else None
        wanted = Stretch(topic, cursor(from_seq), MAX_SEQ if to_seq is None else cursor(to_seq), tag)
        return history(wanted, bulk_read(self.read, topic, tag, epoch), lambda: self._history_socket(topic))

    def _history_socket(self, topic: str) -> Path | None:
        directory = self._engine.directory
        shard = directory.shard_of(topic)
        place = directory.path_of(shard)
        return RunDir(place.parent).history_socket(shard) if isinstance(place, Path) else None

    def watch(
        self,
        topics: str | list[str] | tuple[str, ...],
        start: Start = "latest",
        *,
        on_gap: OnGap = "yield",
        match: Match = None,
        nodes: str | list[str] | None = None,
        batch_bytes: int = MIB,
    ) -> Watch:
        """Records of a topic, of a list of topics, or of all topics that begin like `"orders.*"`, as they
        are stored.

        `start` is latest, earliest, a seq (exclusive) or a datetime. Where records were removed before they
        were read, a `Gap` comes in their place; `on_gap="raise"` raises RecordsMissed instead, a function
        is called with it.
        """
        if self._engine.closed:
            raise InvalidRequest("the client is closed")
        wanted = Wanted(topics, start, match, nodes)
        return Watch(self._engine, wanted, on_gap=on_gap, batch_bytes=batch_bytes).open()

    def consumer(
        self,
        topic: str,
        name: str,
        start: Start = "earliest",
        *,
        auto_ack: bool = True,
        on_gap: OnGap = "yield",
        match: Match = None,
        nodes: str | list[str] | None = None,
        batch_bytes: int = MIB,
    ) -> Consumer:
        """The consumer of that name, which goes on where it has acknowledged; `start` counts when it is new."""
        if self._engine.closed:
            raise InvalidRequest("the client is closed")
        return Consumer(
            self._engine,
            topic,
            name,
            start=start,
            auto_ack=auto_ack,
            on_gap=on_gap,
            match=match,
            nodes=nodes,
            batch_bytes=batch_bytes,
        ).open()

    def consumers(self, topic: str) -> list[ConsumerInfo]:
        """The named consumers of a topic."""
        answer = self._engine.call(topic, Op.CONSUMER_LIST, {"topic": topic})
        return [info(ConsumerInfo, entry) for entry in answer.get("consumers") or []]

    def open_consumer(self, topic: str, name: str, start: Start = "earliest") -> int:
        """Makes a consumer that does not exist yet, and leaves one that does where it is; the seq it counts as having
        acknowledged. For readers that deliver by other means; `consumer` delivers."""
        answer = self._engine.call(topic, Op.CONSUMER_OPEN, requests.consumer(topic, name, start))
        return number(answer, "acked_seq")

    def ack_consumer(self, topic: str, name: str, seq: int) -> int:
        """Acknowledges everything up to seq; never goes back. The seq up to which all is acknowledged now."""
        request = {**requests.consumer(topic, name), "seq": cursor(seq)}
        return number(self._engine.call(topic, Op.CONSUMER_ACK, request), "acked_seq")

    def reset_consumer(self, topic: str, name: str, start: Start) -> int:
        """Sets a consumer back or forth; the seq it counts as having acknowledged now."""
        answer = self._engine.call(topic, Op.CONSUMER_RESET, requests.consumer(topic, name, start))
        return number(answer, "acked_seq")

    def remove_consumer(self, topic: str, name: str) -> None:
        self._engine.call(topic, Op.CONSUMER_REMOVE, requests.consumer(topic, name))

    # ---- topics ----

    def state(self, topic: str, *, touch: bool = True) -> TopicState:
        return info(TopicState, self._engine.call(topic, Op.STATE, {"topic": topic, "touch": touch}))

    def configure(self, topic: str, **config: Any) -> TopicConfig:
        """Creates the topic or changes the given fields; returns the whole configuration.

        >>> client.configure("orders", durability="fsync", cap_records=1_000_000).durability
        'fsync'
        """
        answer = self._engine.call(topic, Op.CONFIGURE, requests.configure(topic, config))
        return config_of(answer.get("config"))

    def topics(self, prefix: str = "", *, internal: bool = False) -> Iterator[TopicInfo]:
        """All topics whose name begins with prefix, sorted by name, fetched page by page. Topicd's own (`topicd.*`) are
        among them if `internal` or the prefix asks for them."""
        pages = [self._topics_of(shard, prefix, internal) for shard in self._engine.directory.shards()]
        return heapq.merge(*pages, key=lambda topic: topic.topic)

    def _topics_of(self, shard: int, prefix: str, internal: bool) -> Iterator[TopicInfo]:
        after: Any = ""
        while after is not None:
            request = {"prefix": prefix, "after": after, "limit": LIST_PAGE_MAX, "internal": internal}
            page = self._engine.call_shard(shard, Op.LIST, request)
            for entry in page.get("topics") or []:
                yield info(TopicInfo, entry)
            after = page.get("next")

    def delete(self, topic: str, before_seq: int | None = None, match: Match = None) -> Deleted:
        """Removes records for good: those below before_seq, those whose tag matches, or those that are
        both."""
        return info(Deleted, self._engine.call(topic, Op.DELETE_RECORDS, requests.delete(topic, before_seq, match)))

    def delete_topic(self, topic: str, *, if_empty: bool = False) -> int:
        """Removes the topic with everything in it; the id it had."""
        answer = self._engine.call(topic, Op.DELETE_TOPIC, {"topic": topic, "if_empty": if_empty})
        return number(answer, "topic_id")

    # ---- the daemon ----

    def status(self) -> dict[str, Any]:
        """The daemon's processes, their state and counters."""
        return self._engine.call_shard(SUPERVISOR, Op.STATUS, {})

    def ping(self) -> float:
        """Seconds there and back."""
        began = self._engine.tempo.monotonic()
        self._engine.call_shard(SUPERVISOR, Op.PING, {})
        return self._engine.tempo.monotonic() - began

    def close(self) -> None:
        self._engine.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_serializer = serializer
