"""A named consumer: the daemon remembers how far it has come. Promise: every record is delivered at least once; what
was acknowledged is never delivered again.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from topicd.client.engine import Engine
from topicd.client.records import Record
from topicd.client.serial import Match, Start, cursor, start_wire
from topicd.client.subscription import Wanted
from topicd.client.watch import Event, OnGap, Watch
from topicd.client.wire import number
from topicd.errors import InvalidRequest, Throttled, TopicNotFound
from topicd.ipc.protocol import Op

AUTO_ACK_EVERY = 1_000
UNACKED_MAX = 1_000_000


class Consumer:
    """Made by `client.consumer`. Iterate it for records and gaps; use it in one thread.

    With auto_ack a record counts as processed when the next one is asked for; acknowledgements are gathered and sent
    before waiting for new records, every thousand records and on close. Without it, call `ack` or `ack_to`.

    >>> with client.consumer("orders", "billing") as consumer:    # doctest: +SKIP
    ...     for record in consumer:
    ...         print(record)
    """

    def __init__(
        self,
        engine: Engine,
        topic: str,
        name: str,
        *,
        start: Start,
        auto_ack: bool,
        on_gap: OnGap,
        match: Match,
        nodes: str | list[str] | None,
        batch_bytes: int,
    ) -> None:
        self.topic = topic
        self.name = name
        self._engine = engine
        self._start = start_wire(start)
        self._auto_ack = auto_ack
        self._wanted = Wanted(topic, 0, match, nodes)
        if self._wanted.pattern is not None:
            raise InvalidRequest("a consumer belongs to one topic, not to a pattern")
        self._watch = Watch(engine, self._wanted, on_gap=on_gap, batch_bytes=batch_bytes)
        self._unacked: deque[int] = deque()
        self._processed = 0  # records of _unacked that auto_ack may acknowledge
        self.acked_seq = 0

    def open(self) -> Consumer:
        """Finds the consumer or makes it, with the topic if need be, and goes on behind what it has acknowledged."""
        try:
            answer = self._call("open", start=self._start)
        except TopicNotFound:
            self._engine.call(self.topic, Op.OPEN, {"topic": self.topic, "create": True})
            answer = self._call("open", start=self._start)
        self.acked_seq = number(answer, "acked_seq")
        self._watch.open(resume={self.topic: (number(answer, "topic_id"), self.acked_seq)})
        return self

    def _call(self, action: str, **fields: Any) -> dict[str, Any]:
        body = {"action": action, "topic": self.topic, "name": self.name, **fields}
        return self._engine.call(self.topic, Op.CONSUMER, body)

    # ---- records ----

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Event:
        self._processed = len(self._unacked)
        if self._auto_ack and (self._processed >= AUTO_ACK_EVERY or not self._watch.buffered):
            self._ack_processed()
        if len(self._unacked) >= UNACKED_MAX:
            raise Throttled(f"{UNACKED_MAX} records are unacknowledged; acknowledge some", limit="unacked")
        event = next(self._watch)
        if isinstance(event, Record):
            self._unacked.append(event.seq)
        return event

    @property
    def unacked(self) -> int:
        """Records delivered and not acknowledged."""
        return len(self._unacked)

    def ack(self, count: int = 1) -> int:
        """Acknowledges the `count` oldest unacknowledged records; the seq up to which all is acknowledged now."""
        if not 0 <= count <= len(self._unacked):
            raise InvalidRequest(f"{count} records cannot be acknowledged, {len(self._unacked)} are outstanding")
        return self.ack_to(self._unacked[count - 1]) if count else self.acked_seq

    def ack_to(self, record: int | Record) -> int:
        """Acknowledges every record up to this one or up to this seq."""
        seq = record.seq if isinstance(record, Record) else cursor(record)
        self.acked_seq = number(self._call("ack", seq=seq), "acked_seq")
        while self._unacked and self._unacked[0] <= seq:
            self._unacked.popleft()
        return self.acked_seq

    def lag(self) -> int:
        """How many seqs lie between what is acknowledged and the head, as the daemon sees it."""
        return number(self._call("state"), "lag")

    def _ack_processed(self) -> None:
        if self._processed:
            self.ack(self._processed)
            self._processed = 0

    # ---- life ----

    def close(self, *, processed: bool = True) -> None:
        """With auto_ack, acknowledges what was delivered, the record in hand included unless processed=False."""
        if self._auto_ack and not self._watch.closed and not self._engine.closed:
            if processed:
                self._processed = len(self._unacked)
            self._ack_processed()
        self._watch.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        # The record whose processing failed is delivered again.
        self.close(processed=kind is None)
