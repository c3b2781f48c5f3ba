"""The blocking operations: each sends its request and returns what the answer means. Promise: every call returns what
happened, or raises an error of topicd.errors; restarts of the daemon within the timeout are waited out, and nothing is
stored twice because of them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, overload

from topicd.client.blocking.bulk import publish_batches
from topicd.client.blocking.caller import Caller
from topicd.client.blocking.channels import Channels
from topicd.client.blocking.connection import Connection
from topicd.client.blocking.history import history
from topicd.client.blocking.routers import Routers
from topicd.client.core import requests
from topicd.client.core.answers import ConnectionInfo, TopicInfo
from topicd.client.core.arguments import Match, Nodes, Start, excluded
from topicd.client.core.batch import Batch, ReadResult
from topicd.client.core.decode import Decode
from topicd.client.core.encode import Serializer, encode_list, encode_one, label, named_serializer
from topicd.client.core.gaps import OnGap
from topicd.client.core.history import Reading
from topicd.client.core.operations import Declared
from topicd.client.core.records import Event, Published, Record
from topicd.client.core.stored import Stored
from topicd.client.core.verbs import give_methods
from topicd.ipc.protocol import messages
from topicd.ipc.protocol.codec import checked_key
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import MessageFlag
from topicd.limits import FETCH_BYTES_MAX


class Operations(Declared):
    def __init__(self, caller: Caller, *, node: str | None = None, serializer: str | Serializer = "json") -> None:
        self._caller = caller
        self._node = label(node, "node")
        self._serialize = named_serializer(serializer)

    @property
    def caller(self) -> Caller:
        """For what is built on the client."""
        return self._caller

    @property
    def channels(self) -> Channels:
        """Channels with members, lists of who may, and history."""
        return Channels(self._caller, self._serialize)

    @property
    def node(self) -> bytes | None:
        """What is written into every record that names none."""
        return self._node

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
        return self._caller.append(topic, frames, 1, b"" if key is None else checked_key(key)).first_seq

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
        batches = encode_list(records, tag, node, self._node, self._serialize)
        if len(batches) > 1:
            return publish_batches(self._caller, topic, batches)
        flags = int(MessageFlag.PERFORMANCE) if performance else 0
        return Published.of(self._caller.append(topic, *batches[0], flags=flags))

    # ---- reading ----

    @overload
    def read(
        self,
        topic: str,
        start: Start = ...,
        *,
        gaps: Literal[True],
        to_seq: int | None = ...,
        limit: int | None = ...,
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        metadata_only: bool = ...,
        committed: bool = ...,
        decode: Decode = ...,
    ) -> Iterator[Event]: ...

    @overload
    def read(
        self,
        topic: str,
        start: Start = ...,
        *,
        gaps: Literal[False] = ...,
        on_gap: OnGap = ...,
        to_seq: int | None = ...,
        limit: int | None = ...,
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        metadata_only: bool = ...,
        committed: bool = ...,
        decode: Decode = ...,
    ) -> Iterator[Record]: ...

    def read(
        self,
        topic: str,
        start: Start = "earliest",
        *,
        gaps: bool = False,
        on_gap: OnGap = "raise",
        to_seq: int | None = None,
        limit: int | None = None,
        match: Match = None,
        exclude_nodes: Nodes = None,
        metadata_only: bool = False,
        committed: bool = False,
        decode: Decode = None,
    ) -> Iterator[Event]:
        """Every record that the topic holds now, oldest first, one after the other; memory holds a page of it.

        `start` is earliest, a seq (exclusive) or a datetime; `to_seq` and `limit` end it sooner. `match` takes a tag,
        or a beginning with a trailing star; `exclude_nodes` names origins whose records are left out. What cap or TTL
        removed behind `start` raises RecordsMissed; `on_gap=function` is called with it instead, `gaps=True` puts the
        `Gap` in its place. `decode` ("json", "msgpack", a model class, a function) makes `record.value`. With
        `committed` it ends before the first record of a commit that is not all there yet.

        >>> stored = client.publish_many("letters", [b"a", b"b", b"c"])
        >>> [record.data for record in client.read("letters")]
        [b'a', b'b', b'c']
        """
        stored = Stored(
            start,
            to_seq=to_seq,
            limit=limit,
            match=match,
            nodes=exclude_nodes,
            metadata_only=metadata_only,
            committed=committed,
            gaps=gaps,
            on_gap=on_gap,
            decode=decode,
        )
        return (event for batch in self._pages(topic, stored) for event in stored.events(batch))

    def _pages(self, topic: str, stored: Stored) -> Iterator[Batch]:
        while not stored.over:
            yield stored.page(self.fetch(topic, stored.at, **stored.arguments()))
            if stored.files and not stored.over:
                rest = self.history(
                    topic,
                    stored.at,
                    to_seq=stored.end,
                    match=stored.match,
                    epoch=stored.epoch,
                    committed=stored.committed,
                )
                yield from map(stored.page, rest)
                return

    def fetch(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        limit: int = 0,
        max_bytes: int = 0,
        wait: float = 0.0,
        match: Match = None,
        exclude_nodes: Nodes = None,
        from_time: datetime | None = None,
        metadata_only: bool = False,
        performance: bool = False,
        epoch: int | None = None,
        committed: bool = False,
        nodes: Nodes = None,
    ) -> ReadResult:
        """One page: records with a seq above from_seq, oldest first, up to limit and max_bytes (0: the daemon's
        defaults, 256 records and 1 MiB). `read` goes on to the end.

        `wait` is how long to wait for a first record. `match` takes a tag, or a beginning with a trailing
        star. `exclude_nodes` names origins whose records are left out. `epoch` is the topic_id the cursor belongs
        to: if the topic was created anew since, the answer says so and begins at its start. With `committed` the
        answer ends before the first record of a commit that is not all there yet.

        >>> stored = client.publish_many("letters", [b"a", b"b", b"c"])
        >>> client.fetch("letters", 1).payloads()
        [b'b', b'c']
        """
        request = requests.fetch(
            from_seq,
            limit=limit,
            max_bytes=max_bytes,
            match=match,
            nodes=excluded(exclude_nodes, nodes),
            from_time=from_time,
            metadata_only=metadata_only,
            performance=performance,
            epoch=epoch,
            committed=committed,
        )
        poll = requests.LongPoll(self._caller.tempo, wait)
        while True:
            found = self._fetch(topic, request, poll.next_ms())
            if poll.over(found):
                return found

    def _fetch(self, topic: str, request: requests.Fetch, wait_ms: int) -> ReadResult:
        def attempt(connection: Connection, topic_id: int) -> ReadResult:
            arrived = connection.exchange(Op.FETCH, request.body(topic_id, wait_ms), request.flags)
            return ReadResult(topic, connection.cutter.fetched(arrived))

        timeout = self._caller.timeout + wait_ms / 1000
        return self._caller.with_topic(topic, attempt, create=False, timeout=timeout)

    def history(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        to_seq: int | None = None,
        match: Match = None,
        epoch: int | None = None,
        committed: bool = False,
    ) -> Iterator[Batch]:
        """Everything with a seq above from_seq, up to to_seq and at most to the head, in large batches, then ends.

        On the daemon's own host and as its user the sealed part is read from the files themselves. `match`, `epoch`
        and `committed` are as in `fetch`; whole commits only are told by the daemon, so no file is read then.

        >>> stored = client.publish_many("letters", [b"a", b"b", b"c"])
        >>> sum(len(batch) for batch in client.history("letters", to_seq=2))
        2
        """
        reading = Reading(topic, from_seq, to_seq, match)

        def read(at: int, limit: int) -> Batch:
            return self.fetch(
                topic, at, limit=limit, max_bytes=FETCH_BYTES_MAX, match=reading.match, epoch=epoch, committed=committed
            )

        return history(reading, read, lambda: None if committed else self._caller.shard_map.history_socket(topic))

    # ---- consumers ----

    def open_consumer(self, topic: str, name: str, start: Start = "earliest") -> int:
        """Creates a consumer that does not exist yet, and leaves one that does where it is; the seq it counts as having
        acknowledged. For readers that deliver by other means; `consumer` delivers."""
        return self._caller.ask(requests.open_consumer(topic, name, start)).acked_seq

    # ---- routers ----

    @property
    def routers(self) -> Routers:
        """Topics that feed topics: `create`, `get`, `list`, `delete`, `of`."""
        return Routers(self._caller)

    # ---- topics ----

    def topics(self, prefix: str = "", *, internal: bool = False) -> Iterator[TopicInfo]:
        """All topics whose name begins with prefix, sorted by name, fetched page by page. Topicd's own (`topicd.*`) are
        among them if `internal` or the prefix asks for them."""
        pages = [self._topics_of(shard, prefix, internal) for shard in self._caller.shard_map.shards()]
        return heapq.merge(*pages, key=lambda topic: topic.topic)

    def _topics_of(self, shard: int, prefix: str, internal: bool) -> Iterator[TopicInfo]:
        after: str | None = ""
        while after is not None:
            page = self._caller.ask_shard(shard, requests.topics_page(prefix, after, internal))
            yield from page.topics
            after = page.next

    # ---- the daemon ----

    def connections(self) -> list[ConnectionInfo]:
        """Who is connected to each shard, this client included."""
        shards = self._caller.shard_map.shards()
        return [row for shard in shards for row in self._caller.ask_shard(shard, requests.connections(shard))]

    def ask_shards(self, message: messages.Request) -> list[dict[str, Any]]:
        """The answers of all delivery shards, asked one after the other; what backups are made with."""
        request: requests.Request[dict[str, Any]] = requests.of_daemon(message)
        return [self._caller.ask_shard(shard, request) for shard in self._caller.shard_map.shards()]

    def ping(self) -> float:
        """Seconds there and back."""
        began = self._caller.tempo.monotonic()
        self._caller.ask(requests.ping())
        return self._caller.tempo.monotonic() - began


give_methods(Operations, Declared, awaited=False)
