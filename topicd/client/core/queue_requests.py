"""Every request about a queue, built once for both faces (see `requests`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from topicd.client.core.jobs import NackKind, bounded
from topicd.client.core.queue_answers import (
    Extended,
    JobState,
    Nacked,
    Peeked,
    QueueMode,
    QueueStats,
    Redriven,
    Schedule,
    Steered,
    job_state,
    peeked,
    queue_mode,
    queue_stats,
    schedule,
    seqs_of,
)
from topicd.client.core.requests import Request, of_topic
from topicd.errors import InvalidRequest
from topicd.ipc.protocol import messages
from topicd.ipc.protocol.codec import number
from topicd.limits import CLAIM_MAX, DELAY_MS_MAX, LEASE_MS_MAX, LEASE_MS_MIN, REASON_MAX
from topicd.lists import check_list


def shortened(reason: str) -> str:
    """At most so many bytes as a reason may have; the end says most."""
    raw = reason.encode("utf-8", "replace")
    if len(raw) <= REASON_MAX:
        return raw.decode()
    return "…" + raw[-(REASON_MAX - len("…".encode())) :].decode("utf-8", "ignore")


def reason_of(error: BaseException) -> str:
    """An exception as the reason of a failure."""
    text = str(error).strip()
    return shortened(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def nack(
    queue: str,
    held: Sequence[tuple[int, int]],
    kind: NackKind,
    *,
    delay_ms: int | None,
    reason: str,
    node: str | None = None,
) -> Request[Nacked]:
    if kind not in ("release", "fail", "dead"):
        raise InvalidRequest(f"kind must be one of release, fail, dead, not {kind!r:.100}")
    message = messages.Nack(
        topic=queue,
        seqs=tuple(seq for seq, _ in held),
        leases=tuple(lease for _, lease in held),
        node=node,
        kind=kind,
        delay_ms=None if delay_ms is None else bounded("delay_ms", delay_ms, 0, DELAY_MS_MAX),
        reason=shortened(str(reason)),
    )

    def parse(answer: dict[str, Any]) -> Nacked:
        return Nacked(number(answer, "nacked"), seqs_of(answer, "skipped"), seqs_of(answer, "dead"))

    return of_topic(message, queue, parse)


def extend(queue: str, held: Sequence[tuple[int, int]], lease_ms: int, *, node: str | None = None) -> Request[Extended]:
    message = messages.Extend(
        topic=queue,
        seqs=tuple(seq for seq, _ in held),
        leases=tuple(lease for _, lease in held),
        node=node,
        lease_ms=bounded("lease_ms", lease_ms, LEASE_MS_MIN, LEASE_MS_MAX),
    )

    def parse(answer: dict[str, Any]) -> Extended:
        deadlines = {int(seq): int(deadline) for seq, deadline in answer.get("deadlines") or []}
        return Extended(number(answer, "extended"), seqs_of(answer, "skipped"), deadlines)

    return of_topic(message, queue, parse)


def stats(queue: str) -> Request[QueueStats]:
    return of_topic(messages.QueueState(topic=queue), queue, queue_stats)


def peek(queue: str, state: str, from_seq: int, limit: int) -> Request[Peeked]:
    message = messages.QueuePeek.from_wire({"topic": queue, "state": state, "from_seq": from_seq, "limit": limit})
    return of_topic(message, queue, lambda answer: peeked(queue, answer))


def why(queue: str, seq: int | None) -> Request[JobState]:
    message = messages.QueueWhy.from_wire({"topic": queue, "seq": seq})
    return of_topic(message, queue, job_state)


def pause(queue: str, reason: str) -> Request[QueueMode]:
    return of_topic(messages.PauseQueue(topic=queue, reason=shortened(reason)), queue, queue_mode)


def resume(queue: str) -> Request[QueueMode]:
    return of_topic(messages.ResumeQueue(topic=queue), queue, queue_mode)


def drain(queue: str, reason: str) -> Request[QueueMode]:
    return of_topic(messages.DrainQueue(topic=queue, reason=shortened(reason)), queue, queue_mode)


def steer(queue: str, seqs: Sequence[int], action: str) -> Request[Steered]:
    check_list(seqs, "seqs")
    message = messages.SteerJobs.from_wire({"topic": queue, "seqs": list(seqs), "action": action})

    def parse(answer: dict[str, Any]) -> Steered:
        return Steered(number(answer, "changed"), seqs_of(answer, "skipped"))

    return of_topic(message, queue, parse)


def redrive(
    dead_letters: str, queue: str, seqs: Sequence[int], from_seq: int, limit: int, discard: bool
) -> Request[Redriven]:
    message = messages.Redrive(
        topic=dead_letters,
        queue=queue,
        seqs=tuple(bounded("a seq", seq, 1, (1 << 63) - 1) for seq in seqs),
        from_seq=from_seq,
        limit=bounded("limit", limit, 1, CLAIM_MAX),
        discard=discard,
    )

    def parse(answer: dict[str, Any]) -> Redriven:
        moved, gone = number(answer, "redriven"), number(answer, "discarded")
        return Redriven(moved, gone, seqs_of(answer, "skipped"), answer.get("next"))

    return of_topic(message, dead_letters, parse)


def add_cron(
    queue: str, name: str, when: str, data: bytes, *, timezone: str, tag: str, priority: int, group: str
) -> Request[Schedule]:
    message = messages.AddCron.from_wire(
        {
            "topic": queue,
            "name": name,
            "schedule": when,
            "timezone": timezone,
            "data": data,
            "tag": tag,
            "priority": priority,
            "group": group,
        }
    )
    return of_topic(message, queue, schedule)


def remove_cron(queue: str, name: str) -> Request[bool]:
    message = messages.RemoveCron.from_wire({"topic": queue, "name": name})
    return of_topic(message, queue, lambda answer: bool(answer.get("removed")))


def list_cron(queue: str) -> Request[list[Schedule]]:
    def parse(answer: dict[str, Any]) -> list[Schedule]:
        return [schedule(entry) for entry in answer.get("schedules") or []]

    return of_topic(messages.ListCron(topic=queue), queue, parse)
