"""What became of records handed to a producer: light objects that share the outcome of their batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topicd.client.bulk import published
from topicd.client.line import Line, OutBatch
from topicd.client.records import Published
from topicd.errors import TopicdError

if TYPE_CHECKING:
    from topicd.client.producer import Producer


class Parcel(OutBatch):
    """Records of one topic that are collected and then sent as one batch."""

    __slots__ = ("callbacks", "datas", "due", "labels", "nbytes", "observed", "producer", "topic")

    def __init__(self, producer: Producer, line: Line, due: float) -> None:
        super().__init__(line, b"", 0, 0.0)
        self.producer = producer
        self.topic = line.topic
        self.datas: list[bytes] = []
        # (tags, nodes, metas), each as long as datas, once a record has any of them
        self.labels: tuple[list[bytes | None], list[bytes | None], list[bytes | None]] | None = None
        self.nbytes = 0
        self.due = due  # when it is sent even if it is not full
        self.observed = False  # somebody asked for its outcome
        self.callbacks: list[Callable[[], object]] | None = None

    def settled(self) -> None:
        self.producer._parcel_settled(self)


class Delivery:
    """The outcome of one record, like a concurrent.futures.Future of its seq."""

    __slots__ = ("_index", "_parcel")

    def __init__(self, parcel: Parcel, index: int) -> None:
        self._parcel = parcel
        self._index = index

    @property
    def topic(self) -> str:
        return self._parcel.topic

    def done(self) -> bool:
        return self._parcel.done

    def result(self, timeout: float | None = None) -> int:
        """The record's seq; waits for it. Raises what refused the record, or TimeoutError."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._parcel.first_seq + self._index

    def exception(self, timeout: float | None = None) -> TopicdError | None:
        parcel = self._parcel
        parcel.observed = True
        if not parcel.done:
            parcel.producer._wait_for(parcel, timeout)
        return parcel.error

    @property
    def seq(self) -> int | None:
        """The seq if it is known by now."""
        parcel = self._parcel
        return parcel.first_seq + self._index if parcel.done and parcel.error is None else None

    def add_done_callback(self, function: Callable[[Delivery], object]) -> None:
        """Calls function(self) once the outcome is known, in the producer's thread, or at once if it is known."""
        self._parcel.observed = True
        self._parcel.producer._call_when_done(self._parcel, lambda: function(self))

    def __repr__(self) -> str:
        state = "pending" if not self.done() else f"seq={self.seq}" if self.seq else repr(self._parcel.error)
        return f"Delivery({self.topic}, {state})"


class Deliveries:
    """The outcome of a list of records."""

    __slots__ = ("_parcels",)

    def __init__(self, parcels: list[Parcel]) -> None:
        self._parcels = parcels

    def done(self) -> bool:
        return all(parcel.done for parcel in self._parcels)

    def result(self, timeout: float | None = None) -> Published:
        """Waits for all of them. Raises the first error; what was stored before it stays stored."""
        for parcel in self._parcels:
            parcel.observed = True
            if not parcel.done:
                parcel.producer._wait_for(parcel, timeout)
        for parcel in self._parcels:
            if parcel.error is not None:
                raise parcel.error
        return published(self._parcels)

    def seqs(self, timeout: float | None = None) -> list[int]:
        self.result(timeout)
        return [seq for p in self._parcels for seq in range(p.first_seq, p.first_seq + p.count)]

    def __len__(self) -> int:
        return sum(parcel.count for parcel in self._parcels)
