"""Records collected by topic into batches, without threads and without I/O: both producers share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from topicd.client.core.encode import Encoded, Serializer, encode, encode_many, label, packed_meta, to_bytes
from topicd.client.core.receipts import Labels, Owner, Parcel
from topicd.errors import InvalidRequest, RecordTooLarge, TopicdError
from topicd.ipc.protocol.outbox import TopicOutbox
from topicd.limits import KIB, MAX_BATCH_BYTES, MAX_BATCH_RECORDS, MAX_DATA_AND_META
from topicd.lists import check_list

OnFull: TypeAlias = Literal["block", "raise"]
LINGER_S = 0.005
BATCH_BYTES = 256 * KIB
BATCH_RECORDS = 1000
INFLIGHT = 64
FAILED_BYTES = 64 * 1024 * KIB  # of batches that failed and that nobody has asked about

P = TypeVar("P", bound=Owner)


class Collector(Generic[P]):
    """`submit` takes a batch that is ready to be sent."""

    def __init__(
        self,
        submit: Callable[[Parcel[P]], object],
        now: Callable[[], float],
        *,
        linger: float,
        max_batch_bytes: int,
        max_batch_records: int,
        max_inflight: int,
        on_full: OnFull,
        timeout: float,
        serialize: Serializer,
        node: bytes | None,
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
        self.timeout = timeout
        self.max_inflight = max_inflight
        self.raises_when_full = on_full == "raise"
        # Bytes of up to this length, without labels, are taken as they are.
        self.plain_max = MAX_DATA_AND_META if node is None else -1
        self.open: dict[str, Parcel[P]] = {}  # by topic, still being filled
        self.unsettled = 0  # batches that are open, waiting or under way
        self._submit = submit
        self._now = now
        self._linger = linger
        self._max_bytes = max_batch_bytes
        self._max_records = max_batch_records
        self._serialize = serialize
        self._node = node

    @property
    def full(self) -> bool:
        return self.unsettled >= self.max_inflight

    # ---- single records ----

    def checked(
        self, data: Any, tag: str | bytes | None, node: str | bytes | None, meta: dict[str, Any] | None
    ) -> tuple[bytes, Labels | None]:
        """The record as it is collected; raises what is wrong with it."""
        if type(data) is not bytes:
            data = to_bytes(data, self._serialize)
        if tag is None and meta is None and node is None and self._node is None:
            if len(data) > MAX_DATA_AND_META:
                raise RecordTooLarge(f"data has {len(data)} bytes, at most {MAX_DATA_AND_META} are allowed")
            return data, None
        labels = (label(tag, "tag"), label(node, "node") or self._node, packed_meta(meta))
        encode((data,), labels[0], labels[1], None if labels[2] is None else (labels[2],))
        return data, labels

    def begin(self, owner: P, outbox: TopicOutbox) -> Parcel[P]:
        """A new open batch; only while there is room for one."""
        parcel = Parcel(owner, outbox, self._now() + self._linger)
        self.open[parcel.topic] = parcel
        self.unsettled += 1
        return parcel

    def add(self, parcel: Parcel[P], data: bytes, labels: Labels | None) -> int:
        """Its place in the batch; a batch that is full now is sent."""
        datas = parcel.datas
        index = len(datas)
        datas.append(data)
        if labels is not None or parcel.labels is not None:
            parcel.add_labels(index, labels or (None, None, None))
        parcel.nbytes += len(data)
        if index + 1 >= self._max_records or parcel.nbytes >= self._max_bytes or not self._linger:
            self.seal(parcel)
        return index

    def seal(self, parcel: Parcel[P]) -> None:
        """Encodes the batch and hands it over to be sent."""
        del self.open[parcel.topic]
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
            self._send(parcel, frames, len(datas))

    def seal_all(self) -> None:
        for parcel in list(self.open.values()):
            self.seal(parcel)

    def seal_due(self, now: float) -> None:
        for parcel in [parcel for parcel in self.open.values() if parcel.due <= now]:
            self.seal(parcel)

    def next_due(self) -> float | None:
        return min((parcel.due for parcel in self.open.values()), default=None)

    # ---- lists ----

    def pieces(self, records: Sequence[Any], tag: str | bytes | None, node: str | bytes | None) -> Iterator[Encoded]:
        """A list as batches of this producer's size."""
        check_list(records, "records", "; send takes one")
        if not isinstance(records, list | tuple):
            records = list(records)
        if not records:
            raise InvalidRequest("send_many needs at least one record")
        its_tag, its_node = label(tag, "tag"), label(node, "node") or self._node
        step = self._max_records
        if isinstance(records[0], bytes) and len(records[0]):
            step = max(1, min(step, self._max_bytes // len(records[0])))
        for at in range(0, len(records), step):
            yield from encode_many(records[at : at + step], its_tag, its_node, self._serialize)

    def send_encoded(self, parcel: Parcel[P], encoded: Encoded) -> None:
        """Fills a batch that was just begun and hands it over."""
        del self.open[parcel.topic]
        self._send(parcel, *encoded)

    def _send(self, parcel: Parcel[P], frames: bytearray, count: int) -> None:
        parcel.frames = frames
        parcel.size = len(frames)
        parcel.count = count
        parcel.deadline = self._now() + self.timeout
        self._submit(parcel)
