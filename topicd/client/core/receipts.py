"""What became of records handed to a producer: light objects that share the outcome of their batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from topicd.client.core.records import Published
from topicd.ipc.protocol.outbox import OutBatch, TopicOutbox

Labels = tuple[bytes | None, bytes | None, bytes | None]  # tag, node, packed meta


class Owner(Protocol):
    """The producer of a parcel."""

    def parcel_settled(self, parcel: Parcel[Owner]) -> None: ...


P_co = TypeVar("P_co", bound=Owner, covariant=True)


class Parcel(OutBatch, Generic[P_co]):
    """Records of one topic that are collected and then sent as one batch."""

    __slots__ = ("callbacks", "datas", "due", "labels", "nbytes", "observed", "owner", "topic")

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

    def add_labels(self, index: int, labels: Labels) -> None:
        """Of the record at that place, the last so far."""
        if self.labels is None:
            self.labels = ([None] * index, [None] * index, [None] * index)
        for column, value in zip(self.labels, labels, strict=True):
            column.append(value)

    def settled(self) -> None:
        self.owner.parcel_settled(self)


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
        return parcel.first_seq + self._index if parcel.done and parcel.error is None else None

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
        return [seq for p in self._parcels for seq in range(p.first_seq, p.first_seq + p.count)]


def published(done: Sequence[OutBatch]) -> Published:
    """Batches of one list that are all stored."""
    first, last = done[0], done[-1]
    return Published(
        first.first_seq,
        last.first_seq + last.count - 1,
        sum(batch.count for batch in done),
        any(batch.deduped for batch in done),
    )


def stored(batch: OutBatch, before: Sequence[OutBatch]) -> OutBatch:
    """A batch behind others of one list; if it was refused, its error says how many records were stored before."""
    if batch.error is not None:
        batch.error.detail["stored"] = sum(earlier.count for earlier in before)
        raise batch.error
    return batch
