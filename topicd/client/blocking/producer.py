"""Records collected by topic into batches, sent in the background. Promise: per topic they are stored in the order they
were given and once, whatever happens to the connection; none is dropped without its delivery saying so.

One lock guards everything. Whoever holds it may take a turn: a caller that fills a batch sends it at once, the thread
does the rest (lingering batches, acknowledgements). Nobody dials under the lock: a shard that does not answer holds up
its own topics and no others.
"""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Sequence
from typing import Any

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.dialing import Bell, Beside
from topicd.client.blocking.forksafe import track
from topicd.client.blocking.receipts import Deliveries, Delivery
from topicd.client.blocking.routes import DrivenRoutes
from topicd.client.core.collecting import (
    BATCH_BYTES,
    BATCH_RECORDS,
    FAILED_BYTES,
    INFLIGHT,
    LINGER_S,
    Collector,
    OnFull,
)
from topicd.client.core.encode import Encoded, Serializer
from topicd.client.core.receipts import Parcel, gave_up
from topicd.client.core.records import Record
from topicd.errors import ConnectionLost, InvalidRequest, Throttled, TopicdError

NEVER = float("inf")


class Producer:
    """Made by `client.producer`. Safe to use from many threads.

    >>> with client.producer(linger=0.01) as producer:
    ...     delivery = producer.send("orders", {"id": 7}, tag="created")
    ...     seq = delivery.result()
    """

    def __init__(
        self,
        caller: Caller,
        *,
        linger: float = LINGER_S,
        max_batch_bytes: int = BATCH_BYTES,
        max_batch_records: int = BATCH_RECORDS,
        max_inflight: int = INFLIGHT,
        on_full: OnFull = "block",
        timeout: float,
        on_delivery: Callable[[Delivery], object] | None = None,
        serialize: Serializer,
        node: bytes | None = None,
    ) -> None:
        self._now = caller.tempo.monotonic
        self._bell = Bell()
        self._routes = DrivenRoutes(caller, max_inflight, start=Beside(self._bell.ring))
        self._collector: Collector[Producer] = Collector(
            self._routes.submit,
            self._now,
            linger=linger,
            max_batch_bytes=max_batch_bytes,
            max_batch_records=max_batch_records,
            max_inflight=max_inflight,
            on_full=on_full,
            timeout=timeout,
            serialize=serialize,
            node=node,
        )
        self._on_delivery = on_delivery
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._settled: list[Parcel[Producer]] = []  # with callbacks still to be called
        self._failed: list[Parcel[Producer]] = []  # nobody has heard of them yet
        self._failed_bytes = 0
        self._given_up: list[Parcel[Producer]] = []  # told by the last error of flush, close or send
        self._closed = False
        self._wakes_at = 0.0
        self._polled: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._run, name="topicd-producer", daemon=True)
        self._thread.start()
        track(self)

    def forked(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._closed = True
        self._routes.forked()

    # ---- sending ----

    def send(
        self,
        topic: str,
        data: Any,
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        meta: dict[str, Any] | None = None,
    ) -> Delivery:
        """Takes one record; its delivery will know the seq. Blocks or raises Throttled while too much is under way, and
        raises what `flush` would when 64 MiB were not stored and nobody has asked."""
        collector = self._collector
        labels = None
        plain = tag is None and node is None and meta is None and type(data) is bytes
        if not plain or len(data) > collector.plain_max:
            data, labels = collector.checked(data, tag, node, meta)
        if self._failed_bytes > FAILED_BYTES:
            self._tell_failures()
        with self._lock:
            parcel = collector.open.get(topic) or self._begin(topic)
            index = collector.add(parcel, data, labels)
            if not parcel.datas:  # it is sealed
                self._advance()
        if self._settled:
            self._report()
        return Delivery(parcel, index)

    def send_many(
        self,
        topic: str,
        records: Sequence[Any],
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
    ) -> Deliveries:
        """Takes a list like `publish_many`, cut into batches of this producer's size. A list of bytes is fastest."""
        parcels = [self._send_encoded(topic, piece) for piece in self._collector.pieces(records, tag, node)]
        if self._settled:
            self._report()
        return Deliveries(parcels)

    def _send_encoded(self, topic: str, encoded: Encoded) -> Parcel[Producer]:
        collector = self._collector
        with self._lock:
            if (earlier := collector.open.get(topic)) is not None:
                collector.seal(earlier)
            # While this thread waits for room, another may begin a batch: that one goes first.
            while (parcel := self._begin(topic)).datas:
                collector.seal(parcel)
            collector.send_encoded(parcel, encoded)
            self._advance()
        return parcel

    def _begin(self, topic: str) -> Parcel[Producer]:
        """A new open batch, once there is room for one."""
        collector = self._collector
        while True:
            if self._closed:
                raise InvalidRequest("the producer is closed")
            if not collector.full:
                break
            self._make_room()
            # Another thread may have begun one meanwhile.
            if topic in collector.open:
                return collector.open[topic]
        parcel = collector.begin(self, self._routes.outbox(topic))
        if parcel.due < self._wakes_at:
            self._bell.ring()
        return parcel

    def _make_room(self) -> None:
        collector = self._collector

        def room() -> bool:
            return self._closed or not collector.full

        collector.seal_all()
        self._advance()
        if room():
            return
        full = Throttled(f"{collector.unsettled} batches are unacknowledged", limit="max_inflight")
        if collector.raises_when_full:
            raise full
        if not self._changed.wait_for(room, collector.timeout):
            raise full

    def _advance(self) -> None:
        """A turn in the caller's thread; ours is woken only if it waits for the wrong things now."""
        self._routes.turn()
        due = self._routes.wake_at()
        if (due is not None and due < self._wakes_at) or self._sockets() != self._polled:
            self._bell.ring()

    # ---- outcomes ----

    def parcel_settled(self, parcel: Parcel[Any]) -> None:
        self._collector.unsettled -= 1
        if parcel.callbacks is not None or self._on_delivery is not None:
            self._settled.append(parcel)
        elif parcel.error is not None:
            self._failed.append(parcel)
            self._failed_bytes += parcel.size
        self._changed.notify_all()

    def _report(self) -> None:
        """Calls what waits for outcomes, without the lock."""
        with self._lock:
            settled, self._settled = self._settled, []
        for parcel in settled:
            if self._on_delivery is not None:
                for index in range(parcel.count):
                    self._on_delivery(Delivery(parcel, index))
            for call in parcel.callbacks or ():
                call()

    def wait_for(self, parcel: Parcel[Any], timeout: float | None) -> None:
        """Until the outcome of a batch is known; for its deliveries."""
        with self._changed:
            if not self._changed.wait_for(lambda: parcel.done, timeout):
                raise TimeoutError("the record is not acknowledged yet")

    def call_when_done(self, parcel: Parcel[Any], call: Callable[[], object]) -> None:
        """For the deliveries of a batch."""
        with self._lock:
            if not parcel.done:
                parcel.callbacks = [*(parcel.callbacks or ()), call]
                return
        call()

    def flush(self, timeout: float | None = None) -> None:
        """Sends everything and waits for its acknowledgements. Raises the error of a batch that was refused and whose
        deliveries nobody has looked at, so that no loss goes unnoticed."""
        collector = self._collector
        with self._changed:
            collector.seal_all()
            self._advance()
            done = self._changed.wait_for(lambda: collector.unsettled == 0, timeout)
        self._report()
        self._tell_failures()
        if not done:
            raise ConnectionLost(f"{collector.unsettled} batches are unacknowledged after {timeout:g} s")

    def _tell_failures(self) -> None:
        with self._lock:
            failed = [parcel for parcel in self._failed if not parcel.observed]
            self._failed, self._failed_bytes = [], 0
            if failed:
                self._given_up = failed
        if failed:
            raise gave_up(failed)

    def not_stored(self) -> list[Record]:
        """The records that the last error of `flush`, `close` or `send` spoke of, in order, and forgets them. With
        ConnectionLost some of them may be stored all the same."""
        with self._lock:
            given_up, self._given_up = self._given_up, []
        return [record for parcel in given_up for record in parcel.not_stored()]

    def close(self) -> None:
        """Flushes and stops. What is not acknowledged by the timeout fails: the error says how many records that are,
        and `not_stored` hands them back."""
        if self._closed:
            return
        told: list[Parcel[Producer]] = []
        try:
            self.flush(self._collector.timeout + 1)
        except TopicdError:
            told, self._given_up = self._given_up, []
        finally:
            with self._lock:
                self._closed = True
                self._bell.ring()
                self._changed.notify_all()
            self._thread.join()
            with self._lock:
                # What another thread has sent meanwhile.
                self._collector.seal_all()
                self._routes.end(ConnectionLost("the producer was closed before this was acknowledged"))
            self._bell.close()
        failed = told + [parcel for parcel in self._failed if not parcel.observed]
        self._failed, self._given_up = [], failed
        if failed:
            raise gave_up(failed)

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- the thread ----

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._closed:
                    return
                waits = self._turn()
                poll = self._poll()
            if self._settled:
                self._report()
            if poll.poll(None if waits is None else waits * 1000 + 0.5):
                self._bell.silence()

    def _turn(self) -> float | None:
        """Everything that is due; how long nothing will be."""
        self._collector.seal_due(self._now())
        self._routes.turn()
        times = [due for due in (self._collector.next_due(), self._routes.wake_at()) if due is not None]
        self._wakes_at = min(times) if times else NEVER
        return None if not times else max(0.0, self._wakes_at - self._now())

    def _sockets(self) -> list[tuple[int, int]]:
        """(descriptor, events) to wait for."""
        return [
            (link.fileno(), select.POLLIN | (select.POLLOUT if link.wants_write else 0))
            for link in self._routes.links
            if link.connected
        ]

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._bell.descriptor, select.POLLIN)
        self._polled = self._sockets()
        for descriptor, events in self._polled:
            poll.register(descriptor, events)
        return poll
