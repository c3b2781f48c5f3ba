"""How far each restore has come, kept by the daemon that is restored into, in a topic of its own. Promise: what the
journal says is stored was acknowledged before it was noted; what was stored and not noted is found by batch numbers.

It lives and dies with the data it speaks of: a daemon or a topic made anew has no entry and is filled again.
"""

from __future__ import annotations

import hashlib
import json
from typing import NamedTuple

from topicd.client.blocking.client import Client
from topicd.client.staging.names import create_internal
from topicd.errors import FormatError, TopicNotFound
from topicd.limits import SCATTERED

JOURNAL = "topicd.restores"  # one of topicd's own topics: lists and patterns pass over it


class Mark(NamedTuple):
    """Everything before `file` is stored, and of it the batches up to `batch`; all of them if it is complete."""

    file: str
    batch: int
    complete: bool
    at: int = 0  # seq of the entry
    older: int = 0  # entries before it, which count no more


class Journal:
    """Of one input into one topic, known by the topic's id."""

    def __init__(self, client: Client, journal: str, topic: str, topic_id: int, source: str) -> None:
        self._client = client
        self._journal = journal
        self._about = {"topic": topic, "topic_id": topic_id, "source": source}
        self._tag = digest(str(topic_id), source).hex()

    def last(self) -> Mark | None:
        found: Mark | None = None
        at, entries = 0, 0
        while True:
            try:
                page = self._client.fetch(self._journal, at, match=self._tag)
            except TopicNotFound:
                return None
            for record in page:
                found = self._parsed(record.seq, record.data)._replace(older=entries)
                entries += 1
            at = page.next_from_seq
            if page.caught_up:
                return found

    def _parsed(self, seq: int, data: bytes) -> Mark:
        try:
            body = json.loads(data)
            return Mark(str(body["file"]), int(body["batch"]), bool(body["complete"]), seq)
        except (ValueError, KeyError, TypeError):
            raise FormatError(f"entry {seq} of topic {self._journal!r} is no entry of a restore") from None

    def begin(self, file: str) -> None:
        """Before the first record: who looks at a topic that has some can tell whose they are."""
        create_internal(self._client, self._journal, {"durability": "disk"})
        self.note(file, 0, complete=False)

    def note(self, file: str, batch: int, *, complete: bool) -> None:
        entry = {**self._about, "file": file, "batch": batch, "complete": complete}
        self._client.publish(self._journal, entry, tag=self._tag)

    def trim(self) -> None:
        """Only the newest entry counts."""
        last = self.last()
        if last is not None and last.older:
            self._client.delete(self._journal, before_seq=last.at, match=self._tag)


def digest(*parts: str) -> bytes:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).digest()


def producer_id(topic_id: int, source: str, file: str) -> int:
    """The same for the same file in every run; never 0, which means "no idempotency", nor one of those that last."""
    return int.from_bytes(digest(str(topic_id), source, file)[:8], "little") % SCATTERED or 1
