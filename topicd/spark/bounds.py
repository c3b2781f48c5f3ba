"""Where reading begins and ends. Promise: what names a topic that is not read, or begins behind its end, is refused: a
typo never reads everything, and never nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from topicd.client.core.arguments import milliseconds
from topicd.errors import InvalidRequest
from topicd.spark.given import Given

Position = str | int  # "earliest", "latest" or a seq
EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: one place for all topics, places by topic, or a moment."""

    default: str
    seqs: tuple[tuple[str, Position], ...] = ()
    ts_ms: int | None = None

    def of(self, topic: str) -> Position:
        """Counts where no moment is given."""
        return dict(self.seqs).get(topic, self.default)

    def has(self, position: Position) -> bool:
        """Whether some topic begins or ends there."""
        return self.ts_ms is None and (self.default == position or position in dict(self.seqs).values())


def parse_bound(given: Given, which: str, default: str) -> Bound:
    text, moment = given.text(f"{which}Offsets"), given.text(f"{which}Timestamp")
    if text is not None and moment is not None:
        raise InvalidRequest(f"options {which}Offsets and {which}Timestamp exclude each other")
    if moment is not None:
        return Bound(default, ts_ms=_moment(f"{which}Timestamp", moment))
    if text is None or text.strip().lower() in (EARLIEST, LATEST):
        return Bound((text or default).strip().lower())
    return Bound(default, _seqs(f"{which}Offsets", text))


def _seqs(name: str, text: str) -> tuple[tuple[str, Position], ...]:
    """{"orders": 17, "audit": "latest"}; Kafka's -2 and -1 stand for earliest and latest."""
    wrong = InvalidRequest(
        f'option {name} must be earliest, latest or JSON like {{"orders": 17, "audit": "latest"}}, not {text!r:.200}'
    )
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict):
        raise wrong
    words = {-2: EARLIEST, -1: LATEST, EARLIEST: EARLIEST, LATEST: LATEST}
    seqs: list[tuple[str, Position]] = []
    for topic, seq in found.items():
        if isinstance(seq, bool) or not isinstance(seq, str | int):
            raise wrong
        position = words.get(seq, seq)
        if isinstance(position, str) != (seq in words) or (isinstance(position, int) and position < 0):
            raise wrong
        seqs.append((topic, position))
    return tuple(seqs)


def _moment(name: str, text: str) -> int:
    """Milliseconds since 1970, or a date and time; UTC unless it says otherwise."""
    if text.strip().isdigit():
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise InvalidRequest(
            f"option {name} must be milliseconds since 1970 or like 2026-01-31T12:00:00Z, not {text!r:.100}"
        ) from None
    return milliseconds(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def check_bounds(starting: Bound, ending: Bound, topics: tuple[str, ...], pattern: str | None) -> None:
    """As far as that can be said without a look at the topics."""
    fits: Callable[[str], object] = topics.__contains__ if pattern is None else re.compile(pattern).fullmatch
    for option, bound in (("startingOffsets", starting), ("endingOffsets", ending)):
        for topic, _ in bound.seqs:
            if not fits(topic):
                read = f"those that fit {pattern}" if pattern is not None else ", ".join(topics)
                raise InvalidRequest(f"option {option} names topic {topic!r:.260}, which is not read; read are {read}")
    if starting.ts_ms is not None and ending.ts_ms is not None and starting.ts_ms > ending.ts_ms:
        raise InvalidRequest("option startingTimestamp is later than endingTimestamp")
    ends = dict(ending.seqs)
    for topic, seq in starting.seqs:
        end = ends.get(topic)
        if isinstance(seq, int) and isinstance(end, int):
            check_order(topic, seq - 1, end - 1)


def check_order(topic: str, after: int, up_to: int) -> None:
    if after > up_to:
        raise InvalidRequest(f"topic {topic}: the start, seq {after + 1}, is behind the end, seq {up_to + 1}")
