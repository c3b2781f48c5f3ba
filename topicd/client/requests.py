"""Requests as both faces make them: the user's arguments checked, and turned into what travels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from topicd.client.batch import Batch
from topicd.client.serial import Match, Start, cursor, match_wire, milliseconds, nodes_wire, start_wire
from topicd.client.wire import packed
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.wire import FETCH, MessageFlag
from topicd.limits import LONG_POLL_MS_MAX
from topicd.model import TopicConfig


class Fetch(NamedTuple):
    """A read; `body(topic_id)` for one attempt of at most the daemon's longest wait."""

    from_seq: int
    limit: int
    max_bytes: int
    filters: bytes
    flags: int

    def body(self, wait_ms: int) -> Callable[[int], bytes]:
        def make(topic_id: int) -> bytes:
            fixed = FETCH.pack(topic_id, self.from_seq, self.limit, self.max_bytes, wait_ms)
            return fixed + self.filters

        return make


def fetch(
    from_seq: int,
    *,
    limit: int,
    max_bytes: int,
    match: Match,
    nodes: str | Sequence[str] | None,
    from_time: datetime | None,
    metadata_only: bool,
    performance: bool,
    epoch: int | None,
) -> Fetch:
    given: dict[str, Any] = {
        "match": match_wire(match),
        "nodes": nodes_wire(nodes),
        "from_ts": None if from_time is None else milliseconds(from_time),
        "epoch": epoch,
    }
    present = {name: value for name, value in given.items() if value is not None}
    flags = MessageFlag.METADATA_ONLY if metadata_only else MessageFlag(0)
    flags |= MessageFlag.PERFORMANCE if performance else MessageFlag(0)
    flags |= MessageFlag.FILTER if present else MessageFlag(0)
    return Fetch(
        cursor(from_seq),
        _u32("limit", limit),
        _u32("max_bytes", max_bytes),
        packed(present) if present else b"",
        int(flags),
    )


def wait_ms(left: float) -> int:
    """How long one attempt waits of what is left."""
    return min(max(0, int(left * 1000)), LONG_POLL_MS_MAX)


def enough(found: Batch, left: float) -> bool:
    """Whether a read is over: there is something, or the user's wait is."""
    return len(found) > 0 or found.tombstone is not None or left * 1000 <= LONG_POLL_MS_MAX


def configure(topic: str, config: dict[str, Any]) -> dict[str, Any]:
    TopicConfig.from_fields(config)
    return {"topic": topic, "config": config}


def delete(topic: str, before_seq: int | None, match: Match) -> dict[str, Any]:
    if before_seq is None and match is None:
        raise InvalidRequest("delete needs before_seq, match or both; delete_topic removes everything")
    request: dict[str, Any] = {"topic": topic}
    if before_seq is not None:
        request["before_seq"] = cursor(before_seq)
    if match is not None:
        request["match"] = match_wire(match)
    return request


def consumer(topic: str, name: str, start: Start | None = None) -> dict[str, Any]:
    request: dict[str, Any] = {"topic": topic, "name": name}
    if start is not None:
        request["start"] = start_wire(start)
    return request


def _u32(what: str, value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 0xFFFFFFFF:
        raise InvalidRequest(f"{what} must be an integer from 0 to {0xFFFFFFFF}, not {value!r:.100}")
    return value
