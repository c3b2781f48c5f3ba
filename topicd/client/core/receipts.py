"""What became of records handed to a producer: light objects that share the outcome of their batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from topicd._native import core
from topicd.client.core.encode import encode
from topicd.client.core.records import Published, Record, received
from topicd.errors import BatchTooLarge, RecordTooLarge, SchemaViolation, TopicdError, TopicFull
from topicd.ipc.protocol.once import outcome_unknown
from topicd.ipc.protocol.outbox import OutBatch, TopicOutbox
from topicd.ipc.protocol.wire import LENGTH_FIELD
from topicd.limits import FRAME_OVERHEAD

Labels = tuple[bytes | None, bytes | None, bytes | None]  # tag, node, packed meta


class Owner(Protocol):
    """The producer of a parcel."""

    def parcel_settled(self, parcel: Parcel[Owner]) -> None: ...


P_co = TypeVar("P_co", bound=Owner, covariant=True)


class Parcel(OutBatch, Generic[P_co]):
    """Records of one topic that are collected and then sent as one batch."""

    __slots__ = ("callbacks", "datas", "due", "kept", "labels", "nbytes", "observed", "owner", "pieces", "topic")

    def __init__(self, owner: P_co, outbox: TopicOutbox, due: float) -> None:
        super().__init__(outbox, b"", 0, 0.0)
        self.owner = owner
        self.topic = outbox.topic
        self.datas: list[bytes] = []
        # (tags, nodes, metas), each as long as datas, once a record has any of them
        self.labels: tuple[list[bytes | None], list[bytes | None], list[bytes | None]] | None = None
        self.nbytes = 0
        self.due = due  # when it is sent even if it is not full
        self.observed = False  # somebody asked for its outcome
        self.callbacks: list[Callable[[], object]] | None = None
        self.pieces: list[OutBatch] | None = None  # once it had to be divided
        self.kept: bytes | bytearray = b""  # the frames of one that failed

    def add_labels(self, index: int, labels: Labels) -> None:
        """Of the record at that place, the last so far."""
        if self.labels is None:
            self.labels = ([None] * index, [None] * index, [None] * index)
        for column, value in zip(self.labels, labels, strict=True):
            column.append(value)

    def settled(self) -> None:
        self.owner.parcel_settled(self)

    def fail(self, error: TopicdError) -> None:
        if not self.done:
            self.kept = self.frames
        super().fail(error)

    # ---- in pieces ----

    def divided(self, error: TopicdError) -> list[OutBatch]:
        if self.pieces is None:
            made = [Piece(self, frames, count) for frames, count in divide(self.frames, self.count, error)]
            self.pieces = list(made) or None
        return list(self.pieces or ())

    def redivided(self, piece: Piece, smaller: list[Piece]) -> None:
        if self.pieces is not None:
            at = self.pieces.index(piece)
            self.pieces[at : at + 1] = smaller

    def piece_settled(self) -> None:
        pieces = self.pieces or []
        if all(piece.done for piece in pieces):
            self.first_seq = pieces[0].first_seq
            self.error = next((piece.error for piece in pieces if piece.error is not None), None)
            self.frames = b""
            self.done = True
            self.settled()

    def _part_of(self, index: int) -> tuple[OutBatch, int]:
        """The batch that the record at that place went in, and its place there."""
        for piece in self.pieces or ():
            if index < piece.count:
                return piece, index
            index -= piece.count
        return self, index

    def seq_of(self, index: int) -> int:
        part, at = self._part_of(index)
        return part.first_seq + at

    def error_of(self, index: int) -> TopicdError | None:
        return self._part_of(index)[0].error

    def seqs(self) -> list[int]:
        return [seq for part in self.pieces or [self] for seq in range(part.first_seq, part.first_seq + part.count)]

    # ---- handed back ----

    @property
    def failed(self) -> list[OutBatch]:
        return [part for part in self.pieces or [self] if part.error is not None]

    def not_stored(self) -> list[Record]:
        """The records of what failed."""
        return [
            r for part in self.failed if isinstance(part, Parcel | Piece) for r in records_in(self.topic, part.kept)
        ]


class Piece(OutBatch):
    """A part of a parcel that is sent by itself."""

    __slots__ = ("_smaller", "kept", "parcel")

    def __init__(self, parcel: Parcel[Any], frames: bytearray, count: int) -> None:
        super().__init__(parcel.outbox, frames, count, parcel.deadline)
        self.parcel = parcel
        self.impatient = parcel.impatient
        self.kept: bytes | bytearray = b""
        self._smaller: list[Piece] = []  # once it had to be divided, too

    def fail(self, error: TopicdError) -> None:
        if not self.done:
            self.kept = self.frames
        super().fail(error)

    def settled(self) -> None:
        self.parcel.piece_settled()

    def divided(self, error: TopicdError) -> list[OutBatch]:
        if not self._smaller:
            parts = divide(self.frames, self.count, error)
            self._smaller = [Piece(self.parcel, frames, count) for frames, count in parts]
            if self._smaller:
                self.parcel.redivided(self, self._smaller)
        return list(self._smaller)


def divide(frames: bytes | bytearray, count: int, error: TopicdError) -> list[tuple[bytearray, int]]:
    """A batch that was refused as the batches that are taken: what a cap leaves room for now and the rest, or pieces of
    its size; what lies before and behind the record that does not follow the topic's schema."""
    if isinstance(error, SchemaViolation):
        return _without(frames, count, error.detail.get("index"))
    cap, what = error.detail.get("cap"), error.detail.get("what")
    if count < 2 or not isinstance(cap, int) or not isinstance(error, TopicFull | RecordTooLarge | BatchTooLarge):
        return []
    first = room = cap
    if isinstance(error, TopicFull):
        first = cap - int(error.detail.get("used", cap)) - int(error.detail.get("held", 0))
        room = 1 << 62
    records = core.decode_frames(frames, 0, len(frames))
    groups: list[list[Any]] = [[]]
    left = first
    at = 0
    for record in records:
        whole = LENGTH_FIELD + int.from_bytes(frames[at : at + LENGTH_FIELD], "little")
        at += whole
        size = 1 if what == "records" else whole - FRAME_OVERHEAD
        if size > left and groups[-1]:
            groups.append([])
            left = room
        elif size > left and isinstance(error, TopicFull):
            return []  # not even the first one
        groups[-1].append(record)
        left -= size
    return [_again(group) for group in groups] if len(groups) > 1 else []


def _without(frames: bytes | bytearray, count: int, index: Any) -> list[tuple[bytearray, int]]:
    if count < 2 or not isinstance(index, int) or not 0 <= index < count:
        return []
    records = core.decode_frames(frames, 0, len(frames))
    groups = (records[:index], records[index : index + 1], records[index + 1 :])
    return [_again(group) for group in groups if group]


def _again(records: list[Any]) -> tuple[bytearray, int]:
    nodes, tags, metas, datas = ([record[at] for record in records] for at in (2, 3, 4, 5))
    return encode(datas, tags, nodes, metas if any(metas) else None), len(records)


def records_in(topic: str, frames: bytes | bytearray) -> list[Record]:
    return [received(topic, decoded) for decoded in core.decode_frames(frames, 0, len(frames))]


def gave_up(parcels: Sequence[Parcel[Any]]) -> TopicdError:
    """What a producer says of batches that failed and that nobody has looked at."""
    failed = [part for parcel in parcels for part in parcel.failed]
    count = sum(part.count for part in failed)
    errors = [part.error for part in failed if part.error is not None]
    first = errors[0]
    became = "acknowledged, and may not be stored" if any(map(outcome_unknown, errors)) else "stored"
    what = "1 record was" if count == 1 else f"{count:,} records were"
    error = type(first)(f"{what} not {became}: {first.message}", **{**first.detail, "not_stored": count})
    error.__cause__ = first
    return error


class Receipt(Generic[P_co]):
    """The outcome of one record."""

    __slots__ = ("_index", "_parcel")

    def __init__(self, parcel: Parcel[P_co], index: int) -> None:
        self._parcel = parcel
        self._index = index

    @property
    def topic(self) -> str:
        return self._parcel.topic

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._parcel.done

    @property
    def seq(self) -> int | None:
        """The seq if it is known by now."""
        parcel = self._parcel
        return parcel.seq_of(self._index) if parcel.done and parcel.error_of(self._index) is None else None

    @property
    def record(self) -> Record | None:
        """The record itself if it was not stored, to be sent again or kept elsewhere; else None."""
        parcel = self._parcel
        if not parcel.done or parcel.error_of(self._index) is None:
            return None
        part, at = parcel._part_of(self._index)
        kept = part.kept if isinstance(part, Parcel | Piece) else b""
        return records_in(parcel.topic, kept)[at] if kept else None

    def __repr__(self) -> str:
        state = "pending" if not self.done() else f"seq={self.seq}" if self.seq else repr(self._parcel.error)
        return f"{type(self).__name__}({self.topic}, {state})"


class Receipts(Generic[P_co]):
    """The outcome of a list of records."""

    __slots__ = ("_parcels",)

    def __init__(self, parcels: Sequence[Parcel[P_co]]) -> None:
        self._parcels = parcels

    def done(self) -> bool:
        """Whether the outcome of all of them is known."""
        return all(parcel.done for parcel in self._parcels)

    def __len__(self) -> int:
        return sum(parcel.count for parcel in self._parcels)

    def _published(self) -> Published:
        for parcel in self._parcels:
            if parcel.error is not None:
                raise parcel.error
        return published(self._parcels)

    def _seqs(self) -> list[int]:
        return [seq for parcel in self._parcels for seq in parcel.seqs()]


def published(done: Sequence[OutBatch]) -> Published:
    """Batches of one list that are all stored."""
    first, last = done[0], done[-1]
    return Published(
        first.first_seq,
        last.seqs()[-1] if isinstance(last, Parcel) else last.first_seq + last.count - 1,
        sum(batch.count for batch in done),
        any(batch.deduped for batch in done),
    )


def stored(batch: OutBatch, before: Sequence[OutBatch]) -> OutBatch:
    """A batch behind others of one list; if it was refused, its error says how many records were stored before."""
    if batch.error is not None:
        batch.error.detail["stored"] = sum(earlier.count for earlier in before)
        raise batch.error
    return batch
