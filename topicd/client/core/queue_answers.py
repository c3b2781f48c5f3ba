"""What the daemon tells about queues and their jobs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from topicd._native import core
from topicd._native.interface import Decoded
from topicd.client.core.answers import config_of
from topicd.client.core.records import Record, received
from topicd.errors import FormatError
from topicd.model import TopicConfig

DEAD_FROM = "$dead_letter_from"
DEAD_DELIVERIES = "$dead_letter_deliveries"
DEAD_SEQ = "$dead_letter_src_seq"
DEAD_REASON = "$dead_letter_reason"
DEAD_FIRST = "$dead_letter_first_ts"
DEAD_LAST = "$dead_letter_last_ts"
DEAD_GROUP = "$dead_letter_group"


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counters of a queue, exact at the moment of the answer. `ready`, `in_flight`, `delayed` and `kept` are jobs that
    are there; `acked`, `failed`, `released`, `expired` and `dead_lettered` count since the queue was created."""

    topic: str
    topic_id: int
    ready: int
    in_flight: int
    delayed: int
    kept: int  # done and still readable
    dead_lettered: int
    acked: int
    failed: int
    released: int
    expired: int
    workers: int
    claims: int  # that wait for a job
    paused: dict[str, Any] | None  # by (user or breaker), reason, since
    draining: bool
    oldest_ready_ts: int | None
    priorities: dict[int, int]  # ready jobs by priority
    groups: int  # that have jobs
    unique_keys: int
    config: TopicConfig


def queue_stats(answer: dict[str, Any]) -> QueueStats:
    try:
        return QueueStats(
            topic=str(answer["topic"]),
            config=config_of(answer["config"]),
            paused=answer["paused"] or None,
            draining=bool(answer["draining"]),
            oldest_ready_ts=answer["oldest_ready_ts"] or None,
            priorities={int(level): int(count) for level, count in dict(answer["priorities"] or {}).items()},
            **{name: int(answer[name]) for name in _COUNTS},
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise FormatError(f"the daemon's answer about a queue is malformed: {exc!r}") from None


_COUNTS = (
    *("topic_id", "ready", "in_flight", "delayed", "kept", "dead_lettered", "acked", "failed", "released"),
    *("expired", "workers", "claims", "groups", "unique_keys"),
)


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as it is now; what does not apply to its state is None, 0 or empty."""

    seq: int
    state: str  # ready, delayed, in_flight, done, dead, gone or unknown
    deliveries: int = 0
    priority: int | None = None
    group: str = ""
    unique: str = ""
    ready_at: int | None = None  # ms
    node: str = ""  # who holds it
    lease: int = 0
    deadline: int | None = None  # ms
    reason: str = ""  # of its last failure
    first_ts: int | None = None  # first delivery
    last_ts: int | None = None  # last delivery
    started_ts: int | None = None  # of one that is done: when it was handed out for the last time
    done_ts: int | None = None
    record: Record | None = None
    because: list[str] = field(default_factory=list)  # why it does not run, of `why`


_PLAIN = (
    *("deliveries", "priority", "group", "unique", "ready_at", "node", "lease", "deadline", "reason"),
    *("first_ts", "last_ts", "started_ts", "done_ts"),
)


def job_state(answer: dict[str, Any], record: Record | None = None) -> JobState:
    given = {name: answer[name] for name in _PLAIN if answer.get(name) is not None}
    seq, because = answer.get("seq") or 0, answer.get("because") or []
    if not isinstance(seq, int) or not isinstance(because, list):
        raise FormatError(f"the daemon's answer about a job is malformed: {answer!r:.200}")
    return JobState(
        seq=seq, state=str(answer.get("state", "unknown")), record=record, because=list(map(str, because)), **given
    )


class Peeked(NamedTuple):
    """Some jobs of a queue as they are; `next` is the seq to go on behind, None at the end."""

    jobs: list[JobState]
    next: int | None

    def __iter__(self) -> Iterator[JobState]:  # type: ignore[override]
        return iter(self.jobs)


def peeked(topic: str, answer: dict[str, Any]) -> Peeked:
    entries, frames = answer.get("jobs"), answer.get("frames") or b""
    if not isinstance(entries, list) or not isinstance(frames, bytes):
        raise FormatError(f"the daemon's answer about jobs is malformed: {answer!r:.200}")
    try:
        decoded: list[Decoded] = core.decode_frames(frames, 0, len(frames))
    except ValueError as exc:
        raise FormatError(f"the daemon sent jobs that are malformed: {exc.args[-1]}") from None
    by_seq = {one[0]: received(topic, one) for one in decoded}
    return Peeked([job_state(entry, by_seq.get(entry.get("seq"))) for entry in entries], answer.get("next"))


@dataclass(frozen=True, slots=True)
class QueueMode:
    """Whether a queue hands out and takes in."""

    paused: dict[str, Any] | None
    draining: bool


def queue_mode(answer: dict[str, Any]) -> QueueMode:
    return QueueMode(answer.get("paused") or None, bool(answer.get("draining")))


@dataclass(frozen=True, slots=True)
class Nacked:
    """What became of jobs that were given back. `skipped` were not ours any more, `dead` went to the dead letters."""

    nacked: int
    skipped: list[int]
    dead: list[int]


@dataclass(frozen=True, slots=True)
class Extended:
    """What became of leases that were to go on. `skipped` were not ours any more; `deadlines` in ms, by seq."""

    extended: int
    skipped: list[int]
    deadlines: dict[int, int]


@dataclass(frozen=True, slots=True)
class Redriven:
    """What became of dead letters. `skipped` were none of this queue, or gone."""

    redriven: int
    discarded: int
    skipped: list[int]
    next: int | None = None  # seq to go on behind


@dataclass(frozen=True, slots=True)
class Steered:
    """What became of jobs that wait. `skipped` did not wait, or for nothing that could be cut short."""

    changed: int
    skipped: list[int]


def seqs_of(answer: dict[str, Any], name: str) -> list[int]:
    found = answer.get(name) or []
    if not isinstance(found, list) or not all(isinstance(seq, int) for seq in found):
        raise FormatError(f"the daemon's answer has no list of seqs {name!r} but {found!r:.100}")
    return found


@dataclass(frozen=True, slots=True)
class Schedule:
    """Jobs at times; `next_ts` and `last_ts` in ms."""

    name: str
    schedule: str
    timezone: str
    data: bytes
    tag: str
    priority: int
    group: str
    next_ts: int | None
    last_ts: int | None


def schedule(answer: dict[str, Any]) -> Schedule:
    try:
        return Schedule(**{name: answer[name] for name in Schedule.__dataclass_fields__})
    except KeyError as exc:
        raise FormatError(f"the daemon's answer about a schedule lacks {exc}") from None


class DeadLetter:
    """A job that was given up, with what is known of why. `seq` is its place among the dead letters."""

    __slots__ = ("record",)

    def __init__(self, record: Record) -> None:
        self.record = record

    @property
    def seq(self) -> int:
        return self.record.seq

    @property
    def data(self) -> bytes:
        return self.record.data

    @property
    def tag(self) -> str | None:
        return self.record.tag

    @property
    def meta(self) -> dict[str, Any]:
        """As the job had it."""
        return {name: value for name, value in self.record.meta.items() if not str(name).startswith("$dead_letter_")}

    @property
    def queue(self) -> str:
        return str(self.record.meta.get(DEAD_FROM, ""))

    @property
    def job_seq(self) -> int:
        """What it was in its queue."""
        return self._number(DEAD_SEQ)

    @property
    def deliveries(self) -> int:
        return self._number(DEAD_DELIVERIES)

    @property
    def reason(self) -> str:
        return str(self.record.meta.get(DEAD_REASON, ""))

    @property
    def group(self) -> str:
        """Empty: it had none."""
        return str(self.record.meta.get(DEAD_GROUP, ""))

    @property
    def first_ts(self) -> int:
        """Its first delivery, in ms; 0: not known."""
        return self._number(DEAD_FIRST)

    @property
    def last_ts(self) -> int:
        """Its last delivery, in ms; 0: not known."""
        return self._number(DEAD_LAST)

    def _number(self, name: str) -> int:
        found = str(self.record.meta.get(name, ""))
        return int(found) if found.isdecimal() else 0

    def __repr__(self) -> str:
        return f"DeadLetter({self.queue}#{self.job_seq}, {self.reason or 'no reason'!r})"
