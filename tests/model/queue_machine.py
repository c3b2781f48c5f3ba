"""Random histories of a queue: the shards' own code on a disk in memory, against the model. Kills leave the disk as it
was; the clock moves when the history says so.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.faults.machine import Machine, Wire
from tests.support.jobs import ack_body, claim_body, parse_acked, parse_claimed, put_body
from tests.support.queuemodel import QueueModel
from tests.support.served import Served
from tests.unit.delivery.kit import make_disk
from topicd.errors import Conflict
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import APPENDED, FLAG_CONFLICT, FLAG_DONE, FLAG_OPTIONS
from topicd.model import TopicConfig
from topicd.shards.delivery.sessions.session import Session

QUEUE, DEAD = "jobs", "jobs.dead"
LEASE_MS = 1_000
CONFIGS = {
    "max_deliveries": st.sampled_from((0, 1, 2, 3)),
    "dead_letter": st.sampled_from((None, DEAD)),
    "leases_durable": st.booleans(),
    "max_in_flight": st.sampled_from((0, 0, 3)),
    "group_max_in_flight": st.sampled_from((0, 0, 1, 2)),
    "durability": st.sampled_from(("disk", "fsync")),
}
config_fields = st.fixed_dictionaries({}, optional=CONFIGS)
groups = st.sampled_from(("", "", "a", "b"))
priorities = st.sampled_from((4, 4, 4, 0, 9))


class QueueMachine(RuleBasedStateMachine):
    steps = 0

    def __init__(self) -> None:
        super().__init__()
        self.disk = make_disk()
        self.machine = self._open(None)
        self.stream: Wire | None = None

    def _open(self, previous: Machine | None) -> Machine:
        machine = Machine(self.disk, previous=previous, segment_max_records=5).open()
        parts = machine.deliveries[0]

        def own() -> asyncio.BaseProtocol:
            session = Session(parts)
            session.trusted = True
            return Served(session)

        parts.relay.own_session = own
        parts.queues.start()
        machine.settle()
        return machine

    def teardown(self) -> None:
        try:
            if hasattr(self, "model") and not isinstance(sys.exc_info()[1], Exception):
                self._audit()
        finally:
            self.machine.close()

    @initialize(fields=config_fields)
    def configure_first(self, fields: dict[str, Any]) -> None:
        config = {"type": "queue", "lease_ms": LEASE_MS, "backoff_ms": 0, **fields}
        self.topic_id = self.machine.configure(QUEUE, **config)
        self.model = QueueModel(TopicConfig.from_fields(config).to_fields(), self.machine.clock.now_ms())

    # ---- jobs come ----

    @rule(
        count=st.integers(1, 4),
        options=st.fixed_dictionaries(
            {}, optional={"priority": priorities, "group": groups, "delay_ms": st.sampled_from((1, 500, 3_000))}
        ),
    )
    def put(self, count: int, options: dict[str, Any]) -> None:
        self._put(count, options)

    @rule(
        key=st.sampled_from(("k", "l")),
        on_conflict=st.sampled_from(("drop", "replace", "reschedule")),
        until=st.sampled_from(("done", "start")),
        delay=st.sampled_from((0, 700)),
    )
    def put_unique(self, key: str, on_conflict: str, until: str, delay: int) -> None:
        options = {"unique": key, "on_conflict": on_conflict, "until": until}
        self._put(1, {**options, "delay_ms": delay} if delay else options)

    def _put(self, count: int, options: dict[str, Any]) -> None:
        wire = self.machine.wire_of(QUEUE)
        body = put_body(self.topic_id, [b"x"] * count, [[0, count, options]])
        request = wire.send(Op.APPEND, body, FLAG_OPTIONS)
        if self.model.draining:
            try:
                wire.answer(request)
            except Conflict:
                return
            raise AssertionError("a queue that is drained took a job")
        flags, answer = wire.answer(request)
        found = ("conflict" if flags & FLAG_CONFLICT else "stored", APPENDED.unpack_from(answer)[0])
        assert found == self.model.put(count, **options)

    # ---- jobs go ----

    @rule(most=st.integers(1, 6), lease_ms=st.sampled_from((0, 0, 5_000)))
    def claim(self, most: int, lease_ms: int) -> None:
        wire = self.machine.wire_of(QUEUE)
        body = claim_body(self.topic_id, most, lease_ms=lease_ms)
        claimed = parse_claimed(wire.answer(wire.send(Op.CLAIM, body))[1])
        self._taken(claimed.jobs, most, "claim", lease_ms or LEASE_MS)

    @rule(data=st.data(), most=st.integers(1, 4), stale=st.booleans())
    def claim_after(self, data: st.DataObject, most: int, stale: bool) -> None:
        """Finishes some and claims others with one request."""
        rows = [(job.seq, job.lease) for job in self._some_held(data)]
        rows += [(seq, lease + 1) for seq, lease in rows[:1]] if stale else []
        wire = self.machine.wire_of(QUEUE)
        flags, answer = wire.answer(wire.send(Op.CLAIM, claim_body(self.topic_id, most, done=rows), FLAG_DONE))
        found = parse_claimed(answer, flags)
        acked, skipped = self.model.ack(rows)
        assert (found.acked, list(found.skipped)) == (len(acked), skipped)
        self._taken(found.jobs, most, "claim", LEASE_MS)

    def _taken(self, jobs: list[Any], wanted: int, by: str, lease_ms: int) -> None:
        seqs, leases = [job.seq for job in jobs], [job.lease for job in jobs]
        self.model.check(seqs, leases, [job.deliveries for job in jobs], wanted)
        assert all(job.deadline == self.model.now + lease_ms for job in jobs)
        self.model.held(seqs, leases, [job.deadline for job in jobs], by)

    @precondition(lambda self: self.stream is None)
    @rule(most=st.integers(1, 3))
    def work(self, most: int) -> None:
        self.stream = Wire(self.machine, self.machine.deliveries[0])
        self.stream.ask(Op.WORK, {"topic": QUEUE, "node": "s", "max": most})
        self.model.stream_max = most

    @precondition(lambda self: self.stream is not None)
    @rule()
    def end_stream(self) -> None:
        assert self.stream is not None
        self._pushed()
        self.stream._session.connection_lost(None)
        self.stream.close()
        self.stream, self.model.stream_max = None, 0
        self.model.release_stream()
        self.machine.settle()

    def _pushed(self) -> None:
        """Whatever came on the stream since the last look."""
        if self.stream is None:
            return
        self.machine.settle()
        jobs = [job for body in self.stream.take_jobs() for job in parse_claimed(body).jobs]
        wanted = self.model.stream_max - sum(job.by == "stream" for job in self.model.of("held"))
        self._taken(jobs, wanted, "stream", LEASE_MS)

    @rule(data=st.data(), stale=st.booleans())
    def ack(self, data: st.DataObject, stale: bool) -> None:
        rows = [(job.seq, job.lease) for job in self._some_held(data)]
        if stale:
            rows += [(seq, lease + 1) for seq, lease in rows[:1]] + [(999, 1)]
        wire = self.machine.wire_of(QUEUE)
        found = parse_acked(wire.answer(wire.send(Op.ACK, ack_body(self.topic_id, rows)))[1])
        acked, skipped = self.model.ack(rows)
        assert (found.acked, found.skipped) == (len(acked), skipped)

    @rule(
        data=st.data(),
        kind=st.sampled_from(("release", "fail", "dead")),
        delay=st.sampled_from((0, 0, 400)),
        reason=st.sampled_from(("", "bad")),
    )
    def nack(self, data: st.DataObject, kind: str, delay: int, reason: str) -> None:
        if kind == "dead" and not self.model.config["dead_letter"]:
            return
        jobs = self._some_held(data)
        fields = {"seqs": [job.seq for job in jobs], "leases": [job.lease for job in jobs]}
        answer = self.machine.ask(QUEUE, Op.NACK, **fields, kind=kind, delay_ms=delay, reason=reason)
        assert (answer["nacked"], answer["skipped"]) == (len(jobs), [])
        for job in jobs:
            self.model.nack(job.seq, kind, delay, reason)

    @rule(data=st.data(), lease_ms=st.sampled_from((100, 9_000)))
    def extend(self, data: st.DataObject, lease_ms: int) -> None:
        jobs = self._some_held(data)
        fields = {"seqs": [job.seq for job in jobs], "leases": [job.lease for job in jobs]}
        answer = self.machine.ask(QUEUE, Op.EXTEND, **fields, lease_ms=lease_ms)
        assert answer["extended"] == len(jobs)
        for job in jobs:
            job.deadline = self.model.now + lease_ms

    def _some_held(self, data: st.DataObject) -> list[Any]:
        self._pushed()
        held = self.model.of("held")
        return data.draw(st.lists(st.sampled_from(held), unique_by=lambda job: job.seq, max_size=4)) if held else []

    # ---- around them ----

    @rule(ms=st.sampled_from((1, 300, 1_000, 1_001, 6_000)))
    def advance(self, ms: int) -> None:
        self._pushed()
        self.machine.clock.advance(ms)
        self.model.sweep(self.machine.clock.now_ms())
        for parts in self.machine.deliveries.values():
            parts.deadlines.run()

    @rule(fields=config_fields)
    def configure(self, fields: dict[str, Any]) -> None:
        self._pushed()
        if fields.get("leases_durable", self.model.config["leases_durable"]) != self.model.config["leases_durable"]:
            fields = {**fields, "leases_durable": self.model.config["leases_durable"]}
        self.machine.configure(QUEUE, **fields)
        self.model.config.update(fields)

    @rule(op=st.sampled_from((Op.QUEUE_PAUSE, Op.QUEUE_RESUME, Op.QUEUE_RESUME, Op.QUEUE_DRAIN)))
    def stop_or_go(self, op: Op) -> None:
        self._pushed()
        self.machine.ask(QUEUE, op)
        if op is Op.QUEUE_RESUME:
            self.model.paused = self.model.draining = False
        self.model.paused = self.model.paused or op is Op.QUEUE_PAUSE
        self.model.draining = self.model.draining or op is Op.QUEUE_DRAIN

    @rule(snapshot=st.booleans())
    def store(self, snapshot: bool) -> None:
        self.machine.snapshot() if snapshot else self.machine.checkpoint()

    @rule()
    def kill(self) -> None:
        """Every process, and a start from what is on the disk."""
        self._pushed()
        if self.stream is not None:
            self.stream.close()
            self.stream = None
        before = self.machine
        before.settle()
        before.deliveries[0].relay.close()
        before.wait(asyncio.sleep(0))
        before.abandon()
        self.model.killed()
        self.machine = self._open(before)
        before.close()
        self.model.sweep(self.machine.clock.now_ms())
        rows = {row["seq"]: row for row in self._peek()}
        self.model.adopt(rows)

    # ---- what must hold ----

    def _peek(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.machine.ask(QUEUE, Op.QUEUE_PEEK, limit=1_000)["jobs"]
        return rows

    @invariant()
    def counters_agree(self) -> None:
        if not hasattr(self, "model"):
            return
        type(self).steps += 1
        self._pushed()
        state = self.machine.ask(QUEUE, Op.QUEUE_STATE)
        names = {"ready": "ready", "in_flight": "held", "delayed": "delayed"}
        wanted = {name: len(self.model.of(kind)) for name, kind in names.items()}
        found = {name: state[name] for name in names}
        assert found == wanted, f"daemon {found}, model {wanted}"
        assert (state["acked"], state["failed"]) == (self.model.acked, self.model.failed)
        if state["dead_lettered"] != len(self.model.buried):
            self.machine.settle()  # to the dead letters first, then out of here
            state = self.machine.ask(QUEUE, Op.QUEUE_STATE)
        assert state["dead_lettered"] == len(self.model.buried)

    def _audit(self) -> None:
        self._pushed()
        states = {"held": "in_flight"}
        wanted = {job.seq: states.get(job.state, job.state) for job in self.model.jobs.values() if job.live}
        assert {row["seq"]: row["state"] for row in self._peek()} == wanted
        assert len(self.machine.read(QUEUE)) == len(wanted)
        letters = len(self.machine.read(DEAD)) if DEAD in self.machine.topics() else 0
        assert letters == len(self.model.buried), "each dead job is in the dead letters, once"


def run_histories(examples: int, length: int, number: int, *, shrink: bool = True) -> int:
    """How many steps were compared."""
    QueueMachine.steps = 0
    phases = [Phase.generate, Phase.shrink] if shrink else [Phase.generate]
    chosen = settings(
        max_examples=examples,
        stateful_step_count=length,
        deadline=None,
        phases=phases,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(QueueMachine), settings=chosen)  # type: ignore[arg-type]
    return QueueMachine.steps
