"""Queues of the fake daemon: leases, pushes and the answers of the contract over dictionaries, for tests of clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from tests.support.fakelog import FakeTopic
from topicd.errors import Conflict, NotAQueue
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ACK, ACKED, CLAIM, CLAIMED, ENDED, FLAG_DONE, JOB, LEASED, message

if TYPE_CHECKING:
    from tests.support.fakesession import Request, Session


class FakeQueue:
    def __init__(self, topic: FakeTopic) -> None:
        self.topic = topic
        self.options: dict[int, dict[str, Any]] = {}
        self.leases: dict[int, tuple[int, str, int, Any]] = {}  # seq: number, node, deadline, whose push
        self.deliveries: dict[int, int] = {}
        self.reasons: dict[int, str] = {}
        self.delayed: dict[int, int] = {}  # seq: ms
        self.counts = dict.fromkeys(("acked", "failed", "released", "expired", "dead_lettered"), 0)
        self.paused: dict[str, Any] | None = None
        self.draining = False
        self.crons: dict[str, dict[str, Any]] = {}
        self.next_lease = 1

    def published(self, first: int, count: int, options: list[Any], now: int) -> None:
        for index, many, given in options:
            for seq in range(first + index, first + index + many):
                self.options[seq] = given
                when = given.get("ready_at") or (now + given["delay_ms"] if given.get("delay_ms") else 0)
                if when > now:
                    self.delayed[seq] = when

    def holder_of_key(self, key: str) -> int:
        live = {record.seq for record in self.topic.records}
        return next((seq for seq, given in self.options.items() if given.get("unique") == key and seq in live), 0)

    def ready(self, now: int) -> list[int]:
        self.expire(now)
        found = [r.seq for r in self.topic.records if r.seq not in self.leases and self.delayed.get(r.seq, 0) <= now]
        return sorted(found, key=lambda seq: (-self.options.get(seq, {}).get("priority", 4), seq))

    def expire(self, now: int) -> None:
        for seq, (_, _, deadline, _) in list(self.leases.items()):
            if deadline < now:
                del self.leases[seq]
                self.counts["expired"] += 1

    def take(self, most: int, lease_ms: int, node: str, now: int, whose: Any = None, ended: bytes = b"") -> bytes:
        """The body of a claim's answer."""
        chosen = [] if self.paused else self.ready(now)[:most]
        rows = b""
        for seq in chosen:
            deadline = now + (lease_ms or self.topic.config.lease_ms)
            self.leases[seq] = (self.next_lease, node, deadline, whose)
            self.deliveries[seq] = self.deliveries.get(seq, 0) + 1
            rows += JOB.pack(seq, self.next_lease, deadline, self.deliveries[seq])
            self.next_lease += 1
        frames = {record.seq: record.frame for record in self.topic.records}
        head = CLAIMED.pack(self.topic.id, len(self.ready(now)), len(chosen)) + ended
        return head + rows + b"".join(frames[seq] for seq in chosen)

    def held(self, seq: int, lease: int, node: str, now: int) -> bool:
        self.expire(now)
        found = self.leases.get(seq)
        return found is not None and (found[0] == lease if lease else found[1] == node)

    def done(self, seq: int) -> None:
        del self.leases[seq]
        self.topic.records = [record for record in self.topic.records if record.seq != seq]
        self.counts["acked"] += 1

    def release(self, whose: Any) -> int:
        mine = [seq for seq, lease in self.leases.items() if lease[3] is whose]
        for seq in mine:
            del self.leases[seq]
            self.deliveries[seq] -= 1
        return len(mine)

    def state(self, now: int) -> dict[str, Any]:
        ready = self.ready(now)
        return {
            "topic": self.topic.name,
            "topic_id": self.topic.id,
            "ready": len(ready),
            "in_flight": len(self.leases),
            "delayed": sum(when > now for when in self.delayed.values()),
            "kept": 0,
            **self.counts,
            "workers": 0,
            "claims": 0,
            "paused": self.paused,
            "draining": self.draining,
            "oldest_ready_ts": None,
            "priorities": {},
            "groups": 0,
            "unique_keys": 0,
            "config": self.topic.config.to_fields(),
        }

    def line(self, seq: int, now: int) -> dict[str, Any]:
        self.expire(now)
        held = self.leases.get(seq)
        live = any(record.seq == seq for record in self.topic.records)
        state = (
            "gone" if not live else "in_flight" if held else "delayed" if self.delayed.get(seq, 0) > now else "ready"
        )
        line = {"seq": seq, "state": state, "deliveries": self.deliveries.get(seq, 0), "reason": self.reasons.get(seq)}
        if held:
            line |= {"node": held[1], "lease": held[0], "deadline": held[2]}
        return {name: value for name, value in line.items() if value is not None}


class FakeWork:
    """One push stream."""

    def __init__(self, session: Session, request_id: int, queue: FakeQueue, body: dict[str, Any]) -> None:
        self.session = session
        self.id = request_id
        self.queue = queue
        self.body = body
        self.stopped = False

    def pump(self) -> None:
        now = self.session.server.now_ms
        mine = sum(lease[3] is self for lease in self.queue.leases.values())
        room = self.body["max"] - mine
        if self.stopped or room <= 0 or self.queue.paused or not self.queue.ready(now):
            return
        body = self.queue.take(room, self.body.get("lease_ms") or 0, self.body["node"], now, self)
        self.session.transport.write(message(Op.JOBS, self.id, body))


def queue_of(topic: FakeTopic) -> FakeQueue:
    if topic.config.type != "queue":
        raise NotAQueue(f"topic {topic.name!r} is a log")
    if topic.queue is None:
        topic.queue = FakeQueue(topic)
    found: FakeQueue = topic.queue
    return found


# ---- operations; each as in fakesession.HANDLERS ----


def claim(session: Session, request: Request, flags: int) -> bytes:
    topic_id, most, lease_ms, _wait, length = CLAIM.unpack_from(request.body)
    node = request.body[CLAIM.size : CLAIM.size + length].decode()
    queue, now = queue_of(session.server.by_id(topic_id)), session.server.now_ms
    ended = b""
    if flags & FLAG_DONE:
        acked, skipped = finish(queue, request.body[CLAIM.size + length :], node, now)
        ended = ENDED.pack(acked, len(skipped) // 8) + skipped
    body = queue.take(most, lease_ms, node, now, ended=ended)
    return message(Op.CLAIM | 0x80, request.request_id, body, flags & FLAG_DONE)


def finish(queue: FakeQueue, rows: bytes, node: str, now: int) -> tuple[int, bytes]:
    """(how many, the seqs that were skipped)"""
    skipped = b""
    for seq, lease in LEASED.iter_unpack(rows):
        if queue.held(seq, lease, node, now):
            queue.done(seq)
        else:
            skipped += seq.to_bytes(8, "little")
    return (len(rows) - len(skipped) * LEASED.size // 8) // LEASED.size, skipped


def ack(session: Session, request: Request, flags: int) -> bytes:
    topic_id, count, length = ACK.unpack_from(request.body)
    queue, now = queue_of(session.server.by_id(topic_id)), session.server.now_ms
    node = request.body[ACK.size : ACK.size + length].decode()
    rows = request.body[ACK.size + length :]
    assert len(rows) == count * LEASED.size
    acked, skipped = finish(queue, rows, node, now)
    body = ACKED.pack(topic_id, len(queue.ready(now)), len(queue.leases), acked, count - acked) + skipped
    session.server.moved(queue.topic)
    return message(Op.ACK | 0x80, request.request_id, body)


def nack(session: Session, request: Request, flags: int) -> dict[str, Any]:
    from tests.support.fakesession import fields_of

    body = fields_of(request)
    queue, now = queue_of(session._topic(body)), session.server.now_ms
    skipped, dead = [], []
    if body["kind"] == "dead" and not queue.topic.config.dead_letter:
        raise Conflict(f"queue {body['topic']!r} has no dead_letter: a job cannot go there")
    leases = body["leases"] or [0] * len(body["seqs"])
    for seq, lease in zip(body["seqs"], leases, strict=True):
        if not queue.held(seq, lease, body.get("node", ""), now):
            skipped.append(seq)
            continue
        del queue.leases[seq]
        queue.reasons[seq] = body["reason"]
        backoff = queue.topic.config.backoff_ms if body["kind"] == "fail" else 0
        queue.delayed[seq] = now + body.get("delay_ms", backoff)
        if body["kind"] == "release":
            queue.deliveries[seq] -= 1
        queue.counts["released" if body["kind"] == "release" else "failed"] += 1
        if body["kind"] == "dead":
            dead.append(seq)
            queue.counts["dead_lettered"] += 1
            queue.topic.records = [record for record in queue.topic.records if record.seq != seq]
    session.server.moved(queue.topic)
    return {"nacked": len(body["seqs"]) - len(skipped), "skipped": skipped, "dead": dead, "topic_id": queue.topic.id}


def extend(session: Session, request: Request, flags: int) -> dict[str, Any]:
    from tests.support.fakesession import fields_of

    body = fields_of(request)
    queue, now = queue_of(session._topic(body)), session.server.now_ms
    leases = body["leases"] or [0] * len(body["seqs"])
    skipped, deadlines = [], []
    for seq, lease in zip(body["seqs"], leases, strict=True):
        if queue.held(seq, lease, body.get("node", ""), now):
            number, node, _, whose = queue.leases[seq]
            queue.leases[seq] = (number, node, now + body["lease_ms"], whose)
            deadlines.append([seq, now + body["lease_ms"]])
        else:
            skipped.append(seq)
    return {"topic_id": queue.topic.id, "extended": len(deadlines), "skipped": skipped, "deadlines": deadlines}


def work(session: Session, request: Request, flags: int) -> dict[str, Any]:
    from tests.support.fakesession import fields_of

    body = fields_of(request)
    queue = queue_of(session._topic(body))
    session.works[request.request_id] = FakeWork(session, request.request_id, queue, body)
    lease_ms = body.get("lease_ms") or queue.topic.config.lease_ms
    return {"topic_id": queue.topic.id, "max": body["max"], "lease_ms": lease_ms}


def stop_work(session: Session, request: Request, flags: int) -> dict[str, Any]:
    from tests.support.fakesession import fields_of

    body = fields_of(request)
    found = session.works[body["work"]]
    found.stopped = True
    return {"released": found.queue.release(found) if body["release"] else 0}


def looks(session: Session, request: Request, flags: int) -> dict[str, Any]:
    """QUEUE_STATE, QUEUE_PEEK, QUEUE_WHY, QUEUE_PAUSE, QUEUE_RESUME, QUEUE_DRAIN."""
    from tests.support.fakesession import fields_of

    body = fields_of(request)
    queue, now = queue_of(session._topic(body)), session.server.now_ms
    if request.op == Op.QUEUE_STATE:
        return queue.state(now)
    if request.op == Op.QUEUE_PEEK:
        lines = [queue.line(record.seq, now) for record in queue.topic.records]
        frames = b"".join(record.frame for record in queue.topic.records)
        return {"topic_id": queue.topic.id, "jobs": lines, "frames": frames, "next": None}
    if request.op == Op.QUEUE_WHY:
        line = queue.line(body.get("seq") or 1, now)
        return {**line, "because": [f"it is {line['state']}"]}
    if request.op == Op.QUEUE_PAUSE:
        queue.paused = {"by": "user", "reason": body["reason"], "since": now}
    if request.op == Op.QUEUE_RESUME:
        queue.paused, queue.draining = None, False
    if request.op == Op.QUEUE_DRAIN:
        queue.draining = True
    return {"topic_id": queue.topic.id, "paused": queue.paused, "draining": queue.draining}


def crons(session: Session, request: Request, flags: int) -> dict[str, Any]:
    from tests.support.fakesession import fields_of

    body = fields_of(request)
    queue = queue_of(session._topic(body))
    if request.op == Op.CRON_LIST:
        return {"topic_id": queue.topic.id, "schedules": [queue.crons[name] for name in sorted(queue.crons)]}
    if request.op == Op.CRON_REMOVE:
        return {"topic_id": queue.topic.id, "removed": queue.crons.pop(body["name"], None) is not None}
    made = {name: value for name, value in body.items() if name != "topic"} | {"next_ts": 1, "last_ts": None}
    queue.crons[body["name"]] = made
    return {"topic_id": queue.topic.id, "created": True, **made}


def options_of(raw: bytes) -> list[Any]:
    found: list[Any] = msgpack.unpackb(raw)
    return found


HANDLERS = {
    Op.CLAIM: claim,
    Op.ACK: ack,
    Op.NACK: nack,
    Op.EXTEND: extend,
    Op.WORK: work,
    Op.STOP_WORK: stop_work,
    **dict.fromkeys(
        (Op.QUEUE_STATE, Op.QUEUE_PEEK, Op.QUEUE_WHY, Op.QUEUE_PAUSE, Op.QUEUE_RESUME, Op.QUEUE_DRAIN), looks
    ),
    **dict.fromkeys((Op.CRON_ADD, Op.CRON_LIST, Op.CRON_REMOVE), crons),
}
