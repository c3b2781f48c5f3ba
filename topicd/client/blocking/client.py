"""The blocking client as its users see it: `connect`, the operations, and what is made of a client."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.consumer import Consumer
from topicd.client.blocking.finding import find_daemon
from topicd.client.blocking.operations import Operations
from topicd.client.blocking.pipeline import Pipeline
from topicd.client.blocking.producer import Producer
from topicd.client.blocking.receipts import Delivery
from topicd.client.blocking.watch import Watch
from topicd.client.core.address import TOKEN_ENV, with_ca_file
from topicd.client.core.arguments import Match, Nodes, Start, excluded
from topicd.client.core.collecting import BATCH_BYTES, BATCH_RECORDS, INFLIGHT, LINGER_S, OnFull
from topicd.client.core.decode import Decode, decoder_of
from topicd.client.core.encode import Serializer, encode_list, encode_one, label, named_serializer
from topicd.client.core.events import Disconnected, Events, Reconnected
from topicd.client.core.gaps import OnGap, gap_choice
from topicd.client.core.options import (
    DEFAULT_TIMEOUT_S,
    MAX_CONNECTIONS,
    SPOOL_BYTES,
    STAGE_TTL_S,
    OwnTimeout,
    Timeout,
    check_no_spool,
    seconds,
)
from topicd.client.core.records import Event, Published, Record
from topicd.client.core.settling import own_name
from topicd.client.core.watching import wanted_by
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.retry import Tempo
from topicd.limits import MIB
from topicd.model import check_topic_name

if TYPE_CHECKING:
    from topicd.client.blocking.chat import Chat
    from topicd.client.blocking.queue import Queue
    from topicd.client.spool.spool import Spool
    from topicd.client.staging.stages import Stages


def connect(
    target: str | os.PathLike[str] | None = None,
    *,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
    wait: Timeout = 0.0,
    node: str | None = None,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    serializer: str | Serializer = "json",
    max_connections: int = MAX_CONNECTIONS,
    tempo: Tempo | None = None,
    spool: str | os.PathLike[str] | None = None,
    spool_durability: Literal["os", "fsync"] = "os",
    spool_bytes: int = SPOOL_BYTES,
    on_disconnect: Callable[[Disconnected], Any] | None = None,
    on_reconnect: Callable[[Reconnected], Any] | None = None,
) -> Client:
    """A client of the daemon at target: a socket, a unix:// URL or a run directory; on another machine
    tls://host:port or tcp://host:port. Without one: TOPICD_SOCKET, TOPICD_RUN_DIR, then the settings
    file's run_dir, $XDG_RUNTIME_DIR/topicd, /run/topicd and ./var/run.

    `timeout` bounds every operation including its repetitions; `wait` is how long a daemon may take to appear; None
    waits for ever. `on_disconnect` and `on_reconnect` are called, in whichever thread notices, when a shard does not
    answer and when it is back; `node` is written into every record that names none. `token` (or TOPICD_TOKEN) is for
    daemons on other machines; `ca_file` (or TOPICD_CA_FILE) holds the certificates to trust instead of the system's.
    Threads share at most `max_connections` connections to each shard.

    With a `spool`, a directory of this process, publishing goes on while the daemon is away: what is published is
    stored there first and sent once and in order when the daemon is there (docs/filechannel.md, Spool).

    >>> with topicd.connect() as client:
    ...     seq = client.publish("orders", {"id": 7})
    """
    if spool is not None:
        return SpooledClient(
            partial(
                connect,
                target,
                timeout=timeout,
                token=token,
                ca_file=ca_file,
                max_connections=max_connections,
                tempo=tempo,
                on_disconnect=on_disconnect,
                on_reconnect=on_reconnect,
            ),
            spool,
            durability=spool_durability,
            max_bytes=spool_bytes,
            node=node,
            serializer=serializer,
        )
    check_no_spool(spool_durability, spool_bytes)
    tempo = tempo or Tempo()
    target = with_ca_file(target, ca_file)
    token = token or os.environ.get(TOKEN_ENV)
    limit = seconds(timeout)
    shard_map = find_daemon(target, os.environ, timeout=limit, token=token, wait=seconds(wait), tempo=tempo)
    events = Events(tempo.monotonic, on_disconnect, on_reconnect)
    caller = Caller(shard_map, tempo=tempo, timeout=limit, token=token, max_connections=max_connections, events=events)
    return Client(caller, node=node, serializer=serializer)


class Client(Operations):
    """Made by `topicd.connect`. Safe to use from many threads: each call borrows a connection of its own."""

    def stages(self, query: str, *, ends: bool = False, ttl: float = STAGE_TTL_S) -> Stages:
        """Records of many writers that become visible together and once, batch by batch; `ends`: there is a single
        batch. What was staged `ttl` seconds ago and is not committed expires."""
        from topicd.client.staging.stages import Stages

        return Stages(self, query, ends=ends, ttl=ttl, serialize=self._serialize)

    def queue(self, name: str, *, node: str | None = None) -> Queue:
        """The work queue of that name, which is created when it is first used. `node` is the worker's name, as others
        see it in `why` and `peek`; by default the client's, else one that says host and process.

        >>> jobs = client.queue("thumbs")
        >>> jobs.put({"file": 9}).new
        True
        """
        from topicd.client.blocking.queue import Queue

        self._check_open()
        return Queue(self, name, node=node or self._worker_name(), serialize=self._serialize)

    def _worker_name(self) -> str:
        return own_name() if self._node is None else self._node.decode("utf-8", "replace")

    def pipeline(self, topic: str, *, max_inflight: int = INFLIGHT) -> Pipeline:
        """Single records with up to max_inflight of them unacknowledged, in one thread."""
        return Pipeline(self._caller, topic, max_inflight=max_inflight, serialize=self._serialize, node=self._node)

    def producer(
        self,
        *,
        linger: float = LINGER_S,
        max_batch_bytes: int = BATCH_BYTES,
        max_batch_records: int = BATCH_RECORDS,
        max_inflight: int = INFLIGHT,
        on_full: OnFull = "block",
        timeout: OwnTimeout = ...,
        on_delivery: Callable[[Delivery], object] | None = None,
        serializer: str | Serializer | None = None,
    ) -> Producer:
        """A producer that collects records for up to `linger` seconds, max_batch_records or max_batch_bytes, and
        keeps up to max_inflight batches unacknowledged. Beyond that `send` blocks, or raises Throttled with
        on_full="raise". `on_delivery` is called with the `Delivery` of every record. `timeout` is the client's unless
        given, None goes on trying for ever."""
        return Producer(
            self._caller,
            linger=linger,
            max_batch_bytes=max_batch_bytes,
            max_batch_records=max_batch_records,
            max_inflight=max_inflight,
            on_full=on_full,
            timeout=seconds(timeout, self._caller.timeout),
            on_delivery=on_delivery,
            serialize=self._serialize if serializer is None else named_serializer(serializer),
            node=self._node,
        )

    @overload
    def watch(
        self,
        topics: str | Sequence[str],
        start: Start = ...,
        *,
        gaps: Literal[True],
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        committed: bool = ...,
        decode: Decode = ...,
        batch_bytes: int = ...,
        nodes: Nodes = ...,
    ) -> Watch[Event]: ...

    @overload
    def watch(
        self,
        topics: str | Sequence[str],
        start: Start = ...,
        *,
        gaps: Literal[False] = ...,
        on_gap: OnGap = ...,
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        committed: bool = ...,
        decode: Decode = ...,
        batch_bytes: int = ...,
        nodes: Nodes = ...,
    ) -> Watch[Record]: ...

    def watch(
        self,
        topics: str | Sequence[str],
        start: Start = "latest",
        *,
        gaps: bool = False,
        on_gap: OnGap = "raise",
        match: Match = None,
        exclude_nodes: Nodes = None,
        committed: bool = False,
        decode: Decode = None,
        batch_bytes: int = MIB,
        nodes: Nodes = None,
    ) -> Watch[Any]:
        """Records of a topic, of a list of topics or of a pattern, as they are stored. A topic that does not exist
        yet is waited for. `orders.*` means all topics that begin so, `a.*.b` any one part in between, `a.>` all parts
        behind.

        `start` is latest, earliest, a seq (exclusive) or a datetime. Where records were removed before they were
        read, RecordsMissed is raised, and iterating on goes on behind them; `on_gap=function` is called with the
        `Gap` instead, `gaps=True` puts it among the records. `exclude_nodes` names origins whose records are left
        out. `decode` ("json", "msgpack", a model class, a function) makes `record.value`. With `committed` nothing of
        a commit comes before all of it is there. A daemon that is away is waited for."""
        self._check_open()
        wanted = wanted_by(topics, start, match, excluded(exclude_nodes, nodes), committed)
        made: Watch[Any] = Watch(
            self._caller,
            wanted,
            on_gap=gap_choice(gaps, on_gap),
            batch_bytes=batch_bytes,
            decode=decoder_of(decode),
        )
        return made.open()

    @overload
    def consumer(
        self,
        topic: str,
        name: str,
        start: Start = ...,
        *,
        auto_ack: bool = ...,
        takeover: bool = ...,
        gaps: Literal[True],
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        committed: bool = ...,
        decode: Decode = ...,
        batch_bytes: int = ...,
        nodes: Nodes = ...,
    ) -> Consumer[Event]: ...

    @overload
    def consumer(
        self,
        topic: str,
        name: str,
        start: Start = ...,
        *,
        auto_ack: bool = ...,
        takeover: bool = ...,
        gaps: Literal[False] = ...,
        on_gap: OnGap = ...,
        match: Match = ...,
        exclude_nodes: Nodes = ...,
        committed: bool = ...,
        decode: Decode = ...,
        batch_bytes: int = ...,
        nodes: Nodes = ...,
    ) -> Consumer[Record]: ...

    def consumer(
        self,
        topic: str,
        name: str,
        start: Start = "earliest",
        *,
        auto_ack: bool = True,
        takeover: bool = False,
        gaps: bool = False,
        on_gap: OnGap = "raise",
        match: Match = None,
        exclude_nodes: Nodes = None,
        committed: bool = False,
        decode: Decode = None,
        batch_bytes: int = MIB,
        nodes: Nodes = None,
    ) -> Consumer[Any]:
        """The consumer of that name, which goes on where it has acknowledged; `start` counts when it is new.

        One reader at a time: while another one reads as that consumer, ConsumerHeld is raised. With `takeover` the
        other one is ended instead, with the same error. The rest is as in `watch`; a gap that was told is not told
        again."""
        self._check_open()
        made: Consumer[Any] = Consumer(
            self._caller,
            topic,
            name,
            start=start,
            auto_ack=auto_ack,
            on_gap=gap_choice(gaps, on_gap),
            match=match,
            exclude_nodes=excluded(exclude_nodes, nodes),
            committed=committed,
            batch_bytes=batch_bytes,
            takeover=takeover,
            decode=decoder_of(decode),
        )
        return made.open()

    @property
    def spool(self) -> Spool:
        """What waits for the daemon, of a client that was connected with a spool."""
        raise InvalidRequest("the client has no spool: connect(spool=DIR)")

    @property
    def chat(self) -> Chat:
        """The daemon's chat store; a daemon without one says so at the first use."""
        from topicd.client.blocking.chat import Chat

        self._check_open()
        return Chat(self._caller)

    def _check_open(self) -> None:
        if self._caller.closed:
            raise InvalidRequest("the client is closed")

    def close(self) -> None:
        """Closes its connections; producers, pipelines and watches are closed by themselves."""
        self._caller.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class SpooledClient(Client):
    """Made by `topicd.connect(spool=DIR)`. It finds the daemon when it needs it: reading and watching raise
    ConnectionLost while there is none."""

    def __init__(
        self,
        connect: Callable[[], Client],
        directory: str | os.PathLike[str],
        *,
        durability: Literal["os", "fsync"],
        max_bytes: int,
        node: str | None,
        serializer: str | Serializer,
    ) -> None:
        # Not the parent's: there may be no daemon to have connections to.
        self._node = label(node, "node")
        self._serialize = named_serializer(serializer)
        from topicd.client.spool.ondemand import OnDemand
        from topicd.client.spool.spool import Spool

        self._client = OnDemand(connect)
        self._spool = Spool(directory, self._client.get, durability=durability, max_bytes=max_bytes)

    @property
    def _caller(self) -> Caller:
        return self._client.get().caller

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
        if self._client.closed:
            raise InvalidRequest("the client is closed")

    def close(self) -> None:
        """What is still in the spool stays there for the next client. May be called twice."""
        self._spool.stop()
        self._client.close()
        self._spool.close()
