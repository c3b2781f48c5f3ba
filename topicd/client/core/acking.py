"""What a named consumer has delivered and what of it is acknowledged; both faces share it."""

from __future__ import annotations

from collections import deque
from typing import TypeVar

from topicd.client.core.arguments import cursor
from topicd.client.core.records import Event, Record
from topicd.errors import InvalidRequest, Throttled

E = TypeVar("E", bound=Event)
AUTO_ACK_EVERY = 1_000
UNACKED_MAX = 1_000_000


class Acking:
    def __init__(self) -> None:
        self.acked_seq = 0
        self._unacked: deque[int] = deque()
        self._processed = 0  # the oldest so many of _unacked are done with

    @property
    def unacked(self) -> int:
        return len(self._unacked)

    def delivered(self, event: E) -> E:
        if isinstance(event, Record):
            self._unacked.append(event.seq)
        return event

    def behind_gap(self, told_to: int) -> int | None:
        """The seq to acknowledge because nothing is left before it but a gap that the reader has heard of."""
        return told_to if told_to > self.acked_seq and not self._unacked else None

    def asked_for_more(self) -> None:
        """The user is done with what was delivered so far."""
        self._processed = len(self._unacked)
        if self._processed >= UNACKED_MAX:
            raise Throttled(f"{UNACKED_MAX} records are unacknowledged; acknowledge some", limit="unacked")

    def auto_ack(self, idle: bool) -> int | None:
        """The seq to acknowledge now: when nothing else is to be delivered yet, or enough has gathered."""
        due = self._processed >= AUTO_ACK_EVERY or (idle and self._processed > 0)
        return self._unacked[self._processed - 1] if due else None

    def oldest(self, count: int) -> int:
        """The seq of the last of the `count` oldest unacknowledged records."""
        if not 0 <= count <= len(self._unacked):
            raise InvalidRequest(f"{count} records cannot be acknowledged, {len(self._unacked)} are outstanding")
        return self._unacked[count - 1] if count else self.acked_seq

    def acked(self, seq: int, acked_seq: int) -> int:
        """The daemon has taken an acknowledgement up to seq; acked_seq is where the consumer stands now."""
        self.acked_seq = acked_seq
        while self._unacked and self._unacked[0] <= seq:
            self._unacked.popleft()
            self._processed = max(0, self._processed - 1)
        return acked_seq


def seq_of(record: int | Record) -> int:
    return record.seq if isinstance(record, Record) else cursor(record)
