"""A named consumer: the daemon remembers how far it has come. Promise: every record is delivered at least once; what
was acknowledged is never delivered again.
"""

from __future__ import annotations

from typing import Any

from topicd.client.engine import Engine
from topicd.client.progress import Progress, seq_of
from topicd.client.records import Record
from topicd.client.serial import Match, Start, start_wire
from topicd.client.subscription import Wanted
from topicd.client.watch import Event, OnGap, Watch
from topicd.client.wire import number
from topicd.errors import InvalidRequest, TopicNotFound
from topicd.ipc.protocol.messages import Op


class Consumer:
    """Made by `client.consumer`. Iterate it for records and gaps; use it in one thread.

    With auto_ack a record counts as processed when the next one is asked for; acknowledgements are gathered and sent
    before waiting for new records, every thousand records and on close. Without it, call `ack` or `ack_to`.

    >>> seq = client.publish("orders", b"hello")
    >>> with client.consumer("orders", "billing") as consumer:
    ...     next(consumer)
    Record(orders#1, b'hello')
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
        self._progress = Progress()

    def open(self) -> Consumer:
        """Finds the consumer or makes it, with the topic if need be, and goes on behind what it has acknowledged."""
        try:
            answer = self._call("open", start=self._start)
        except TopicNotFound:
            self._engine.call(self.topic, Op.OPEN, {"topic": self.topic, "create": True})
            answer = self._call("open", start=self._start)
        self._progress.acked_seq = number(answer, "acked_seq")
        self._watch.open(resume={self.topic: (number(answer, "topic_id"), self._progress.acked_seq)})
        return self

    def _call(self, action: str, **fields: Any) -> dict[str, Any]:
        body = {"topic": self.topic, "name": self.name, **fields}
        return self._engine.call(self.topic, Op[f"CONSUMER_{action.upper()}"], body)

    # ---- records ----

    def __iter__(self) -> Consumer:
        return self

    def __next__(self) -> Event:
        self._progress.asked_for_more()
        if self._auto_ack:
            self._ack_processed(idle=not self._watch.buffered)
        return self._progress.delivered(next(self._watch))

    @property
    def acked_seq(self) -> int:
        """Everything up to this seq is acknowledged."""
        return self._progress.acked_seq

    @property
    def unacked(self) -> int:
        """Records delivered and not acknowledged."""
        return self._progress.unacked

    def ack(self, count: int = 1) -> int:
        """Acknowledges the `count` oldest unacknowledged records; the seq up to which all is acknowledged now."""
        seq = self._progress.oldest(count)
        return self.ack_to(seq) if count else seq

    def ack_to(self, record: int | Record) -> int:
        """Acknowledges every record up to this one or up to this seq."""
        seq = seq_of(record)
        return self._progress.acked(seq, number(self._call("ack", seq=seq), "acked_seq"))

    def lag(self) -> int:
        """How many seqs lie between what is acknowledged and the head, as the daemon sees it."""
        return number(self._call("state"), "lag")

    def _ack_processed(self, *, idle: bool) -> None:
        seq = self._progress.auto_ack(idle)
        if seq is not None:
            self.ack_to(seq)

    # ---- life ----

    def close(self, *, processed: bool = True) -> None:
        """With auto_ack, acknowledges what was delivered, the record in hand included unless processed=False."""
        if self._auto_ack and not self._watch.closed and not self._engine.closed:
            if processed:
                self._progress.asked_for_more()
            self._ack_processed(idle=True)
        self._watch.close()

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        # The record whose processing failed is delivered again.
        self.close(processed=kind is None)
