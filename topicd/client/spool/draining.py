"""From a file channel into topics. Promise: every message is stored once and in order, whichever process dies when.

A batch is sent under a producer id made of the channel's id and the topic, and a number that the topic keeps. Before it
is sent, its end and its number are noted in the channel's directory (two slots in turn); after it is stored, the
receiver acknowledges. Who finds a note that reaches further than what was acknowledged sends that very batch again,
under that very number: the topic knows whether it has it.
"""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

from topicd.client.blocking.numbered_writer import NumberedWriter, open_topic
from topicd.client.blocking.operations import Operations
from topicd.client.core import requests
from topicd.errors import Conflict, TopicdError
from topicd.filechannel.note import Note
from topicd.filechannel.receiver import Receiver
from topicd.limits import LASTING

_TRIES = 8  # a topic that is deleted and created again and again is an error


class Drain:
    """Not for several threads."""

    def __init__(self, directory: Path, channel_id: bytes, receiver: Receiver[Any], *, name: str, sync: bool) -> None:
        self._channel_id = channel_id
        self._receiver = receiver
        self._note = Note(directory, name, sync=sync)
        self._writers: dict[str, NumberedWriter] = {}
        self._numbers: dict[str, int] = {}

    @property
    def noted(self) -> int | None:
        """The batch from what is acknowledged up to this offset may be stored: it must be sent as it was."""
        return self._note.offset if self._note.offset > self._receiver.offset else None

    def store(self, client: Operations, topic: str, count: int, frames: bytearray, end: int) -> None:
        """Store the records of the next messages, up to that offset. The caller acknowledges them afterwards."""
        known = self._note.value if self.noted == end else None
        for _ in range(_TRIES):
            writer, number = self._place(client, topic)
            if known is not None:
                number, known = known, None
            self._note.write(end, number)
            try:
                outcome = writer.send_frames(number, count, frames)
            except Conflict:
                # Another topic of that name: its numbers begin anew.
                self.forget()
                continue
            except TopicdError as error:
                if not error.retriable:
                    # Refused as a whole: what is sent next may be another batch.
                    self._note.write(self._receiver.offset, 0)
                raise
            self._numbers[topic] = outcome.next_no
            if outcome.next_no > number:
                return
        raise Conflict(f"topic {topic!r} is deleted and created again all the time")

    def _place(self, client: Operations, topic: str) -> tuple[NumberedWriter, int]:
        if topic not in self._writers:
            producer = producer_id(self._channel_id, topic)
            topic_id = open_topic(client, topic)
            self._numbers[topic] = client.caller.ask(requests.producer_place(topic, producer)).expected
            self._writers[topic] = NumberedWriter(client, topic, topic_id, producer)
        return self._writers[topic], self._numbers[topic]

    def forget(self) -> None:
        """Ask the topics again: the client is another, or something went wrong."""
        self._writers.clear()
        self._numbers.clear()

    def close(self) -> None:
        self._note.close()


def producer_id(channel_id: bytes, topic: str) -> int:
    """Of the ids that a topic remembers until they are released."""
    return LASTING | int.from_bytes(blake2b(channel_id + topic.encode(), digest_size=6).digest(), "big")
