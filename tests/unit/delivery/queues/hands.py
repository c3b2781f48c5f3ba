"""A queue on a desk, and hands that take its jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.jobs import Acked, Claimed, ack_body, claim_body, parse_acked, parse_claimed, put_body
from tests.unit.delivery.desk import Desk, Line, Outcome
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import APPENDED, FLAG_DONE, FLAG_OPTIONS
from topicd.shards.delivery.queues.jobs import Jobs
from topicd.shards.delivery.queues.service import QueueService


class Hands:
    def __init__(self, desk: Desk, name: str = "jobs", **config: Any) -> None:
        self.desk = desk
        self.name = name
        self.topic = desk.topic(name, type="queue", **config)
        self.line = desk.line()

    @property
    def jobs(self) -> Jobs:
        assert self.topic.queue is not None
        return self.topic.queue

    @property
    def service(self) -> QueueService:
        return self.desk.parts.queues.of(self.topic)

    def write(self, count: int) -> list[Outcome]:
        return self.desk.write(self.topic, [b"job"] * count)

    def put(
        self, data: bytes = b"job", *, line: Line | None = None, producer: int = 0, number: int = 0, **options: Any
    ) -> tuple[int, int]:
        """(its first seq, the flags of the answer)"""
        line = line or self.line
        body = put_body(self.topic.id, [data], [[0, 1, options]], producer=producer, number=number)
        answer = line.result(line.send(Op.APPEND, body, FLAG_OPTIONS))
        return APPENDED.unpack_from(answer.body)[0], answer.flags

    def put_many(self, count: int, **options: Any) -> None:
        body = put_body(self.topic.id, [b"job"] * count, [[0, count, options]])
        self.line.result(self.line.send(Op.APPEND, body, FLAG_OPTIONS))

    def claim(self, most: int = 1, *, line: Line | None = None, **how: Any) -> Claimed:
        line = line or self.line
        return parse_claimed(line.result(line.send(Op.CLAIM, claim_body(self.topic.id, most, **how))).body)

    def begin_claim(self, most: int = 1, *, line: Line | None = None, **how: Any) -> int:
        flags = FLAG_DONE if "done" in how else 0
        return (line or self.line).send(Op.CLAIM, claim_body(self.topic.id, most, **how), flags)

    def claimed(self, request_id: int, line: Line | None = None) -> Claimed:
        answer = (line or self.line).result(request_id)
        return parse_claimed(answer.body, answer.flags)

    def claim_after(self, done: Claimed, most: int = 1, **how: Any) -> Claimed:
        """Finishes those, and takes others, with one request."""
        keys = [(job.seq, job.lease) for job in done.jobs]
        return self.claimed(self.begin_claim(most, done=keys, **how))

    def ack(self, rows: Sequence[tuple[int, int]], node: bytes = b"") -> Acked:
        answer = self.line.result(self.line.send(Op.ACK, ack_body(self.topic.id, rows, node)))
        return parse_acked(answer.body)

    def done(self, claimed: Claimed) -> Acked:
        return self.ack([(job.seq, job.lease) for job in claimed.jobs])

    def nack(self, claimed: Claimed, **how: Any) -> dict[str, Any]:
        leases = [job.lease for job in claimed.jobs]
        return self.line.ask(Op.NACK, topic=self.name, seqs=claimed.seqs, leases=leases, **how)

    def work(self, most: int, line: Line | None = None, **how: Any) -> int:
        return (line or self.line).send(Op.WORK, {"topic": self.name, "node": "w", "max": most, **how})

    def pushed(self, line: Line | None = None) -> list[Claimed]:
        return [parse_claimed(answer.body) for answer in (line or self.line).take(Op.JOBS)]

    def state(self) -> dict[str, Any]:
        return self.line.ask(Op.QUEUE_STATE, topic=self.name)

    def why(self, seq: int | None = None) -> dict[str, Any]:
        return self.line.ask(Op.QUEUE_WHY, topic=self.name, seq=seq)

    def ask(self, op: Op, **body: Any) -> dict[str, Any]:
        return self.line.ask(op, topic=self.name, **body)

    def counts(self) -> tuple[int, int, int]:
        """Ready, in flight, delayed."""
        state = self.state()
        return state["ready"], state["in_flight"], state["delayed"]

    def advance(self, ms: int) -> None:
        self.desk.clock.advance(ms)
        self.desk.parts.deadlines.run()
        self.desk.settle()
