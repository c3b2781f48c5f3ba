"""Queues: jobs given back and extended, workers, what operators look at and change."""

from __future__ import annotations

from topicd import limits
from topicd.ipc.protocol.fields import Message, choice, flag, node, number, numbers, text, topic_name
from topicd.ipc.protocol.messages.declaring import Op, Request
from topicd.limits import MAX_SEQ, MAX_U64

_COUNTERS = "ready, in_flight"


class JobOptions(Message):
    """Of jobs when they are published: behind the flag OPTIONS of an APPEND to a queue stands a list of [index of the
    first record in the batch, how many records, map of these fields]. Stored with the jobs: both or neither."""

    delay_ms: int | None = number(0, limits.READY_MS_MAX, default=None, help="not before so much from now")
    ready_at: int | None = number(0, MAX_SEQ, default=None, help="ms; not before that time")
    priority: int = number(0, limits.PRIORITY_MAX, default=limits.PRIORITY_DEFAULT, help="9 goes first")
    group: str = text(limits.GROUP_MAX, default="", help="groups are served in turn, each within its limits")
    unique: str = text(limits.UNIQUE_MAX, default="", help="a second job with this key is none; alone in its batch")
    until: str = choice("done", "start", "time", default="done", help="how long the key is held")
    unique_ms: int | None = number(1, limits.READY_MS_MAX, default=None, help="for until: time")
    on_conflict: str = choice(
        "drop", "replace", "reschedule", default="drop", help="of a job that waits; one that runs stays as it is"
    )


class Nack(
    Request,
    op=Op.NACK,
    right=("consume", "write"),
    changes=True,
    answer=f"topic_id, nacked, skipped [seqs], dead [seqs that go to the dead letters], {_COUNTERS}",
):
    """Give jobs back. release: not the job's fault, the delivery does not count; fail: it counts, and the queue's
    backoff says when it comes again unless delay_ms does; dead: to the dead letters at once."""

    topic: str = topic_name()
    seqs: tuple[int, ...] = numbers(1, MAX_SEQ, limits.CLAIM_MAX)
    leases: tuple[int, ...] = numbers(
        0, MAX_U64, limits.CLAIM_MAX, default=(), help="one for each seq, 0: not checked; empty: none is"
    )
    node: str | None = node(default=None, help="who holds them; nil: any, and every lease is given")
    kind: str = choice("release", "fail", "dead", default="fail")
    delay_ms: int | None = number(0, limits.DELAY_MS_MAX, default=None, help="claimable again so much from now")
    reason: str = text(limits.REASON_MAX, default="", help="kept with the job")


class Extend(
    Request,
    op=Op.EXTEND,
    right=("consume", "write"),
    changes=True,
    answer="topic_id, extended, skipped [seqs that are not held any more], deadlines [[seq, ms]]",
):
    """The deadline becomes now + lease_ms. An expired lease cannot be extended."""

    topic: str = topic_name()
    seqs: tuple[int, ...] = numbers(1, MAX_SEQ, limits.CLAIM_MAX)
    leases: tuple[int, ...] = numbers(0, MAX_U64, limits.CLAIM_MAX, default=(), help="as in NACK")
    node: str | None = node(default=None, help="as in NACK")
    lease_ms: int = number(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)


class Work(
    Request,
    op=Op.WORK,
    right=("consume", "write"),
    answer="topic_id, max, lease_ms; then JOBS with the same request id, each like the answer to CLAIM",
):
    """Jobs are pushed while fewer than max of this worker are leased and not expired; ACK, NACK and expiry make room.
    When the connection ends, what it still holds is released at once."""

    topic: str = topic_name()
    node: str = node(help="the worker's name")
    max: int = number(1, limits.CLAIM_MAX, default=1)
    lease_ms: int | None = number(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX, default=None, help="nil: the queue's")


class StopWork(Request, op=Op.STOP_WORK, answer="released"):
    """No more jobs. What was pushed stays leased until it is acknowledged, released or the connection ends."""

    work: int = number(0, 0xFFFF_FFFF, help="request id of the WORK")
    release: bool = flag(default=False, help="and give back at once what it holds")


class QueueState(
    Request,
    op=Op.QUEUE_STATE,
    right="read",
    answer=f"topic, topic_id, {_COUNTERS}, delayed, kept (done and still readable), dead_lettered, acked, failed, "
    "released, expired (all five since creation), workers, claims (that wait), paused (nil, or {by: user or breaker, "
    "reason, since}), draining, oldest_ready_ts, priorities {priority: ready}, groups (that have jobs), unique_keys, "
    "config",
):
    topic: str = topic_name()


class QueuePeek(
    Request,
    op=Op.QUEUE_PEEK,
    right="read",
    answer="topic_id, jobs [{seq, state, deliveries, priority, group, unique, ready_at, node, lease, deadline, reason, "
    "first_ts, last_ts, started_ts, done_ts}: what there is of these], frames (their records, in that order), next "
    "(seq to go on behind, or nil)",
):
    """Jobs as they are; nothing is taken."""

    topic: str = topic_name()
    state: str = choice("any", "ready", "delayed", "in_flight", "done", default="any")
    from_seq: int = number(0, MAX_SEQ, default=0, help="behind this seq")
    limit: int = number(1, limits.CLAIM_MAX, default=100)


class QueueWhy(
    Request,
    op=Op.QUEUE_WHY,
    right="read",
    answer="seq, state (ready, delayed, in_flight, done, dead, gone, unknown), because [sentences], and what a job of "
    "QUEUE_PEEK says",
):
    """Why a job does not run, or without a seq: why the queue's next one does not."""

    topic: str = topic_name()
    seq: int | None = number(1, MAX_SEQ, default=None)


class SteerJobs(
    Request,
    op=Op.QUEUE_STEER,
    right="delete",
    changes=True,
    answer="topic_id, changed, skipped [seqs that do not wait]",
):
    """Jobs that wait, whether ready or delayed: tried at once, or deleted. What somebody holds is left alone."""

    topic: str = topic_name()
    seqs: tuple[int, ...] = numbers(1, MAX_SEQ, limits.CLAIM_MAX)
    action: str = choice("ready", "delete")


class PauseQueue(Request, op=Op.QUEUE_PAUSE, right="admin", changes=True, answer="topic_id, paused, draining"):
    """Nothing is handed out until it is resumed; jobs can be published and acknowledged."""

    topic: str = topic_name()
    reason: str = text(limits.REASON_MAX, default="")


class ResumeQueue(Request, op=Op.QUEUE_RESUME, right="admin", changes=True, answer="topic_id, paused, draining"):
    """Neither paused nor draining, whoever began it."""

    topic: str = topic_name()


class DrainQueue(Request, op=Op.QUEUE_DRAIN, right="admin", changes=True, answer="topic_id, paused, draining"):
    """Nothing more can be published; what is there is handed out."""

    topic: str = topic_name()
    reason: str = text(limits.REASON_MAX, default="")


class Redrive(
    Request,
    op=Op.REDRIVE,
    right="delete",
    changes=True,
    answer="topic_id, redriven, discarded, skipped [seqs that are no dead letters of the queue, or gone], next (seq to "
    "go on behind, or nil)",
):
    """Dead letters back to the queue that they came from, each once. Asked of the shard of the dead-letter topic."""

    topic: str = topic_name(help="the dead letters")
    queue: str = text(255, default="", help="only those of this queue")
    seqs: tuple[int, ...] = numbers(1, MAX_SEQ, limits.CLAIM_MAX, default=(), help="only these; empty: all")
    from_seq: int = number(0, MAX_SEQ, default=0, help="behind this seq")
    limit: int = number(1, limits.CLAIM_MAX, default=limits.CLAIM_MAX)
    discard: bool = flag(default=False, help="delete them instead")
