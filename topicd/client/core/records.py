"""What a reader gets: records, and gaps where records were removed before it came."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, TypeAlias, TypeVar

import msgpack

from topicd._native.interface import Decoded
from topicd.errors import FormatError, InvalidRequest, TopicdError
from topicd.ipc.protocol.codec import Appended
from topicd.model import Tombstone


class Record:
    """One record. `topic`, `seq` and `ts` are set by the daemon; the rest is what the producer gave.

    >>> record = Record({"id": 7}, tag="created")
    >>> record.json(), record.tag, record.seq
    ({'id': 7}, 'created', 0)
    """

    __slots__ = ("_meta", "_node", "_tag", "data", "seq", "topic", "ts")

    topic: str
    seq: int
    ts: int
    data: bytes

    def __init__(
        self,
        data: Any,
        *,
        tag: str | bytes | None = None,
        node: str | bytes | None = None,
        meta: dict[str, Any] | None = None,
    ) -> None:
        self.topic, self.seq, self.ts = "", 0, 0
        self.data = data if type(data) is bytes else default_bytes(data)
        self._tag = tag.encode() if isinstance(tag, str) else tag
        self._node = node.encode() if isinstance(node, str) else node
        self._meta: bytes | None = msgpack.packb(meta) if meta else None

    @property
    def time(self) -> datetime:
        """When it was stored."""
        try:
            return datetime.fromtimestamp(self.ts / 1000, UTC)
        except (ValueError, OverflowError, OSError):
            raise FormatError(f"record {self.seq} has time {self.ts}, which no calendar knows") from None

    @property
    def tag(self) -> str | None:
        return None if self._tag is None else self._tag.decode("utf-8", "surrogateescape")

    @property
    def node(self) -> str | None:
        return None if self._node is None else self._node.decode("utf-8", "surrogateescape")

    @property
    def meta(self) -> dict[str, Any]:
        """A new dict at each access; empty when the producer gave none."""
        if self._meta is None:
            return {}
        try:
            found = msgpack.unpackb(self._meta, strict_map_key=False)
        except (ValueError, TypeError, RecursionError) as exc:  # msgpack derives all its own errors from ValueError
            raise FormatError(f"meta of record {self.seq} is malformed: {exc}") from None
        if not isinstance(found, dict):
            raise FormatError(f"meta of record {self.seq} is not a map")
        return found

    @property
    def text(self) -> str:
        return self.data.decode()

    def json(self) -> Any:
        """The data, read as JSON."""
        return json.loads(self.data)

    def msgpack(self) -> Any:
        """The data, read as msgpack."""
        return msgpack.unpackb(self.data)

    @property
    def value(self) -> Any:
        """What the reader's `decode` makes of the data. FormatError if it cannot."""
        raise InvalidRequest("value needs decode=… in read, watch or consumer; data has the bytes")

    @property
    def raw(self) -> tuple[bytes, bytes | None, bytes | None, bytes | None]:
        """(data, tag, node, packed meta), as they travel."""
        return self.data, self._tag, self._node, self._meta

    def _key(self) -> tuple[Any, ...]:
        return self.topic, self.seq, self.ts, self.data, self._tag, self._node, self._meta

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Record) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        shown = self.data if len(self.data) <= 40 else self.data[:37] + b"..."
        tag = f", tag={self.tag!r}" if self._tag is not None else ""
        return f"Record({self.topic}#{self.seq}, {shown!r}{tag})"


def received(topic: str, decoded: Decoded) -> Record:
    record = Record.__new__(Record)
    record.topic = topic
    record.seq, record.ts, record._node, record._tag, record._meta, record.data = decoded
    return record


class DecodedRecord(Record):
    """A record of a reader that was given a `decode`."""

    __slots__ = ("_decode",)

    _decode: Any

    @property
    def value(self) -> Any:
        try:
            return self._decode(self.data)
        except Exception as exc:  # of a decoder that is not ours
            raise FormatError(
                f"{self.topic}#{self.seq} cannot be decoded: {exc}", topic=self.topic, seq=self.seq
            ) from exc


def received_decoding(topic: str, decode: Any, decoded: Decoded) -> Record:
    record = DecodedRecord.__new__(DecodedRecord)
    record.topic = topic
    record._decode = decode
    record.seq, record.ts, record._node, record._tag, record._meta, record.data = decoded
    return record


def made_of(topic: str, decoded: Sequence[Decoded], decode: Any | None) -> list[Record]:
    """The records of one topic; with a `decode` they have values."""
    if decode is not None:
        return [received_decoding(topic, decode, each) for each in decoded]
    return [received(topic, each) for each in decoded]


def default_bytes(value: Any) -> bytes:
    """Bytes as they are, text as UTF-8, anything else as compact JSON. TypeError for what JSON does not
    know."""
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that cap or TTL removed before this reader got to them; both ends are inclusive."""

    topic: str
    tombstone: Tombstone

    @property
    def first_seq(self) -> int:
        return self.tombstone.gap_from

    @property
    def last_seq(self) -> int:
        return self.tombstone.gap_to

    @property
    def reason(self) -> str:
        """cap, ttl, mixed, recreated or source_trim."""
        return self.tombstone.reason

    @property
    def missed(self) -> int:
        """How many records that were, as far as the daemon knows."""
        return self.tombstone.missed_estimate


Event: TypeAlias = Record | Gap
E_co = TypeVar("E_co", bound=Event, covariant=True)  # Record, or Event where gaps are asked for


class RecordsMissed(TopicdError):
    """Records were removed before this reader got to them; `gap` says which. Iterating on goes on behind it.
    `gaps=True` or `on_gap=function` hands gaps over without it."""

    code: ClassVar[str] = "records_missed"
    status: ClassVar[int] = 410
    retriable: ClassVar[bool] = False
    summary: ClassVar[str] = "records were removed before this reader got to them (client side)"

    def __init__(self, gap: Gap) -> None:
        super().__init__(
            f"{gap.topic}: records {gap.first_seq} to {gap.last_seq} are gone ({gap.reason})",
            **gap.tombstone.to_wire(),
        )
        self.gap = gap


@dataclass(frozen=True, slots=True)
class Published:
    """Where a list of records was stored. Lists beyond one batch are stored in order, batch by batch:
    records of other producers may lie between two batches, so last_seq - first_seq may exceed count - 1."""

    first_seq: int
    last_seq: int
    count: int
    deduped: bool = False
    performance: dict[str, float] | None = None

    @classmethod
    def of(cls, answer: Appended) -> Published:
        """Of a list that was one batch."""
        last_seq = answer.first_seq + answer.stored - 1
        return cls(answer.first_seq, last_seq, answer.stored, answer.deduped, answer.performance)
