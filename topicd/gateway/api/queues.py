"""Jobs: claimed, finished, given back, kept longer, pushed. Contract: docs/http.md."""

from __future__ import annotations

import asyncio
import struct
import time
from typing import Any

import msgspec

from topicd.errors import NotAQueue, TopicdError, TopicNotFound
from topicd.gateway import errors, schemas
from topicd.gateway.api.topics import known_name
from topicd.gateway.endpoints import Call, endpoint
from topicd.gateway.jobs import Claimed, checked_node, leases_of
from topicd.gateway.records_json import compact
from topicd.gateway.schemas import clamp
from topicd.gateway.sse import RETRY, EventStream, error_frame, frame
from topicd.gateway.web.messages import Reply, consumed
from topicd.gateway.working import Employment, Held
from topicd.ipc.protocol.messages import Extend, Nack, Op, QueueState, Work
from topicd.ipc.protocol.retry import Backoff
from topicd.ipc.protocol.wire import ACK, ACKED, CLAIM, LEASED
from topicd.limits import CLAIM_MAX, DELAY_MS_MAX, KIB, LEASE_MS_MAX, LEASE_MS_MIN, MIB

_UNREAD = 64 * MIB  # bytes of jobs that a worker does not take

DONE = {200: "done", 404: "no such topic", 409: "not a queue"}
_U64 = struct.Struct("<Q")
_text = msgspec.json.encode


def _lease(given: int | None) -> int:
    """0: the queue's."""
    return 0 if given is None else clamp(given, LEASE_MS_MIN, LEASE_MS_MAX)


@endpoint(
    "POST",
    "/v0/topics/{topic}/claim",
    "read",
    "write",
    body=schemas.Claim,
    answers=DONE,
)
async def claim(call: Call, topic: str, body: schemas.Claim) -> Reply:
    """Take jobs."""
    node = checked_node(body.node).encode()
    known_name(topic)
    most = clamp(body.max, 1, CLAIM_MAX)
    await call.room(min(most, 64) * KIB)
    raw = await call.service.shards.ask_raw(
        topic, Op.CLAIM, lambda id: CLAIM.pack(id, most, _lease(body.lease_ms), 0, len(node)) + node, bulk=True
    )
    found = Claimed(raw)
    rest = {"count": len(found.jobs), "ready": found.ready, "performance": {"server_total_ms": call.elapsed_ms()}}
    jobs = b",".join([job.text() for job in found.jobs])
    return Reply(200, b'{"topic":%b,"claimed":[%b],%b' % (_text(topic), jobs, _text(rest)[1:]))


@endpoint(
    "POST",
    "/v0/topics/{topic}/ack",
    "write",
    body=schemas.Ack,
    answers=DONE,
)
async def ack(call: Call, topic: str, body: schemas.Ack) -> Reply:
    """Finish jobs."""
    node, leases = checked_node(body.node).encode(), leases_of(body.seqs, body.lease_ids)
    known_name(topic)
    began = time.perf_counter()
    told = await finish(call, topic, body.seqs, leases, node)
    took = round((time.perf_counter() - began) * 1000, 3)
    synced = took if told["acked"] and call.service.shards.is_synced(topic) else 0.0
    return call.answer({"topic": topic, **told}, fsync_ms=synced)


async def finish(call: Call, topic: str, seqs: list[int], leases: list[int], node: bytes = b"") -> dict[str, Any]:
    """Acknowledges what is held under these numbers, or by this node: acked, skipped, ready, in_flight."""
    rows = b"".join(map(LEASED.pack, seqs, leases))
    raw = await call.service.shards.ask_raw(topic, Op.ACK, lambda id: ACK.pack(id, len(seqs), len(node)) + node + rows)
    _, ready, in_flight, acked, skipped = ACKED.unpack_from(raw)
    left = [seq for (seq,) in _U64.iter_unpack(raw[ACKED.size : ACKED.size + 8 * skipped])]
    call.service.workers.settled(topic, set(seqs).difference(left))
    return {"acked": acked, "skipped": left, "ready": ready, "in_flight": in_flight}


@endpoint(
    "POST",
    "/v0/topics/{topic}/nack",
    "write",
    body=schemas.Nack,
    answers=DONE,
)
async def nack(call: Call, topic: str, body: schemas.Nack) -> Reply:
    """Give jobs back."""
    held, node = _held(body), checked_node(body.node)
    known_name(topic)
    delay = min(body.delay_ms, DELAY_MS_MAX)
    if held:
        seqs, leases = zip(*held, strict=True)
        want = Nack(topic=topic, seqs=seqs, leases=leases, node=node, kind="fail", delay_ms=delay)
        found = await call.service.shards.ask(topic, want)
    else:
        found = {"nacked": 0, "skipped": [], **await counters(call, topic)}
    call.service.workers.settled(topic, set(body.seqs).difference(found["skipped"]))
    told = {"topic": topic, "nacked": found["nacked"], "skipped": _skipped(body, found)}
    return call.answer({**told, "ready": found["ready"], "in_flight": found["in_flight"]})


@endpoint(
    "POST",
    "/v0/topics/{topic}/extend",
    "write",
    body=schemas.Extend,
    answers=DONE,
)
async def extend(call: Call, topic: str, body: schemas.Extend) -> Reply:
    """Keep jobs longer."""
    held, node = _held(body), checked_node(body.node)
    known_name(topic)
    if held:
        seqs, leases = zip(*held, strict=True)
        want = Extend(topic=topic, seqs=seqs, leases=leases, node=node, lease_ms=_lease(body.lease_ms))
        found = await call.service.shards.ask(topic, want)
    else:
        await counters(call, topic)  # is it a queue at all?
        found = {"extended": 0, "skipped": [], "deadlines": []}
    deadlines = {str(seq): deadline for seq, deadline in found["deadlines"]}
    told = {"topic": topic, "extended": found["extended"], "skipped": _skipped(body, found), "deadlines": deadlines}
    return call.answer(told)


def _held(body: schemas.Ack) -> list[tuple[int, int]]:
    """Seqs and leases; without the seqs that no record has."""
    leases = leases_of(body.seqs, body.lease_ids)
    return [(seq, lease) for seq, lease in zip(body.seqs, leases, strict=True) if seq]


def _skipped(body: schemas.Ack, found: dict[str, Any]) -> list[int]:
    return [*(seq for seq in body.seqs if not seq), *found["skipped"]]


async def counters(call: Call, topic: str) -> dict[str, Any]:
    """ready, in_flight and dead_lettered of a queue."""
    state = await call.service.shards.ask(topic, QueueState(topic=topic))
    return {name: state[name] for name in ("ready", "in_flight", "dead_lettered")}


# ---- push ----


@endpoint(
    "GET",
    "/v0/topics/{topic}/work",
    "read",
    "write",
    kind="events",
    answers={200: "jobs", 400: "no node", 404: "no such topic", 409: "not a queue"},
    query={
        "node": "the worker's name",
        "max": "jobs it holds at most, 1 to 1000, default 1",
        "lease_ms": "how long it holds one; the queue's by default",
        "token": "a key, instead of the header",
    },
)
async def work(call: Call, topic: str) -> Reply | None:
    """Jobs as a stream, while fewer than max are held."""
    node = checked_node(call.params.get("node"))
    known_name(topic)
    lease = call.number("lease_ms", -1)
    want = Work(
        topic=topic,
        node=node,
        max=clamp(call.number("max", 1), 1, CLAIM_MAX),
        lease_ms=None if lease < 0 else _lease(lease),
    )
    stream = WorkStream(call, want)
    await stream.begin()
    try:
        with call.service.usage.stream(call.key):
            await stream.run(call.events())
    finally:
        stream.end()
    return None


class WorkStream:
    """One connection that works."""

    def __init__(self, call: Call, want: Work) -> None:
        self._workers = call.service.workers
        self._want = want
        self._name = _text(want.topic)
        self._held = Held(want.topic, want.node, want.max)
        self._employment: Employment | None = None
        self._events: EventStream | None = None
        self._early: list[Claimed] = []  # handed out before the stream was open
        self._again: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._employment = await self._workers.begin(self._want, self)
        self._workers.keep(self._held)

    async def run(self, events: EventStream) -> None:
        self._events = events
        events.topics = lambda: [self._want.topic]
        events.write(RETRY)
        events.heartbeat()
        early, self._early = self._early, []
        for claimed in early:
            self._write(events, claimed)
        await events.until_over()

    def end(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._workers.drop(self._held)
        if self._employment is not None:
            self._employment.end(self._held)

    # ---- as Worker ----

    def handed(self, claimed: Claimed) -> None:
        self._held.add(claimed)
        events = self._events
        if events is None:
            self._early.append(claimed)
        else:
            self._write(events, claimed)

    def _write(self, events: EventStream, claimed: Claimed) -> None:
        for job in claimed.jobs:
            events.write(frame(b"job", compact(job.text(self._name)), b"%d" % job.seq))
        if events.buffered > _UNREAD:
            # It would hold jobs that it never saw; they are given back when it is gone.
            events.end(error_frame(503, "reader_stuck", retry_after_ms=2_000, topics=[self._want.topic]))
            events.abort()
        elif not events.has_room():
            events.blocked()

    def lost(self, why: TopicdError) -> None:
        if self._employment is not None:
            self._employment.end(self._held)
            self._employment = None
        if self._events is not None and not self._events.gone.done() and self._again is None:
            self._again = asyncio.get_running_loop().create_task(self._begin_again(why))
            self._again.add_done_callback(consumed)

    async def _begin_again(self, why: TopicdError) -> None:
        """The shard was away: it has released what was held, and hands out anew."""
        backoff, events = Backoff(longest=0.25), self._events
        while events is not None:
            if isinstance(why, NotAQueue | TopicNotFound):
                events.end(error_frame(409, "not_a_queue", topics=[self._want.topic]))
                break
            delay = backoff.next()
            if events.has_room():
                told = errors.of(why, self._want.topic).code
                after = max(1, int(delay * 1000))
                events.write(error_frame(429, told, retry_after_ms=after, topics=[self._want.topic]))
            await asyncio.sleep(delay)
            try:
                await self.begin()
                break
            except TopicdError as exc:
                why = exc
        self._again = None
