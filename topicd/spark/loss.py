"""Records that were to be read and are gone. Promise: never passed over in silence. The query fails and names them, or
with failOnDataLoss=false they are named in a log line and reading goes on."""

from __future__ import annotations

import logging
from typing import ClassVar

from topicd.errors import TopicdError

log = logging.getLogger(__name__)

DELETED = "the topic was deleted"
ENDS_EARLY = "the topic ends before them"


class RecordsLost(TopicdError):
    code: ClassVar[str] = "records_missed"
    status: ClassVar[int] = 410
    summary: ClassVar[str] = "records that a query was to read are gone (client side)"


def report(topic: str, first: int, last: int, reason: str, *, fail: bool) -> None:
    """Records first to last of a topic, both inclusive."""
    _tell(f"records {first} to {last}", topic, reason, {"first_seq": first, "last_seq": last}, fail)


def report_rest(topic: str, after: int, reason: str, *, fail: bool) -> None:
    """Whatever a topic held behind a seq; nobody knows any more how much that was."""
    _tell(f"records above {after}, if there were any,", topic, reason, {"first_seq": after + 1}, fail)


def _tell(what: str, topic: str, reason: str, detail: dict[str, int], fail: bool) -> None:
    told = f"topic {topic}: {what} are gone ({reason})"
    if fail:
        raise RecordsLost(
            f"{told}; with option failOnDataLoss=false the query goes on without them",
            topic=topic,
            reason=reason,
            **detail,
        )
    log.warning("%s; reading on without them", told)
