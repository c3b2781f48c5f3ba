"""Batches under a producer id and numbers that the caller chooses. Promise: a batch is stored once, however often and
by whichever process it is sent, as long as the topic remembers the producer (docs/guarantees.md, Once).

For jobs that are started again after a crash and come to the same batches in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from topicd.client.blocking.connection import Connection
from topicd.client.blocking.operations import Operations
from topicd.client.core import requests
from topicd.client.core.encode import encode
from topicd.errors import Conflict, OutOfOrder

Raw = tuple[bytes, bytes | None, bytes | None, bytes | None]  # data, tag, node, packed meta


class Outcome(NamedTuple):
    """`next_no` is the number to go on with: behind the batch, further on if the topic has later ones already, or back
    at one that it has lost since it was sent."""

    next_no: int
    stored: bool  # by this call


class NumberedWriter:
    """Writes to one topic of one id: if it is deleted and made anew meanwhile, that is an error."""

    def __init__(self, client: Operations, topic: str, topic_id: int, producer_id: int) -> None:
        self._caller = client.caller
        self._topic = topic
        self._topic_id = topic_id
        self._producer_id = producer_id

    def send(self, number: int, records: Sequence[Raw]) -> Outcome:
        """Returns when the batch is as durable as the topic's class says, or was before."""
        datas, tags, nodes, metas = zip(*records, strict=True)
        return self.send_frames(number, len(records), encode(datas, tags, nodes, metas))

    def send_frames(self, number: int, count: int, frames: bytearray) -> Outcome:
        """The same for records that are encoded already."""

        def attempt(connection: Connection, topic_id: int) -> Outcome:
            if topic_id != self._topic_id:
                raise Conflict(f"topic {self._topic!r} was deleted and made anew meanwhile")
            try:
                answer = connection.append(topic_id, self._producer_id, number, count, frames)
            except OutOfOrder as exc:
                return Outcome(int(exc.detail["expected"]), False)
            except Conflict as exc:
                # Stored so long ago that its answer is forgotten, but not that it was stored.
                if "last" not in exc.detail:
                    raise
                return Outcome(int(exc.detail["last"]) + 1, False)
            return Outcome(number + 1, not answer.deduped)

        return self._caller.with_topic(self._topic, attempt, create=False)


def open_topic(client: Operations, topic: str) -> int:
    """The topic's id; it is created if it does not exist."""
    return client.caller.ask(requests.open_topic(topic, create=True))
