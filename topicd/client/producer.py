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
from typing import Any, Literal

from topicd.client.delivery import Deliveries, Delivery, Parcel
from topicd.client.dialing import Bell, Beside
from topicd.client.engine import Engine
from topicd.client.forksafe import track
from topicd.client.links import Links
from topicd.client.serial import Serializer, encode, encode_many, label, packed_meta, to_bytes
from topicd.errors import ConnectionLost, InvalidRequest, RecordTooLarge, Throttled, TopicdError
from topicd.limits import KIB, MAX_BATCH_BYTES, MAX_BATCH_RECORDS, MAX_DATA_AND_META

OnFull = Literal["block", "raise"]
NEVER = float("inf")


class Producer:
    """Made by `client.producer`. Safe to use from many threads.

    >>> with client.producer(linger=0.01) as producer:
    ...     delivery = producer.send("orders", {"id": 7}, tag="created")
    ...     seq = delivery.result()
    """

    def __init__(
        self,
        engine: Engine,
        *,
        linger: float = 0.005,
        max_batch_bytes: int = 256 * KIB,
        max_batch_records: int = 1000,
        max_inflight: int = 64,
        on_full: OnFull = "block",
        timeout: float | None = None,
        on_delivery: Callable[[Delivery], object] | None = None,
        serialize: Serializer,
        node: bytes | None = None,
    ) -> None:
        if on_full not in ("block", "raise"):
            raise InvalidRequest(f"on_full must be block or raise, not {on_full!r:.50}")
        if not 1 <= max_batch_records <= MAX_BATCH_RECORDS or not 1 <= max_batch_bytes <= MAX_BATCH_BYTES:
            raise InvalidRequest(
                f"a batch has 1 to {MAX_BATCH_RECORDS} records and 1 to {MAX_BATCH_BYTES} bytes, "
                f"not {max_batch_records} and {max_batch_bytes}"
            )
        if max_inflight < 1:
            raise InvalidRequest(f"max_inflight must be at least 1, not {max_inflight}")
        self._engine = engine
        self._now = engine.tempo.monotonic
        self._linger = linger
        self._max_bytes = max_batch_bytes
        self._max_records = max_batch_records
        self._max_inflight = max_inflight
        self._on_full = on_full
        self._timeout = engine.timeout if timeout is None else timeout
        self._on_delivery = on_delivery
        self._serialize = serialize
        self._node = node
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._bell = Bell()
        self._links = Links(engine, max_inflight, start=Beside(self._bell.ring))
        self._open: dict[str, Parcel] = {}
        self._unsettled = 0  # batches that are open, waiting or under way
        self._settled: list[Parcel] = []  # with callbacks still to be called
        self._failed: list[Parcel] = []
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
        self._links.forked()

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
        """Takes one record; its delivery will know the seq. Blocks or raises Throttled while too much is under way."""
        if type(data) is not bytes:
            data = to_bytes(data, self._serialize)
        labels = None
        if tag is not None or meta is not None or node is not None or self._node is not None:
            labels = (label(tag, "tag"), label(node, "node") or self._node, packed_meta(meta))
            encode((data,), labels[0], labels[1], None if labels[2] is None else (labels[2],))
        elif len(data) > MAX_DATA_AND_META:
            raise RecordTooLarge(f"data has {len(data)} bytes, at most {MAX_DATA_AND_META} are allowed")
        with self._lock:
            parcel = self._open.get(topic)
            if parcel is None:
                parcel = self._begin(topic)
            datas = parcel.datas
            index = len(datas)
            datas.append(data)
            if labels is not None or parcel.labels is not None:
                _add_labels(parcel, index, labels or (None, None, None))
            parcel.nbytes += len(data)
            if index + 1 >= self._max_records or parcel.nbytes >= self._max_bytes or not self._linger:
                self._seal(parcel)
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
        if not isinstance(records, list | tuple):
            records = list(records)
        if not records:
            raise InvalidRequest("send_many needs at least one record")
        its_tag, its_node = label(tag, "tag"), label(node, "node") or self._node
        step = self._max_records
        if isinstance(records[0], bytes) and len(records[0]):
            step = max(1, min(step, self._max_bytes // len(records[0])))
        parcels: list[Parcel] = []
        for at in range(0, len(records), step):
            piece = records[at : at + step]
            for frames, count in encode_many(piece, its_tag, its_node, self._serialize):
                parcels.append(self._send_encoded(topic, frames, count))
        if self._settled:
            self._report()
        return Deliveries(parcels)

    def _send_encoded(self, topic: str, frames: bytearray, count: int) -> Parcel:
        with self._lock:
            earlier = self._open.get(topic)
            if earlier is not None:
                self._seal(earlier)
            parcel = self._begin(topic)
            del self._open[topic]
            self._submit(parcel, frames, count)
            self._advance()
        return parcel

    def _begin(self, topic: str) -> Parcel:
        """A new open batch, once there is room for one."""
        while True:
            if self._closed:
                raise InvalidRequest("the producer is closed")
            if self._unsettled < self._max_inflight:
                break
            self._wait_for_room()
            # Another thread may have begun one meanwhile.
            if topic in self._open:
                return self._open[topic]
        parcel = Parcel(self, self._links.line(topic), self._now() + self._linger)
        self._open[topic] = parcel
        self._unsettled += 1
        if parcel.due < self._wakes_at:
            self._bell.ring()
        return parcel

    def _wait_for_room(self) -> None:
        def room() -> bool:
            return self._closed or self._unsettled < self._max_inflight

        for parcel in list(self._open.values()):
            self._seal(parcel)
        self._advance()
        if room():
            return
        full = Throttled(f"{self._unsettled} batches are unacknowledged", limit="max_inflight")
        if self._on_full == "raise":
            raise full
        if not self._changed.wait_for(room, self._timeout):
            raise full

    def _seal(self, parcel: Parcel) -> None:
        """Encodes the batch and lines it up to be sent."""
        del self._open[parcel.topic]
        datas, labels = parcel.datas, parcel.labels
        tags, nodes, metas = labels or (None, None, None)
        if metas is not None and not any(metas):
            metas = None
        parcel.datas, parcel.labels = [], None
        parcel.count = len(datas)
        try:
            frames = encode(datas, tags, nodes, metas)
        except TopicdError as exc:
            parcel.fail(exc)
        else:
            self._submit(parcel, frames, len(datas))

    def _submit(self, parcel: Parcel, frames: bytearray, count: int) -> None:
        parcel.frames = frames
        parcel.size = len(frames)
        parcel.count = count
        parcel.deadline = self._now() + self._timeout
        self._links.submit(parcel)

    def _advance(self) -> None:
        """A turn in the caller's thread; ours is woken only if it waits for the wrong things now."""
        self._links.turn()
        due = self._links.wake_at()
        if (due is not None and due < self._wakes_at) or self._sockets() != self._polled:
            self._bell.ring()

    # ---- outcomes ----

    def _parcel_settled(self, parcel: Parcel) -> None:
        self._unsettled -= 1
        if parcel.callbacks is not None or self._on_delivery is not None:
            self._settled.append(parcel)
        elif parcel.error is not None:
            self._failed.append(parcel)
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

    def _wait_for(self, parcel: Parcel, timeout: float | None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: parcel.done, timeout):
                raise TimeoutError("the record is not acknowledged yet")

    def _call_when_done(self, parcel: Parcel, call: Callable[[], object]) -> None:
        with self._lock:
            if not parcel.done:
                parcel.callbacks = [*(parcel.callbacks or ()), call]
                return
        call()

    def flush(self, timeout: float | None = None) -> None:
        """Sends everything and waits for its acknowledgements. Raises the error of a batch that was refused and whose
        deliveries nobody has looked at, so that no loss goes unnoticed."""
        with self._changed:
            for parcel in list(self._open.values()):
                self._seal(parcel)
            self._advance()
            done = self._changed.wait_for(lambda: self._unsettled == 0, timeout)
            failed = [parcel for parcel in self._failed if not parcel.observed]
            self._failed = []
        self._report()
        if failed and failed[0].error is not None:
            raise failed[0].error
        if not done:
            raise ConnectionLost(f"{self._unsettled} batches are unacknowledged after {timeout:g} s")

    def close(self) -> None:
        """Flushes and stops. What is not acknowledged by the timeout fails."""
        if self._closed:
            return
        try:
            self.flush(self._timeout + 1)
        finally:
            with self._lock:
                self._closed = True
                self._bell.ring()
                self._changed.notify_all()
            self._thread.join()
            self._links.close()
            self._bell.close()

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
        now = self._now()
        for parcel in [parcel for parcel in self._open.values() if parcel.due <= now]:
            self._seal(parcel)
        self._links.turn()
        times = [parcel.due for parcel in self._open.values()]
        due = self._links.wake_at()
        if due is not None:
            times.append(due)
        self._wakes_at = min(times) if times else NEVER
        return None if not times else max(0.0, self._wakes_at - self._now())

    def _sockets(self) -> list[tuple[int, int]]:
        """(descriptor, events) to wait for."""
        return [
            (link.fileno(), select.POLLIN | (select.POLLOUT if link.wants_write else 0))
            for link in self._links.links
            if link.connected
        ]

    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self._bell.descriptor, select.POLLIN)
        self._polled = self._sockets()
        for descriptor, events in self._polled:
            poll.register(descriptor, events)
        return poll


def _add_labels(parcel: Parcel, index: int, labels: tuple[bytes | None, bytes | None, bytes | None]) -> None:
    if parcel.labels is None:
        parcel.labels = ([None] * index, [None] * index, [None] * index)
    for column, value in zip(parcel.labels, labels, strict=True):
        column.append(value)
