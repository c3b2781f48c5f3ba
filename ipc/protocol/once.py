"""Batches stored once and in order: the number a batch goes under, and what a refusal means for it.

What the daemon guarantees and this relies on: numbers are stored in order without holes, per producer and topic; a
number already stored is answered again before anything else is checked; a batch that got an error was not stored.
"""

from __future__ import annotations

import os
from enum import Enum

from topicd.errors import ConnectionLost, FormatError, OutOfOrder, TopicdError, TopicNotFound

TOPICS_KEPT = 10_000


class Verdict(Enum):
    RETRY = "retry"  # after a pause, under the same number
    RENUMBER = "renumber"  # at once, under the number that the daemon expects
    REOPEN = "reopen"  # at once, when the topic's id is looked up again
    GIVE_UP = "give up"  # refused for good


def verdict(error: TopicdError, *, reopened: bool) -> Verdict:
    """What to do with a batch that got this error; `reopened`: its topic was looked up again already."""
    if isinstance(error, OutOfOrder):
        return Verdict.RENUMBER
    if isinstance(error, TopicNotFound) and not reopened:
        return Verdict.REOPEN
    return Verdict.RETRY if error.retriable else Verdict.GIVE_UP


def expected_number(error: TopicdError | None) -> int:
    """The number the daemon waits for; 0 when the error does not say."""
    if not isinstance(error, OutOfOrder):
        return 0
    expected = error.detail.get("expected")
    return expected if isinstance(expected, int) and expected > 0 else 0


def outcome_unknown(error: TopicdError) -> bool:
    """The batch may have been stored without our hearing of it."""
    return isinstance(error, ConnectionLost | FormatError)


def new_producer_id() -> int:
    """Never 0, which means "no idempotency", and never one of the lasting ones."""
    return int.from_bytes(os.urandom(8), "little") >> 1 or 1


class Numbers:
    """A producer id and the number that its next batch has, by topic id. Used by one thread at a time."""

    __slots__ = ("_next", "producer_id")

    def __init__(self) -> None:
        self.producer_id = new_producer_id()
        self._next: dict[int, int] = {}

    def next(self, topic_id: int) -> int:
        return self._next.get(topic_id, 1)

    def take(self, topic_id: int) -> int:
        """The next number; the one behind it is next now."""
        number = self._next.get(topic_id, 1)
        self._next[topic_id] = number + 1
        return number

    def continue_at(self, topic_id: int, number: int) -> None:
        self._next[topic_id] = number

    def renew(self) -> None:
        """A new identity: after an outcome that stays unknown, the old numbers must never be used for other data."""
        self.producer_id = new_producer_id()
        self._next.clear()

    @property
    def crowded(self) -> bool:
        """More topics than are worth remembering; a new identity costs nothing but the id."""
        return len(self._next) > TOPICS_KEPT
