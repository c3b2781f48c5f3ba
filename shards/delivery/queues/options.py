"""What jobs are published with. In the log: `[first seq, how many, map]`, short keys, only what is not plain."""

from __future__ import annotations

from typing import Any

import msgpack

from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import JobOptions
from topicd.ipc.protocol.wire import MAX_ITEMS
from topicd.limits import MAX_BATCH_RECORDS, PRIORITY_DEFAULT, READY_MS_MAX
from topicd.shards.delivery.queues import uniques

OPTIONS_MAX = 64 * 1024  # bytes of all options of a batch


class Options:
    """Of neighbouring jobs that were published alike."""

    __slots__ = ("count", "first", "group", "key", "key_ms", "priority", "ready_at", "until")

    def __init__(self, first: int, count: int) -> None:
        self.first = first  # index in the batch, or seq
        self.count = count
        self.priority = PRIORITY_DEFAULT
        self.group = ""
        self.ready_at = 0
        self.key = ""
        self.until = uniques.DONE
        self.key_ms = 0  # until: time; when the key is free again

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    @property
    def placed(self) -> bool:
        """Its jobs are in another lane than plain ones."""
        return self.priority != PRIORITY_DEFAULT or bool(self.group)

    def to_log(self) -> list[Any]:
        body: dict[str, Any] = {}
        if self.priority != PRIORITY_DEFAULT:
            body["p"] = self.priority
        if self.group:
            body["g"] = self.group
        if self.ready_at:
            body["r"] = self.ready_at
        if self.key:
            body["u"] = [self.key, self.until, self.key_ms]
        return [self.first, self.count, body]

    @classmethod
    def from_log(cls, row: Any) -> Options:
        first, count, body = row
        found = cls(int(first), int(count))
        found.priority = int(body.get("p", PRIORITY_DEFAULT))
        found.group = str(body.get("g", ""))
        found.ready_at = int(body.get("r", 0))
        if "u" in body:
            found.key, found.until, found.key_ms = body["u"]
        return found


class Asked:
    """The options of one write, and what to do if its key is held."""

    __slots__ = ("on_conflict", "replaces", "rescheduled", "rows", "tick")

    def __init__(self, rows: list[Options], on_conflict: str, tick: tuple[str, int, int] | None = None) -> None:
        self.rows = rows
        self.on_conflict = on_conflict
        self.tick = tick  # a schedule that made the job, the time for which, and the next one
        self.replaces = 0  # a job that gives way
        self.rescheduled = False  # a job that waits gets the time of this one, and this one is not stored

    @property
    def key(self) -> str:
        return self.rows[0].key if self.rows else ""

    def at(self, first_seq: int) -> list[Options]:
        """For records that begin at this seq."""
        for row in self.rows:
            row.first += first_seq
        return self.rows


def parse(packed: memoryview, count: int, now_ms: int) -> Asked:
    """What stands behind the flag OPTIONS of an append of so many records."""
    if len(packed) > OPTIONS_MAX:
        raise InvalidRequest(f"options of jobs have at most {OPTIONS_MAX} bytes, not {len(packed)}")
    try:
        rows = msgpack.unpackb(packed, raw=False, max_array_len=MAX_BATCH_RECORDS, max_map_len=MAX_ITEMS)
    except Exception as exc:
        raise InvalidRequest(f"options of jobs are not msgpack: {exc}") from None
    if not isinstance(rows, list):
        raise InvalidRequest("options of jobs are a list of [index of the first record, how many, options]")
    found: list[Options] = []
    on_conflict, behind = "drop", 0
    for row in rows:
        if not (isinstance(row, list) and len(row) == 3 and type(row[0]) is int and type(row[1]) is int):
            raise InvalidRequest(f"options of jobs: {row!r:.100} is not [index of the first record, how many, options]")
        index, many, given = row
        if not (behind <= index and many > 0 and index + many <= count):
            raise InvalidRequest(
                f"options of jobs: {many} from {index} on do not fit a write of {count} behind {behind}"
            )
        behind = index + many
        want = JobOptions.from_wire(given) if isinstance(given, dict) else None
        if want is None:
            raise InvalidRequest("options of jobs: the third of each is a map")
        if want.unique and count != 1:
            raise InvalidRequest("a job with a unique key is alone in its write")
        found.append(_options(index, many, want, now_ms))
        on_conflict = want.on_conflict
    return Asked(found, on_conflict)


def _options(index: int, many: int, want: JobOptions, now_ms: int) -> Options:
    if want.delay_ms is not None and want.ready_at is not None:
        raise InvalidRequest("a job has delay_ms or ready_at, not both")
    if want.until == uniques.TIME and want.unique and want.unique_ms is None:
        raise InvalidRequest("until: time needs unique_ms")
    made = Options(index, many)
    made.priority, made.group = want.priority, want.group
    if want.delay_ms:
        made.ready_at = now_ms + want.delay_ms
    elif want.ready_at is not None and want.ready_at > now_ms:
        if want.ready_at > now_ms + READY_MS_MAX:
            raise InvalidRequest(f"ready_at is at most {READY_MS_MAX} ms ahead")
        made.ready_at = want.ready_at
    if want.unique:
        made.key, made.until = want.unique, want.until
        made.key_ms = now_ms + (want.unique_ms or 0) if want.until == uniques.TIME else 0
    return made
