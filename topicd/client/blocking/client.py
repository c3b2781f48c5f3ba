"""The blocking client as its users see it: `connect`, the operations, and what is made of a client."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.consumer import Consumer
from topicd.client.blocking.finding import find_daemon
from topicd.client.blocking.operations import Operations
from topicd.client.blocking.pipeline import Pipeline
from topicd.client.blocking.producer import Producer
from topicd.client.blocking.receipts import Delivery
from topicd.client.blocking.watch import Watch
from topicd.client.core.address import TOKEN_ENV, with_ca_file
from topicd.client.core.arguments import Match, Start
from topicd.client.core.collecting import BATCH_BYTES, BATCH_RECORDS, INFLIGHT, LINGER_S, OnFull
from topicd.client.core.encode import Serializer, named_serializer
from topicd.client.core.options import DEFAULT_TIMEOUT_S, MAX_CONNECTIONS, STAGE_TTL_S
from topicd.client.core.watching import OnGap, wanted_by
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.retry import Tempo
from topicd.limits import MIB

if TYPE_CHECKING:
    from topicd.client.staging.stages import Stages


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
    machines; `ca_file` (or TOPICD_CA_FILE) holds the certificates to trust instead of the system's. Threads share at
    most `max_connections` connections to each shard.

    >>> with topicd.connect() as client:
    ...     seq = client.publish("orders", {"id": 7})
    """
    tempo = tempo or Tempo()
    target = with_ca_file(target, ca_file)
    token = token or os.environ.get(TOKEN_ENV)
    shard_map = find_daemon(target, os.environ, timeout=timeout, token=token, wait=wait, tempo=tempo)
    caller = Caller(shard_map, tempo=tempo, timeout=timeout, token=token, max_connections=max_connections)
    return Client(caller, node=node, serializer=serializer)


class Client(Operations):
    """Made by `topicd.connect`. Safe to use from many threads: each call borrows a connection of its own."""

    def stages(self, query: str, *, ends: bool = False, ttl: float = STAGE_TTL_S) -> Stages:
        """Records of many writers that become visible together and once, batch by batch; `ends`: there is a single
        batch. What was staged `ttl` seconds ago and is not committed expires."""
        from topicd.client.staging.stages import Stages

        return Stages(self, query, ends=ends, ttl=ttl, serialize=self._serialize)

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
        timeout: float | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
        serializer: str | Serializer | None = None,
    ) -> Producer:
        """A producer that collects records for up to `linger` seconds, max_batch_records or max_batch_bytes, and keeps
        up to max_inflight batches unacknowledged. Beyond that `send` blocks, or raises Throttled with on_full="raise".
        `on_delivery` is called with the `Delivery` of every record."""
        return Producer(
            self._caller,
            linger=linger,
            max_batch_bytes=max_batch_bytes,
            max_batch_records=max_batch_records,
            max_inflight=max_inflight,
            on_full=on_full,
            timeout=timeout,
            on_delivery=on_delivery,
            serialize=self._serialize if serializer is None else named_serializer(serializer),
            node=self._node,
        )

    def watch(
        self,
        topics: str | list[str] | tuple[str, ...],
        start: Start = "latest",
        *,
        on_gap: OnGap = "yield",
        match: Match = None,
        nodes: str | list[str] | None = None,
        committed: bool = False,
        batch_bytes: int = MIB,
    ) -> Watch:
        """Records of a topic, of a list of topics, or of all topics that begin like `"orders.*"`, as they
        are stored.

        `start` is latest, earliest, a seq (exclusive) or a datetime. Where records were removed before they
        were read, a `Gap` comes in their place; `on_gap="raise"` raises RecordsMissed instead, a function
        is called with it. With `committed` nothing of a commit comes before all of it is there.
        """
        self._check_open()
        wanted = wanted_by(topics, start, match, nodes, committed)
        return Watch(self._caller, wanted, on_gap=on_gap, batch_bytes=batch_bytes).open()

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
        committed: bool = False,
        batch_bytes: int = MIB,
    ) -> Consumer:
        """The consumer of that name, which goes on where it has acknowledged; `start` counts when it is new."""
        self._check_open()
        return Consumer(
            self._caller,
            topic,
            name,
            start=start,
            auto_ack=auto_ack,
            on_gap=on_gap,
            match=match,
            nodes=nodes,
            committed=committed,
            batch_bytes=batch_bytes,
        ).open()

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
