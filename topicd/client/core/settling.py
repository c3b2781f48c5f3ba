"""What both faces of a queue do alike: waiting for a claim, dead letters page by page, names, refusals."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from topicd.client.core import queue_requests
from topicd.client.core.encode import Encoded, Serializer, encode_list
from topicd.client.core.held import Then, merged
from topicd.client.core.jobs import Acked, chunks
from topicd.client.core.options import span
from topicd.client.core.queue_answers import QueueStats, Redriven
from topicd.client.core.requests import Request
from topicd.errors import BatchTooLarge, InvalidRequest, TopicNotFound
from topicd.ipc.protocol.retry import Tempo
from topicd.limits import CLAIM_MAX, LONG_POLL_MS_MAX, MAX_NODE
from topicd.lists import check_list
from topicd.model import check_topic_name

# States of a job that was there and needs no more work.
DONE_STATES = ("done", "gone")
LEFT = "the loop was left before the job was done"


def own_name() -> str:
    """A worker's name that no other has."""
    suffix = f":{os.getpid()}:{secrets.token_hex(3)}"
    return socket.gethostname()[: MAX_NODE - len(suffix)] + suffix


def of_queue(config: dict[str, Any]) -> dict[str, Any]:
    if config.get("type", "queue") != "queue":
        raise InvalidRequest(f"a queue is of type queue, not {config['type']!r:.100}")
    return {**config, "type": "queue"}


def wait_times(tempo: Tempo, wait: float) -> Iterator[int]:
    """How long each attempt at a claim waits, in ms, until `wait` seconds are over; at least one attempt."""
    left = span("wait", wait)
    ends = tempo.monotonic() + left
    while True:
        yield min(max(0, int(left * 1000)), LONG_POLL_MS_MAX)
        left = ends - tempo.monotonic()
        if left <= 0:
            return


def dead_letters_of(stats: QueueStats) -> str:
    """The topic with the dead letters of a queue."""
    if stats.config.dead_letter is None:
        raise InvalidRequest(f"queue {stats.topic!r} has no dead letters: configure(dead_letter=TOPIC) names a topic")
    return stats.config.dead_letter


class Redriving:
    """All requests that a redrive or a discard takes, one after the other."""

    def __init__(self, dead_letters: str, queue: str, seqs: Sequence[int] | None, *, discard: bool) -> None:
        if seqs is not None:
            check_list(seqs, "seqs")
        self.total = Redriven(0, 0, [])
        self._dead_letters = dead_letters
        self._queue = queue
        self._discard = discard
        self._at: int | None = 0 if seqs is None else None
        self._todo = [] if seqs is None else chunks(list(seqs))
        self._asked: Sequence[int] = ()

    def next(self) -> Request[Redriven] | None:
        if self._todo:
            self._asked = self._todo.pop(0)
            return self._request(self._asked, 0)
        return None if self._at is None else self._request((), self._at)

    def _request(self, seqs: Sequence[int], at: int) -> Request[Redriven]:
        return queue_requests.redrive(self._dead_letters, self._queue, seqs, at, CLAIM_MAX, self._discard)

    def refused(self, error: TopicNotFound) -> None:
        """Before the first job has died there is no topic with dead letters. Raises it if it is about another."""
        if error.detail.get("topic") != self._dead_letters:
            raise error
        asked = [*self._asked, *(seq for piece in self._todo for seq in piece)]
        self.total = replace(self.total, skipped=[*self.total.skipped, *asked])
        self._todo, self._at = [], None

    def answered(self, found: Redriven) -> None:
        if self._at is not None:
            self._at = found.next
        total = self.total
        self.total = Redriven(
            total.redriven + found.redriven, total.discarded + found.discarded, total.skipped + found.skipped
        )


def key_pieces(keys: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """As many as one request takes, each."""
    return [keys[at : at + CLAIM_MAX] for at in range(0, len(keys), CLAIM_MAX)]


def holder_of(keys: list[tuple[int, int]], node: str) -> str | None:
    """With every lease known, nobody has to say who he is."""
    return None if all(lease for _, lease in keys) else node


def all_acked(answers: list[Acked]) -> Acked:
    if len(answers) == 1:
        return answers[0]
    if not answers:
        return Acked(0, [])
    skipped = [seq for answer in answers for seq in answer.skipped]
    return Acked(sum(answer.acked for answer in answers), skipped, answers[-1].ready, answers[-1].in_flight)


def encoded_then(then: Then, node: bytes | None, serialize: Serializer) -> dict[str, Encoded]:
    """What a finished job leads to, as one batch for each topic. Refused before anything is stored if it is more."""
    found: dict[str, Encoded] = {}
    for topic, records in merged(then).items():
        batches = encode_list(records, None, None, node, serialize)
        if len(batches) > 1:
            raise BatchTooLarge(f"what a job leads to is one batch per topic; {len(records)} for {topic!r} are more")
        found[check_topic_name(topic)] = batches[0]
    return found
