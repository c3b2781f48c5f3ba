"""A named consumer: the daemon remembers how far it has come. Promise: every record is delivered at least once; what
was acknowledged is never delivered again.
"""

from __future__ import annotations

import contextlib
from typing import Generic

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.watch import Watch
from topicd.client.core import requests
from topicd.client.core.acking import Acking, seq_of
from topicd.client.core.arguments import Match, Nodes, Start
from topicd.client.core.decode import Decoder
from topicd.client.core.gaps import OnGap
from topicd.client.core.records import E_co, Record, RecordsMissed
from topicd.client.core.watching import wanted_of_consumer
from topicd.errors import Conflict, ConsumerHeld, TopicNotFound


class Consumer(Generic[E_co]):
    """Made by `client.consumer`. Iterate it for records (and gaps, with `gaps=True`) or `poll` it; use it in one
    thread.

    With auto_ack a record counts as processed when the next one is asked for; acknowledgements are gathered and sent
    before waiting for new records, every thousand records and on close. Without it, call `ack` or `ack_to`.

    >>> seq = client.publish("orders", b"hello")
    >>> with client.consumer("orders", "billing") as consumer:
    ...     next(consumer)
    Record(orders#1, b'hello')
    """

    def __init__(
        self,
        caller: Caller,
        topic: str,
        name: str,
        *,
        start: Start,
        auto_ack: bool,
        on_gap: OnGap,
        match: Match,
        exclude_nodes: Nodes,
        committed: bool,
        batch_bytes: int,
        takeover: bool,
        decode: Decoder | None,
    ) -> None:
        self.topic = topic
        self.name = name
        self._caller = caller
        self._auto_ack = auto_ack
        wanted = wanted_of_consumer(topic, name, match, exclude_nodes, committed, takeover=takeover)
        self._holder = wanted.holder
        self._open = requests.open_consumer(topic, name, start)
        self._watch: Watch[E_co] = Watch(caller, wanted, on_gap=on_gap, batch_bytes=batch_bytes, decode=decode)
        self._acking = Acking()

    def open(self) -> Consumer[E_co]:
        """Finds the consumer or creates it, with the topic if need be, and goes on behind what it has acknowledged."""
        try:
            place = self._caller.ask(self._open)
        except TopicNotFound:
            self._caller.ask(requests.open_topic(self.topic, create=True))
            place = self._caller.ask(self._open)
        self._acking.acked_seq = place.acked_seq
        self._watch.open(resume={self.topic: place})
        return self

    # ---- records ----

    def __iter__(self) -> Consumer[E_co]:
        return self

    def __next__(self) -> E_co:
        if self._watch.closed:
            raise StopIteration
        try:
            self._go_on()
            return self._acking.delivered(next(self._watch))
        except ConsumerHeld:
            self._watch.close()  # another one reads: nothing is acknowledged any more
            raise

    def poll(self, timeout: float = 0.0) -> E_co | None:
        """The next one, or None if there is none within so many seconds."""
        if self._watch.closed:
            return None
        try:
            self._go_on()
            found = self._watch.poll(timeout)
        except ConsumerHeld:
            self._watch.close()
            raise
        return None if found is None else self._acking.delivered(found)

    def _go_on(self) -> None:
        self._acking.asked_for_more()
        if self._auto_ack and not self._watch.closed:
            self._ack_processed(idle=not self._watch.buffered)

    @property
    def acked_seq(self) -> int:
        """Everything up to this seq is acknowledged."""
        return self._acking.acked_seq

    @property
    def unacked(self) -> int:
        """Records delivered and not acknowledged."""
        return self._acking.unacked

    def ack(self, count: int = 1) -> int:
        """Acknowledges the `count` oldest unacknowledged records; the seq up to which all is acknowledged now."""
        seq = self._acking.oldest(count)
        return self.ack_to(seq) if count else seq

    def ack_to(self, record: int | Record) -> int:
        """Acknowledges every record up to this one or up to this seq. Who was replaced hears ConsumerHeld."""
        seq = seq_of(record)
        request = requests.ack_consumer(self.topic, self.name, seq, self._holder)
        return self._acking.acked(seq, self._caller.ask(request))

    def lag(self) -> int:
        """How many seqs lie between what is acknowledged and the head, as the daemon sees it."""
        return self._caller.ask(requests.consumer_lag(self.topic, self.name))

    def _ack_processed(self, *, idle: bool) -> None:
        seq = self._acking.auto_ack(idle)
        if seq is not None:
            self.ack_to(seq)

    def _ack_gap(self) -> None:
        """A gap that the reader has heard of is not told to its successor again."""
        seq = self._acking.behind_gap(self._watch.told_to)
        if seq is not None and not self._watch.closed and not self._caller.closed:
            with contextlib.suppress(Conflict):  # the topic was created anew
                self.ack_to(seq)

    # ---- life ----

    def close(self, *, processed: bool = True) -> None:
        """With auto_ack, acknowledges what was delivered, the record in hand included unless processed=False."""
        try:
            if self._auto_ack and not self._watch.closed and not self._caller.closed:
                if processed:
                    self._acking.asked_for_more()
                self._ack_processed(idle=True)
            self._ack_gap()
        finally:
            self._watch.close()

    def __enter__(self) -> Consumer[E_co]:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        # The record whose processing failed is delivered again. A gap is no record.
        self.close(processed=kind is None or issubclass(kind, RecordsMissed))
