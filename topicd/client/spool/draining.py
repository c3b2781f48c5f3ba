"""From a file channel into topics. Promise: every message is stored once and in the order of its topic, whichever
process dies when.

Messages go in windows, in each of them one batch for a topic. A batch has a producer id made of the channel's id and
the topic, and a number that the topic keeps. Before a window is sent, its end and the numbers of its batches are noted
in the channel's directory; after all of it is stored, the receiver acknowledges. Who finds a note that reaches further
than what was acknowledged sends that very window again, under those very numbers: each topic knows whether it has its
batch.

If a topic refuses its batch, what others have stored of the window is noted too (`done`), and smaller windows follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgpack

from topicd.client.blocking.numbered_writer import NumberedWriter, open_topic
from topicd.client.blocking.operations import Operations
from topicd.client.core import requests
from topicd.client.core.encode import Encoded
from topicd.errors import Conflict, TopicdError
from topicd.filechannel.note import Note
from topicd.filechannel.receiver import Receiver
from topicd.limits import LASTING

WINDOW_TOPICS = 64  # so that a note has room for their names
_TRIES = 8  # a topic that is deleted and created again and again is an error


class Drain:
    """Not for several threads."""

    def __init__(self, directory: Path, channel_id: bytes, receiver: Receiver[Any], *, name: str, sync: bool) -> None:
        self._channel_id = channel_id
        self._receiver = receiver
        self._note = Note(directory, name, sync=sync)
        self._end, self._sent, self._done = msgpack.unpackb(self._note.body) if self._note.body else (0, {}, {})
        self._writers: dict[str, NumberedWriter] = {}
        self._numbers: dict[str, int] = {}

    @property
    def noted(self) -> int | None:
        """The window from what is acknowledged up to this offset may be stored: it must be sent as it was."""
        return self._end if self._end > self._receiver.offset else None

    def is_done(self, topic: str, end: int) -> bool:
        """The message for that topic that ends there is stored already."""
        return end <= int(self._done.get(topic, 0))

    def store(self, client: Operations, batches: Mapping[str, Encoded], end: int) -> None:
        """Store the batches of the messages up to that offset. The caller acknowledges them afterwards."""
        for topic in batches:
            self._open(client, topic)
        if self.noted != end:
            self._write(end, {topic: self._numbers[topic] for topic in batches})
        stored: list[str] = []
        for topic, batch in batches.items():
            try:
                self._store(client, topic, batch)
            except TopicdError as error:
                if not error.retriable:
                    # Refused as a whole. What follows may be another window, without what is stored.
                    self._done.update(dict.fromkeys(stored, end))
                    self._write(self._receiver.offset, {})
                raise
            stored.append(topic)

    def _store(self, client: Operations, topic: str, batch: Encoded) -> None:
        frames, count = batch
        for _ in range(_TRIES):
            writer, number = self._open(client, topic), int(self._sent[topic])
            try:
                next_no = writer.send_frames(number, count, frames).next_no
            except Conflict:
                # Another topic of that name: its numbers begin anew.
                self.forget()
                self._open(client, topic)
                next_no = self._numbers[topic]
            self._numbers[topic] = next_no
            if next_no > number:
                return
            self._write(self._end, {**self._sent, topic: next_no})
        raise Conflict(f"topic {topic!r} is deleted and created again all the time")

    def _open(self, client: Operations, topic: str) -> NumberedWriter:
        if topic not in self._writers:
            producer = producer_id(self._channel_id, topic)
            topic_id = open_topic(client, topic)
            self._numbers[topic] = client.caller.ask(requests.producer_place(topic, producer)).expected
            self._writers[topic] = NumberedWriter(client, topic, topic_id, producer)
        return self._writers[topic]

    def _write(self, end: int, sent: dict[str, int]) -> None:
        done = {topic: offset for topic, offset in self._done.items() if offset > self._receiver.offset}
        self._note.write(msgpack.packb((end, sent, done)))
        self._end, self._sent, self._done = end, sent, done

    def forget(self) -> None:
        """Ask the topics again: the client is another, or something went wrong."""
        self._writers.clear()
        self._numbers.clear()

    def close(self) -> None:
        self._note.close()


def producer_id(channel_id: bytes, topic: str) -> int:
    """Of the ids that a topic remembers until they are released."""
    return LASTING | int.from_bytes(blake2b(channel_id + topic.encode(), digest_size=6).digest(), "big")
