"""Jobs of queues: claimed, pushed, finished, given back, looked at; queues paused and drained; dead letters sent back;
schedules.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final

from topicd import limits
from topicd.errors import Internal, InvalidRequest, Throttled, TopicdError
from topicd.frames import FrameType
from topicd.ipc.protocol.messages import (
    AddCron,
    DrainQueue,
    Extend,
    ListCron,
    Nack,
    Op,
    PauseQueue,
    QueuePeek,
    QueueState,
    QueueWhy,
    Redrive,
    RemoveCron,
    ResumeQueue,
    SteerJobs,
    StopWork,
    Work,
)
from topicd.ipc.protocol.wire import ACK, ACKED, CLAIM, ENDED, FLAG_DONE, LEASED, OP_ACKED
from topicd.shards.delivery.ops.records import check_room
from topicd.shards.delivery.queues import asking, giving_back, schedule, steering
from topicd.shards.delivery.queues.crons import CRON_DATA_MAX, CRONS_MAX, Cron
from topicd.shards.delivery.queues.service import QueueService
from topicd.shards.delivery.queues.takers import WaitingClaim, WorkStream
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.sessions.call import RAW_OPERATIONS, Call, operation
from topicd.tokens import EVERYTHING

log = logging.getLogger(__name__)

_RIGHTS = ("consume", "write")
_CLAIM_SIZE: Final = CLAIM.size
_ROW_SIZE: Final = LEASED.size
_unpack_claim: Final = CLAIM.unpack_from
_unpack_row: Final = LEASED.unpack_from
_ENDED_ONE: Final = ENDED.pack(1, 0)


def claim(call: Call, body: memoryview) -> None:
    size = len(body)
    if size < _CLAIM_SIZE:
        raise InvalidRequest(f"CLAIM has {size} bytes of body, the fixed fields alone are {_CLAIM_SIZE}")
    topic_id, most, lease_ms, wait_ms, node_len = _unpack_claim(body)
    rows_at, finishes = _CLAIM_SIZE + node_len, call.flags & FLAG_DONE != 0
    rows_size = size - rows_at
    if not 0 < node_len <= limits.MAX_NODE or rows_size < 0 or (rows_size and not finishes):
        raise InvalidRequest(f"CLAIM names a node of 1 to {limits.MAX_NODE} bytes, this one says {node_len}")
    if rows_size % _ROW_SIZE or rows_size > limits.CLAIM_MAX * _ROW_SIZE:
        raise InvalidRequest(f"CLAIM finishes at most {limits.CLAIM_MAX} jobs, and has {rows_size} bytes of them")
    if wait_ms > limits.LONG_POLL_MS_MAX:
        raise InvalidRequest(f"wait_ms is at most {limits.LONG_POLL_MS_MAX}, not {wait_ms}")
    service = call.shard.queues.numbered(topic_id)
    connection = call.connection
    if connection.rights is not EVERYTHING:
        connection.rights.require_any(_RIGHTS, service.topic.name)
    if wait_ms or service.topic.config.claim_jitter_ms:
        check_room(call, len(connection.takers), "claims and streams")
    if lease_ms:
        lease_ms = min(max(lease_ms, limits.LEASE_MS_MIN), limits.LEASE_MS_MAX)
    if most != 1:
        most = min(max(most, 1), limits.CLAIM_MAX)
    node = bytes(body[_CLAIM_SIZE:rows_at])
    taker = WaitingClaim(connection, call.request_id, node, most, lease_ms, wait_ms)
    taker.among = connection.takers
    if not finishes:
        taker.enlist()
        service.claim(taker, wait_ms)
    elif rows_size == _ROW_SIZE:
        _finish_one(call, service, body, rows_at, taker)
    else:
        _finish_first(call, service, body[rows_at:], taker)


def _finish_one(call: Call, service: QueueService, body: memoryview, row_at: int, taker: WaitingClaim) -> None:
    """`_finish_first` of one job."""
    _check_changes(call)
    service.look()
    seq, number = _unpack_row(body, row_at)
    if service.endings.take_one(seq, number, taker.node):
        taker.ended, taker.ended_one = _ENDED_ONE, True
        ending = service.ending()
        ending.done.append(seq)
        ending.then_claim(taker)
    else:
        taker.ended = ENDED.pack(0, 1) + _seqs([seq])
        service.endings.go_on([taker])


def _finish_first(call: Call, service: QueueService, rows: memoryview, taker: WaitingClaim) -> None:
    """As an ACK that is answered, and a CLAIM that comes after it."""
    _check_changes(call)
    service.look()
    held, skipped = service.endings.take(rows, taker.node, holder=False)
    taker.ended = ENDED.pack(len(held), len(skipped)) + _seqs(skipped)
    if held:
        ending = service.ending()
        ending.acknowledge(held)
        ending.then_claim(taker)
    else:
        service.endings.go_on([taker])


def ack(call: Call, body: memoryview) -> None:
    if len(body) < ACK.size:
        raise InvalidRequest(f"ACK has {len(body)} bytes of body, the fixed fields alone are {ACK.size}")
    topic_id, count, node_len = ACK.unpack_from(body)
    node, rows = bytes(body[ACK.size : ACK.size + node_len]), body[ACK.size + node_len :]
    if node_len > limits.MAX_NODE or len(rows) != count * LEASED.size or count > limits.CLAIM_MAX:
        raise InvalidRequest(f"ACK says {count} jobs, at most {limits.CLAIM_MAX}, and has {len(rows)} bytes of them")
    service = call.shard.queues.numbered(topic_id)
    call.connection.rights.require_any(_RIGHTS, service.topic.name)
    _check_changes(call)
    service.look()
    held, skipped = service.endings.take(rows, node)
    jobs, connection, request_id = service.jobs, call.connection, call.request_id

    def told(error: TopicdError | None) -> None:
        if error is not None:
            connection.refused(request_id, error)
            return
        fixed = ACKED.pack(topic_id, jobs.ready, jobs.in_flight, len(held), len(skipped))
        connection.body(OP_ACKED, request_id, fixed + _seqs(skipped))

    _end(service, held, told)


def _check_changes(call: Call) -> None:
    if call.shard.log.crowded:
        raise Throttled("too many changes are under way", limit="changes under way", retry_after_ms=100)


def _end(service: QueueService, held: list[int], told: Callable[[TopicdError | None], None]) -> None:
    """These are done; told when it is stored."""
    if held:
        ending = service.ending()
        ending.acknowledge(held)
        ending.then(told)
    else:
        told(None)


def _seqs(seqs: list[int]) -> bytes:
    return b"".join([seq.to_bytes(8, "little") for seq in seqs])


RAW_OPERATIONS[Op.CLAIM] = claim
RAW_OPERATIONS[Op.ACK] = ack


@operation(Nack)
def nack(call: Call, want: Nack) -> None:
    giving_back.nack(call.shard.queues.named(want.topic), want, call.done)


@operation(Extend)
def extend(call: Call, want: Extend) -> None:
    giving_back.extend(call.shard.queues.named(want.topic), want, call.done)


@operation(Work)
def work(call: Call, want: Work) -> None:
    service, connection = call.shard.queues.named(want.topic), call.connection
    if not want.node:
        raise InvalidRequest("WORK names a node: the worker's name")
    if call.request_id in connection.takers:
        raise InvalidRequest(f"request {call.request_id} of this connection is under way already")
    check_room(call, len(connection.takers), "claims and streams")
    stream = WorkStream(connection, call.request_id, want.node.encode(), want.max, want.lease_ms or 0)
    connection.takers[call.request_id] = stream
    lease_ms = want.lease_ms or service.topic.config.lease_ms
    call.answer({"topic_id": service.topic.id, "max": want.max, "lease_ms": lease_ms})
    service.work(stream)


@operation(StopWork)
def stop_work(call: Call, want: StopWork) -> None:
    stream = call.connection.takers.get(want.work)
    if not isinstance(stream, WorkStream):
        raise InvalidRequest(f"request {want.work} of this connection is no WORK")
    call.answer({"released": stream.stop(release=want.release)})


@operation(QueueState)
def queue_state(call: Call, want: QueueState) -> None:
    call.answer(asking.state(call.shard.queues.named(want.topic)))


@operation(QueuePeek)
def queue_peek(call: Call, want: QueuePeek) -> None:
    service = call.shard.queues.named(want.topic)
    rows, following = asking.peek(service, want.state, want.from_seq, want.limit)
    frames = b""
    for at, row in enumerate(rows):
        found = call.shard.reader.fetch(service.topic, row["seq"] - 1, 1, 1, NO_FILTER)
        frames += b"".join([bytes(part) for part in found.parts])
        if len(frames) > limits.FETCH_BYTES_MAX and at + 1 < len(rows):
            rows, following = rows[: at + 1], int(row["seq"])
            break
    call.answer({"topic_id": service.topic.id, "jobs": rows, "frames": frames, "next": following})


@operation(QueueWhy)
def queue_why(call: Call, want: QueueWhy) -> None:
    call.answer(asking.why(call.shard.queues.named(want.topic), want.seq))


@operation(SteerJobs)
def steer(call: Call, want: SteerJobs) -> None:
    steering.steer(call.shard.queues.named(want.topic), want, call.done)


@operation(PauseQueue)
def pause(call: Call, want: PauseQueue) -> None:
    service = call.shard.queues.named(want.topic)
    _stop(call, service, {"pause": ["user", want.reason, call.shard.place.clock.now_ms()]})


@operation(ResumeQueue)
def resume(call: Call, want: ResumeQueue) -> None:
    service = call.shard.queues.named(want.topic)
    service.recent.clear()
    _stop(call, service, {"pause": None, "drain": None})


@operation(DrainQueue)
def drain(call: Call, want: DrainQueue) -> None:
    service = call.shard.queues.named(want.topic)
    _stop(call, service, {"drain": ["user", want.reason, call.shard.place.clock.now_ms()]})


def _stop(call: Call, service: QueueService, body: dict[str, Any]) -> None:
    topic, jobs = service.topic, service.jobs

    def applied() -> None:
        paused = None if jobs.paused is None else jobs.paused._asdict()
        call.answer({"topic_id": topic.id, "paused": paused, "draining": jobs.draining is not None})
        call.shard.agenda.moved(topic)

    _change(call, service, body, applied)


def _change(call: Call, service: QueueService, body: dict[str, Any], then: Callable[[], None]) -> None:
    """Through the log; `then` answers."""
    topic = service.topic
    body["at"] = call.shard.place.clock.now_ms()

    def applied() -> None:
        service.jobs.replay(FrameType.LEASE, body, 0)
        then()

    call.shard.log.change(
        topic,
        FrameType.LEASE,
        body,
        seq=topic.seqs.head,
        need=topic.policy.change_need,
        applied=applied,
        refused=call.refuse,
        numbered=True,
    )


@operation(Redrive)
def redrive(call: Call, want: Redrive) -> None:
    topic = call.shard.catalog.get(want.topic)
    call.shard.retention.expire(topic)

    async def run() -> None:
        try:
            answer = await call.shard.redriving.run(topic, want)
        except TopicdError as exc:
            call.refuse(exc)
        except Exception:
            log.exception("redrive failed")
            call.refuse(Internal("the request failed inside the daemon; its log says why"))
        else:
            call.answer(answer)

    call.shard.burials.spawn(run())


# ---- schedules ----


@operation(AddCron)
def add_cron(call: Call, want: AddCron) -> None:
    service = call.shard.queues.named(want.topic)
    jobs, now = service.jobs, call.shard.place.clock.now_ms()
    given: Any = want.data
    data = given.encode() if isinstance(given, str) else given
    if not isinstance(data, bytes) or len(data) > CRON_DATA_MAX:
        raise InvalidRequest(f"data of a schedule is at most {CRON_DATA_MAX} bytes")
    next_ms = schedule.parse(want.schedule, want.timezone).next_after(now)
    created = want.name not in jobs.crons
    if created and len(jobs.crons) >= CRONS_MAX:
        raise Throttled(f"{CRONS_MAX} schedules exist already", limit="schedules", retry_after_ms=1_000)
    fields = (want.schedule, want.timezone, data, want.tag, want.priority, want.group)
    cron = Cron(want.name, *fields, next_ms or now, 0)

    def applied() -> None:
        service.wake()
        call.answer({"topic_id": service.topic.id, "created": created, **_schedule(cron)})

    _change(call, service, {"cron": cron.to_row()}, applied)


@operation(RemoveCron)
def remove_cron(call: Call, want: RemoveCron) -> None:
    service = call.shard.queues.named(want.topic)
    known = want.name in service.jobs.crons

    def applied() -> None:
        call.answer({"topic_id": service.topic.id, "removed": known})

    if known:
        _change(call, service, {"uncron": want.name}, applied)
    else:
        applied()


@operation(ListCron)
def list_cron(call: Call, want: ListCron) -> None:
    service = call.shard.queues.named(want.topic)
    service.look()
    crons = sorted(service.jobs.crons.values())
    call.answer({"topic_id": service.topic.id, "schedules": [_schedule(cron) for cron in crons]})


def _schedule(cron: Cron) -> dict[str, Any]:
    fields = cron._asdict()
    next_ts, last_ts = fields.pop("next_ms"), fields.pop("last_ms")
    return {**fields, "next_ts": next_ts, "last_ts": last_ts or None}
