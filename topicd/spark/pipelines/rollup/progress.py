"""How far a rollup is that goes on step by step, and what its next step reads. Promise: a step ends before the window
that is still open, so that every window is whole when it is written.

Within a topic times never fall: a window is over when the first record behind it is there.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from topicd.client.blocking.client import Client
from topicd.client.core.answers import TopicState
from topicd.errors import Conflict, FormatError
from topicd.limits import FETCH_RECORDS_MAX
from topicd.model import GapReason
from topicd.spark.loss import Policy
from topicd.spark.pipelines.rollup.options import Options
from topicd.spark.plan import check_not_shrunk, cursor_at_time

KIND, VERSION = "topicd-rollup-steps", 1


class Place(NamedTuple):
    """Everything up to seq is in windows that are written."""

    topic_id: int
    seq: int


class Due(NamedTuple):
    """What a step reads of one topic; after is None where it begins with the oldest record there is."""

    topic: str
    topic_id: int
    after: int | None
    up_to: int


@dataclass
class Book:
    """The body of the manifest. `planned` is a step that was begun and may have been committed."""

    settings: dict[str, Any]
    query: str  # under which the steps of a rollup to a topic are committed
    step: int = 0  # how many are done; the number of the next
    places: dict[str, Place] = field(default_factory=dict)
    planned: list[Due] = field(default_factory=list)
    files: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def of(cls, options: Options, body: dict[str, Any] | None) -> Self:
        """As the last run left it. What was begun with other settings is not mixed with these."""
        settings = {
            "window_ms": options.window_ms,
            "by": list(options.keys),
            "latency": options.latency,
            "to_topic": options.to_topic,
        }
        if body is None:
            return cls(settings, f"rollup-{secrets.token_hex(16)}")
        try:
            found = cls(
                dict(body["settings"]),
                str(body["query"]),
                int(body["step"]),
                {topic: Place(*place) for topic, place in body["places"].items()},
                [Due(*due) for due in body["planned"]],
                list(body["files"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise FormatError(f"the rollup's manifest is malformed: {exc!r:.200}") from None
        changed = sorted(name for name in settings if found.settings.get(name) != settings[name])
        if changed:
            was = ", ".join(f"{name} {found.settings.get(name)}" for name in changed)
            raise Conflict(f"this rollup was begun with {was}; name another directory for another rollup")
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "settings": self.settings,
            "query": self.query,
            "step": self.step,
            "places": self.places,
            "planned": self.planned,
            "files": self.files,
        }

    def advance(self, done: list[Due]) -> None:
        self.step += 1
        self.planned = []
        self.places |= {due.topic: Place(due.topic_id, due.up_to) for due in done}


def plan(client: Client, topics: list[str], book: Book, losses: Policy) -> list[Due]:
    """What is new and over."""
    window_ms = int(book.settings["window_ms"])
    states = (client.state(topic, touch=False) for topic in topics)
    found = (_due(client, state, book.places.get(state.topic), window_ms, losses) for state in states)
    return [due for due in found if due is not None]


def _due(client: Client, state: TopicState, known: Place | None, window_ms: int, losses: Policy) -> Due | None:
    if known is not None and known.topic_id != state.topic_id:
        losses.report_rest(state.topic, known.topic_id, known.seq, GapReason.RECREATED.value)
        known = None
    if known is not None:
        check_not_shrunk(state, known.seq, "the rollup")
    after = None if known is None else known.seq
    begin = state.earliest_seq - 1 if after is None else after
    newest = _newest_ts(client, state, begin)
    if newest is None:
        return None
    up_to = min(cursor_at_time(client, state, newest // window_ms * window_ms), state.settled_seq)
    return Due(state.topic, state.topic_id, after, up_to) if up_to > begin else None


def _newest_ts(client: Client, state: TopicState, after: int) -> int | None:
    """When the newest record was stored that is still there; those behind it may be deleted, or of a commit that is
    not whole."""
    distance = 1
    while state.settled_seq > after:
        at = max(after, state.settled_seq - distance)
        found = _last_ts(client, state, at)
        if found is not None or at == after:
            return found
        distance *= 16
    return None


def _last_ts(client: Client, state: TopicState, at: int) -> int | None:
    last = None
    while at < state.settled_seq:
        wanted = min(FETCH_RECORDS_MAX, state.settled_seq - at)
        page = client.fetch(state.topic, at, limit=wanted, metadata_only=True, epoch=state.topic_id, committed=True)
        if page.topic_id != state.topic_id:
            return None  # created anew this moment: the next look finds it
        if len(page):
            last = page.records[-1].ts
        at = page.next_from_seq
        if page.caught_up:
            break
    return last
