"""Jobs that are given back, and leases that are extended. Promise: what must last (how often, until when, why) is
stored before it is answered; a number that is not the present one changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topicd.errors import Conflict, InvalidRequest, TopicdError
from topicd.frames import FrameType, core
from topicd.ipc.protocol.messages import Extend, Nack
from topicd.shards.delivery.queues.facts import Past
from topicd.shards.delivery.queues.service import QueueService
from topicd.shards.delivery.topic.topic import Topic

Done = Callable[[dict[str, Any] | None, TopicdError | None], None]
_JITTER = 0.25  # of a pause before the next try: so much earlier it may come


def backoff_ms(topic: Topic, seq: int, deliveries: int) -> int:
    """How long a job that failed so often waits. Jobs that fail together do not come back together."""
    config = topic.config
    exponent = min(deliveries - 1, 64)
    pause = min(config.backoff_ms * config.backoff_factor**exponent, float(config.backoff_max_ms))
    chance = core.xxh3_64(b"%d.%d.%d" % (topic.id, seq, deliveries)) / 2.0**64
    return int(pause * (1 - _JITTER * chance))


def held_of(
    service: QueueService, seqs: tuple[int, ...], leases: tuple[int, ...], node: str | None
) -> tuple[list[int], list[int]]:
    """(seqs that are held as is said, the others)"""
    if leases and len(leases) != len(seqs):
        raise InvalidRequest(f"{len(seqs)} seqs and {len(leases)} leases: there is one for each, or none")
    if not node and not (leases and all(leases)) and seqs:
        raise InvalidRequest("without a node every lease number is needed")
    name = (node or "").encode()
    found: list[int] = []
    skipped: list[int] = []
    seen: set[int] = set()
    for at, seq in enumerate(seqs):
        number = leases[at] if leases else 0
        held = seq not in seen and service.jobs.leases.is_held(seq, number, name)
        seen.add(seq)
        (found if held else skipped).append(seq)
    return found, skipped


def nack(service: QueueService, want: Nack, done: Done) -> None:
    topic, jobs = service.topic, service.jobs
    if want.kind == "dead" and not topic.config.dead_letter:
        raise Conflict(f"queue {topic.name!r} has no dead_letter: a job cannot go there", topic=topic.name)
    now = service.look()
    held, skipped = held_of(service, want.seqs, want.leases, want.node)
    dead: list[int] = []
    lasting = want.kind != "release" or bool(want.delay_ms) or bool(want.reason) or jobs.logs_leases
    for seq in held:
        if not lasting:
            jobs.release(seq, now)
        elif want.kind == "release":
            past = jobs.past.get(seq) or Past(0, 0, 0, "")
            jobs.begin_end(seq)
            service.ending().give_back(
                seq, past._replace(reason=want.reason or past.reason), now + (want.delay_ms or 0)
            )
        else:
            past = jobs.attempt(seq, now, want.reason)
            jobs.begin_end(seq)
            service.note_outcome(failed=True)
            if want.kind == "dead" or service.is_last(past):
                service.ending().bury(seq, past)
                dead.append(seq)
            else:
                pause = backoff_ms(topic, seq, past.deliveries) if want.delay_ms is None else want.delay_ms
                service.ending().give_back(seq, past, now + pause)
    if want.kind == "release":
        service.endings.count(released=len(held))
    else:
        service.endings.count(failed=len(held))

    def answer(error: TopicdError | None) -> None:
        counters = {"ready": jobs.ready, "in_flight": jobs.in_flight}
        body = {"topic_id": topic.id, "nacked": len(held), "skipped": skipped, "dead": dead, **counters}
        done(None if error is not None else body, error)

    if held and lasting:
        service.ending().then(answer)
        return
    answer(None)
    if held:
        service.tools.agenda.moved(topic)


def extend(service: QueueService, want: Extend, done: Done) -> None:
    topic, jobs = service.topic, service.jobs
    now = service.look()
    held, skipped = held_of(service, want.seqs, want.leases, want.node)
    deadline = now + want.lease_ms
    rows: list[list[Any]] = []
    for seq in held:
        grant = jobs.leases.get(seq)
        assert grant is not None
        number = grant.number(seq)
        jobs.leases.give(seq, seq, number, deadline, grant.node, grant.holder).since = grant.since
        rows.append([seq, seq, number, deadline, grant.node])
    service.arm(now)
    body = {
        "topic_id": topic.id,
        "extended": len(held),
        "skipped": skipped,
        "deadlines": [[seq, deadline] for seq in held],
    }
    if not (rows and jobs.logs_leases and topic.policy.logged):
        done(body, None)
        return
    service.tools.log.change(
        topic,
        FrameType.LEASE,
        {"at": now, "lease": rows},
        seq=topic.seqs.head,
        need=topic.policy.need,
        applied=lambda: done(body, None),
        refused=lambda error: done(None, error),
        numbered=True,
    )
