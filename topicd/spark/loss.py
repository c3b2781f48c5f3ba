"""Records that were to be read and are gone. Promise: never passed over in silence. The query fails and names them; or
they are named in a log line and reading goes on, if somebody has acknowledged just these (acknowledgeGaps) or does not
want to be asked (failOnDataLoss=false).

A gap is known by topic id and seqs. Neither is ever given out again, so an acknowledgement covers the loss it was
written for and no later one.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from topicd.errors import InvalidRequest, TopicdError

log = logging.getLogger(__name__)

OPTION = "acknowledgeGaps"
DELETED = "the topic was deleted"
ENDS_EARLY = "the topic ends before them"
_SEQS = re.compile(r"(\d+)(-)?(\d+)?")


class RecordsLost(TopicdError):
    code: ClassVar[str] = "records_missed"
    status: ClassVar[int] = 410
    summary: ClassVar[str] = "records that a query was to read are gone (client side)"


class Seqs(NamedTuple):
    """Both inclusive; last is None where nobody knows how far it went."""

    first: int
    last: int | None

    def __str__(self) -> str:
        return f"{self.first}-{'' if self.last is None else self.last}"

    def without(self, other: Seqs) -> list[Seqs]:
        """What is left: nothing, one stretch or two."""
        left = []
        if other.first > self.first:
            end = other.first - 1
            left.append(Seqs(self.first, end if self.last is None else min(end, self.last)))
        if other.last is not None and (self.last is None or other.last < self.last):
            left.append(Seqs(max(other.last + 1, self.first), self.last))
        return left


class Gap(NamedTuple):
    topic: str
    topic_id: int
    seqs: Seqs


@dataclass(frozen=True, slots=True)
class Policy:
    """What a query does about losses."""

    fail: bool = True
    acknowledged: tuple[Gap, ...] = ()

    def report(
        self, topic: str, topic_id: int, first: int, last: int, reason: str, *, gap_to: int | None = None
    ) -> None:
        """Records first to last of a topic, both inclusive; gap_to is where the gap ends if that is behind them."""
        lost = Seqs(first, last)
        left = self._unacknowledged(topic, topic_id, lost)
        if not (left and self.fail):
            log.warning("topic %s: records %d to %d are gone (%s)%s", topic, first, last, reason, _on(left))
            return
        if gap_to is not None and gap_to > last and left[-1].last == last:
            gap = [*left[:-1], left[-1]._replace(last=gap_to)]
        else:
            gap = left
        named = " and ".join(f"{found.first} to {found.last}" for found in left)
        raise _lost(f"topic {topic}: records {named} are gone ({reason})", topic, topic_id, reason, gap)

    def report_rest(self, topic: str, topic_id: int, after: int, reason: str) -> None:
        """Whatever a topic held behind a seq; nobody knows any more how much that was."""
        left = self._unacknowledged(topic, topic_id, Seqs(after + 1, None))
        told = f"topic {topic}: records above {after}, if there were any, are gone ({reason})"
        if left and self.fail:
            raise _lost(told, topic, topic_id, reason, [Seqs(after + 1, None)])
        log.warning("%s%s", told, _on(left))

    def _unacknowledged(self, topic: str, topic_id: int, lost: Seqs) -> list[Seqs]:
        left = [lost]
        for gap in self.acknowledged:
            if (gap.topic, gap.topic_id) == (topic, topic_id):
                left = [rest for found in left for rest in found.without(gap.seqs)]
        return left


def _on(left: list[Seqs]) -> str:
    return f"{'' if left else '; acknowledged'}; reading on without them"


def _lost(told: str, topic: str, topic_id: int, reason: str, gap: list[Seqs]) -> RecordsLost:
    given = json.dumps({topic: {"id": topic_id, "seqs": ",".join(map(str, gap))}})
    return RecordsLost(
        f"{told}; the query goes on without these with option {OPTION}={given}, "
        "and without any that are gone with failOnDataLoss=false",
        topic=topic,
        topic_id=topic_id,
        reason=reason,
        first_seq=gap[0].first,
        **({} if gap[-1].last is None else {"last_seq": gap[-1].last}),
    )


def parse_gaps(text: str) -> tuple[Gap, ...]:
    """As the error says it: {"orders": {"id": 5, "seqs": "101-500,900-"}}."""
    try:
        found = json.loads(text)
        return tuple(
            Gap(topic, _topic_id(gap), seqs)
            for topic, gap in found.items()
            for seqs in map(_parsed, str(gap["seqs"]).split(","))
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidRequest(
            f"option {OPTION} must be JSON as the error that names the gap has it, "
            f'like {{"orders": {{"id": 5, "seqs": "101-500"}}}}, not {text!r:.200}'
        ) from None


def _topic_id(gap: dict[str, Any]) -> int:
    if gap.keys() != {"id", "seqs"} or isinstance(gap["id"], bool) or not isinstance(gap["id"], int):
        raise ValueError
    return gap["id"]


def _parsed(text: str) -> Seqs:
    """101-500, 101- or 101."""
    found = _SEQS.fullmatch(text.strip())
    if found is None or (found[3] and not found[2]):
        raise ValueError
    first = int(found[1])
    last = int(found[3]) if found[3] else (None if found[2] else first)
    if first < 1 or (last is not None and last < first):
        raise ValueError
    return Seqs(first, last)
