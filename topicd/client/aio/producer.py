"""Records collected by topic into batches, sent by the loop. Promise: per topic they are stored in the order they were
given and once, whatever happens to the connection; none is dropped without its delivery saying so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from topicd.client.aio.caller import AioCaller
from topicd.client.aio.receipts import AsyncDeliveries, AsyncDelivery
from topicd.client.aio.routes import AioRoutes
from topicd.client.core.collecting import FAILED_BYTES, Collector, OnFull
from topicd.client.core.encode import Encoded, Serializer
from topicd.client.core.receipts import Parcel, gave_up
from topicd.client.core.records import Record
from topicd.errors import ConnectionLost, InvalidRequest, Throttled, TopicdError


class AsyncProducer:
    """Made by `client.producer`; belongs to the loop it was made in.

    >>> async with client.producer(linger=0.01) as producer:    # doctest: +SKIP
    ...     delivery = await producer.send("orders", {"id": 7}, tag="created")
    ...     seq = await delivery
    """

    def __init__(
        self,
        caller: AioCaller,
        *,
        linger: float,
        max_batch_bytes: int,
        max_batch_records: int,
        max_inflight: int,
        on_full: OnFull,
        timeout: float,
        on_delivery: Callable[[AsyncDelivery], object] | None,
        serialize: Serializer,
        node: bytes | None,
    ) -> None:
        self._loop = caller.loop
        self._now = caller.tempo.monotonic
        self._routes = AioRoutes(caller, max_inflight)
        self._collector: Collector[AsyncProducer] = Collector(
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
        self._in_line = asyncio.Lock()  # who waits for room goes before who comes later
        self._changed = asyncio.Event()  # an outcome is known
        self._failed: list[Parcel[AsyncProducer]] = []  # nobody has heard of them yet
        self._failed_bytes = 0
        self._given_up: list[Parcel[AsyncProducer]] = []  # told by the last error of flush, close or send
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # ---- sending ----

    async def send(
        self,
        topic: str,
        data: Any,
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        meta: dict[str, Any] | None = None,
    ) -> AsyncDelivery:
        """Takes one record; its delivery will know the seq. Waits or raises Throttled while too much is under way, and
        raises what `flush` would when 64 MiB were not stored and nobody has asked."""
        collector = self._collector
        data, labels = collector.checked(data, tag, node, meta)
        if self._failed_bytes > FAILED_BYTES:
            self._tell_failures()
        parcel = None if self._in_line.locked() else collector.open.get(topic)
        if parcel is not None:
            return AsyncDelivery(parcel, collector.add(parcel, data, labels))
        async with self._in_line:
            parcel = await self._begin(topic)
            return AsyncDelivery(parcel, collector.add(parcel, data, labels))

    async def send_many(
        self,
        topic: str,
        records: Sequence[Any],
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
    ) -> AsyncDeliveries:
        """Takes a list like `publish_many`, cut into batches of this producer's size. A list of bytes is fastest."""
        async with self._in_line:
            pieces = self._collector.pieces(records, tag, node)
            return AsyncDeliveries([await self._send_encoded(topic, piece) for piece in pieces])

    async def _send_encoded(self, topic: str, encoded: Encoded) -> Parcel[AsyncProducer]:
        if (earlier := self._collector.open.get(topic)) is not None:
            self._collector.seal(earlier)
        parcel = await self._begin(topic)
        self._collector.send_encoded(parcel, encoded)
        return parcel

    async def _begin(self, topic: str) -> Parcel[AsyncProducer]:
        """The open batch, or a new one once there is room for it; only for who is first in line."""
        collector = self._collector
        if (found := collector.open.get(topic)) is not None:
            return found
        if collector.full:
            await self._make_room()
        if self._closed:
            raise InvalidRequest("the producer is closed")
        parcel = collector.begin(self, self._routes.outbox(topic))
        if self._timer is None:
            self._arm()
        return parcel

    async def _make_room(self) -> None:
        collector = self._collector
        collector.seal_all()
        full = Throttled(f"{collector.unsettled} batches are unacknowledged", limit="max_inflight")
        if collector.raises_when_full and not self._closed:
            raise full
        if not await self._until(lambda: self._closed or not collector.full, collector.timeout):
            raise full

    def _arm(self) -> None:
        due = self._collector.next_due()
        self._timer = None if due is None else self._loop.call_later(max(0.0, due - self._now()), self._tick)

    def _tick(self) -> None:
        self._collector.seal_due(self._now())
        self._arm()

    # ---- outcomes ----

    def parcel_settled(self, parcel: Parcel[Any]) -> None:
        self._collector.unsettled -= 1
        self._changed.set()
        if self._on_delivery is not None:
            for index in range(parcel.count):
                self._loop.call_soon(self._on_delivery, AsyncDelivery(parcel, index))
        elif parcel.error is not None and parcel.callbacks is None:
            self._failed.append(parcel)
            self._failed_bytes += parcel.size
        for call in parcel.callbacks or ():
            self._loop.call_soon(call)

    def call_when_done(self, parcel: Parcel[Any], call: Callable[[], object]) -> None:
        """For the deliveries of a batch."""
        if parcel.done:
            call()
        else:
            parcel.callbacks = [*(parcel.callbacks or ()), call]

    async def wait_for(self, parcel: Parcel[Any], timeout: float | None) -> None:
        """Until the outcome of a batch is known; for its deliveries."""
        if not await self._until(lambda: parcel.done, timeout):
            raise TimeoutError("the record is not acknowledged yet")

    async def _until(self, reached: Callable[[], bool], timeout: float | None) -> bool:
        """Waits for outcomes; False if the timeout has passed before."""
        try:
            async with asyncio.timeout(timeout):
                while not reached():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return reached()
        return True

    async def flush(self, timeout: float | None = None) -> None:
        """Sends everything and waits for its acknowledgements. Raises the error of a batch that was refused and whose
        deliveries nobody has looked at, so that no loss goes unnoticed."""
        collector = self._collector
        collector.seal_all()
        done = await self._until(lambda: collector.unsettled == 0, timeout)
        self._tell_failures()
        if not done:
            raise ConnectionLost(f"{collector.unsettled} batches are unacknowledged after {timeout:g} s")

    def _tell_failures(self) -> None:
        failed = [parcel for parcel in self._failed if not parcel.observed]
        self._failed, self._failed_bytes = [], 0
        if failed:
            self._given_up = failed
            raise gave_up(failed)

    def not_stored(self) -> list[Record]:
        """The records that the last error of `flush`, `close` or `send` spoke of, in order, and forgets them. With
        ConnectionLost some of them may be stored all the same."""
        given_up, self._given_up = self._given_up, []
        return [record for parcel in given_up for record in parcel.not_stored()]

    async def close(self) -> None:
        """Flushes and stops. What is not acknowledged by the timeout fails: the error says how many records that are,
        and `not_stored` hands them back."""
        if self._closed:
            return
        told: list[Parcel[AsyncProducer]] = []
        try:
            await self.flush(self._collector.timeout + 1)
        except TopicdError:
            told, self._given_up = self._given_up, []
        finally:
            self._closed = True
            self._changed.set()
            if self._timer is not None:
                self._timer.cancel()
            # What another task has sent meanwhile.
            self._collector.seal_all()
            await self._routes.end(ConnectionLost("the producer was closed before this was acknowledged"))
        failed = told + [parcel for parcel in self._failed if not parcel.observed]
        self._failed, self._given_up = [], failed
        if failed:
            raise gave_up(failed)

    async def __aenter__(self) -> AsyncProducer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
