"""Outcomes that a thread can wait for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from topicd.client.core.receipts import Owner, Parcel, Receipt, Receipts
from topicd.client.core.records import Published
from topicd.errors import TopicdError


class Waitable(Owner, Protocol):
    """What a delivery needs of its producer."""

    def wait_for(self, parcel: Parcel[Any], timeout: float | None) -> None: ...
    def call_when_done(self, parcel: Parcel[Any], call: Callable[[], object]) -> None: ...


class Delivery(Receipt[Waitable]):
    """The outcome of one record, like a concurrent.futures.Future of its seq."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> int:
        """The record's seq; waits for it. Raises what refused the record, or TimeoutError."""
        error = self.exception(timeout)
        if error is not None:
            raise error
        return self._parcel.seq_of(self._index)

    def exception(self, timeout: float | None = None) -> TopicdError | None:
        """What refused the record, if anything did; waits for it."""
        parcel = self._parcel
        if not parcel.done:
            parcel.owner.wait_for(parcel, timeout)
        error = parcel.error_of(self._index)
        parcel.observed = parcel.observed or error is not None
        return error

    def add_done_callback(self, function: Callable[[Delivery], object]) -> None:
        """Calls function(self) once the outcome is known, in the producer's thread, or at once if it is known."""
        self._parcel.observed = True
        self._parcel.owner.call_when_done(self._parcel, lambda: function(self))


class Deliveries(Receipts[Waitable]):
    """The outcome of a list of records."""

    __slots__ = ()

    def result(self, timeout: float | None = None) -> Published:
        """Waits for all of them. Raises the first error; what was stored before it stays stored."""
        for parcel in self._parcels:
            parcel.observed = True
            if not parcel.done:
                parcel.owner.wait_for(parcel, timeout)
        return self._published()

    def seqs(self, timeout: float | None = None) -> list[int]:
        """The seq of each; waits for all of them."""
        self.result(timeout)
        return self._seqs()
