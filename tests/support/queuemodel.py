"""A queue as its users may think of it: a list of jobs, each in one state. Slow, obvious, and written without a look at
the daemon's own structures. Where the daemon has a choice (whose turn it is among groups), `check` says what any choice
must respect.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

STARVING_MS = 5_000


@dataclass
class ModelJob:
    seq: int
    priority: int = 4
    group: str = ""
    key: str = ""  # that it holds
    asked: str = ""  # that it was put under
    until: str = "done"
    state: str = "ready"  # ready, delayed, held, gone, dead
    ready_at: int = 0
    came_back: int | None = None  # since when it is ready again; None: it was never taken
    deliveries: int = 0  # that ended and count
    logged: int = 0  # of these, what the log speaks of
    lease: int = 0
    deadline: int = 0
    by: str = ""  # claim or stream
    reason: str = ""
    loose: bool = False  # there was a kill since it became ready: its place among its kind is anybody's guess

    @property
    def live(self) -> bool:
        return self.state in ("ready", "delayed", "held")


@dataclass
class QueueModel:
    config: dict[str, Any]
    now: int
    jobs: dict[int, ModelJob] = field(default_factory=dict)
    head: int = 0
    acked: int = 0
    failed: int = 0
    paused: bool = False
    draining: bool = False
    stream_max: int = 0  # 0: there is none
    newest_lease: int = 0
    passed: dict[int, int] = field(default_factory=dict)  # by priority: since when others went before it
    buried: list[int] = field(default_factory=list)

    # ---- questions ----

    def of(self, state: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state == state]

    def lane(self, job: ModelJob) -> list[ModelJob]:
        """Those of its kind that are ready, in their order."""
        alike = [one for one in self.of("ready") if (one.priority, one.group) == (job.priority, job.group)]
        return sorted(
            alike, key=lambda one: (0, one.came_back, one.seq) if one.came_back is not None else (1, one.seq, 0)
        )

    def holder(self, key: str) -> ModelJob | None:
        return next((job for job in self.jobs.values() if job.key == key and job.live), None)

    def group_room(self, group: str) -> int:
        most = self.config["group_max_in_flight"]
        if not most or not group:
            return 1 << 30
        return max(0, most - sum(job.group == group for job in self.of("held")))

    def may_go(self, most: int) -> int:
        """How many would be handed out to somebody who wants so many."""
        if self.paused:
            return 0
        limit = self.config["max_in_flight"]
        if limit:
            most = min(most, limit - len(self.of("held")))
        groups = {job.group for job in self.of("ready")}
        supply = sum(min(self.group_room(g), sum(job.group == g for job in self.of("ready"))) for g in groups)
        return max(0, min(most, supply))

    # ---- time ----

    def sweep(self, now: int) -> None:
        """As the clock says now, in the order in which it happened."""
        self.now = now
        for job in sorted(self.of("held"), key=lambda one: one.deadline):
            if now > job.deadline:
                job.deliveries += 1
                self._return_or_bury(job, job.deadline)
        for job in self.of("delayed"):
            if job.ready_at <= now:
                job.state, job.came_back = "ready", job.ready_at

    def _return_or_bury(self, job: ModelJob, since: int) -> None:
        if self.config["dead_letter"] and 0 < self.config["max_deliveries"] <= job.deliveries:
            self._bury(job)
        else:
            job.state, job.came_back = "ready", since

    def _bury(self, job: ModelJob) -> None:
        job.state = "dead"
        self.buried.append(job.seq)

    # ---- what is done ----

    def put(self, count: int, **options: Any) -> tuple[str, int]:
        """(stored or conflict, first seq)"""
        key = options.get("unique", "")
        before = self.holder(key) if key else None
        ready_at = self.now + options.get("delay_ms", 0) if options.get("delay_ms") else 0
        if before is not None:
            waits = before.state in ("ready", "delayed")
            if options.get("on_conflict") == "replace" and waits:
                before.state = "gone"
            else:
                if options.get("on_conflict") == "reschedule" and waits:
                    at = ready_at or self.now
                    before.ready_at = at
                    before.state, before.came_back = ("delayed", None) if at > self.now else ("ready", at)
                return "conflict", before.seq
        first = self.head + 1
        for _ in range(count):
            self.head += 1
            job = ModelJob(
                self.head, options.get("priority", 4), options.get("group", ""), key, key, options.get("until", "done")
            )
            job.ready_at = ready_at
            job.state = "delayed" if ready_at else "ready"
            self.jobs[self.head] = job
        return "stored", first

    def check(self, seqs: list[int], leases: list[int], deliveries: list[int], wanted: int) -> None:
        """These were handed out to somebody who wanted so many."""
        assert len(seqs) == self.may_go(wanted), f"{len(seqs)} of {wanted} were handed out, not {self.may_go(wanted)}"
        lanes = {(job.priority, job.group): self.lane(job) for job in self.of("ready")}
        rooms = {group: self.group_room(group) for _, group in lanes}
        starved = [p for p, since in self.passed.items() if self.now - since >= STARVING_MS]
        for seq, lease, tries in zip(seqs, leases, deliveries, strict=True):
            job = self.jobs[seq]
            assert job.state == "ready", f"job {seq} is {job.state} and was handed out"
            lane = lanes[(job.priority, job.group)]
            first = next((one for one in lane if not one.loose), None)
            assert job.loose or first is job, f"job {seq} went before {first and first.seq} of its kind"
            lane.remove(job)
            rooms[job.group] -= 1
            higher = [p for (p, g), rest in lanes.items() if rest and p > job.priority and rooms[g] > 0]
            if higher and starved:
                starved.pop()
            else:
                assert not higher, f"job {seq} of priority {job.priority} went before one of {max(higher)}"
            assert lease > self.newest_lease, f"lease {lease} is not larger than {self.newest_lease}"
            self.newest_lease = lease
            assert tries == job.deliveries + 1, f"job {seq}: {tries} deliveries, expected {job.deliveries + 1}"
        if seqs:
            self._note_passed(seqs)

    def _note_passed(self, seqs: list[int]) -> None:
        served = {self.jobs[seq].priority for seq in seqs}
        for priority in served:
            self.passed.pop(priority, None)
        for job in self.of("ready"):
            if job.seq not in seqs and job.priority < max(served):
                self.passed.setdefault(job.priority, self.now)

    def held(self, seqs: list[int], leases: list[int], deadlines: list[int], by: str) -> None:
        for seq, lease, deadline in zip(seqs, leases, deadlines, strict=True):
            job = self.jobs[seq]
            job.state, job.lease, job.deadline, job.by = "held", lease, deadline, by
            job.loose = False
            if job.key and job.until == "start":
                job.key = ""

    def ack(self, rows: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
        """(acked, skipped)"""
        acked: list[int] = []
        skipped: list[int] = []
        for seq, lease in rows:
            job = self.jobs.get(seq)
            if job is not None and job.state == "held" and job.lease == lease:
                job.state = "gone"
                acked.append(seq)
            else:
                skipped.append(seq)
        self.acked += len(acked)
        return acked, skipped

    def nack(self, seq: int, kind: str, delay_ms: int, reason: str) -> None:
        """Of a job that is held."""
        job = self.jobs[seq]
        job.state, job.came_back = "ready", self.now
        if kind != "release":
            job.deliveries += 1
            job.logged = job.deliveries
            self.failed += 1
            job.reason = reason or job.reason
            if kind == "dead":
                self._bury(job)
            else:
                self._return_or_bury(job, self.now)
        elif reason:
            job.logged, job.reason = job.deliveries, reason
        if delay_ms and job.state == "ready":
            job.state, job.ready_at = "delayed", self.now + delay_ms
            if kind == "release":
                job.logged = job.deliveries

    def release_stream(self) -> None:
        for job in self.of("held"):
            if job.by == "stream":
                job.state, job.came_back = "ready", self.now

    def killed(self) -> None:
        """Leases are over unless they are kept; the streams are."""
        self.stream_max = 0
        self.passed.clear()
        for job in self.of("held"):
            if not self.config["leases_durable"]:
                job.state, job.came_back = "ready", None
            job.by = "claim"

    def adopt(self, rows: dict[int, dict[str, Any]]) -> None:
        """After a kill: what no log speaks of may be forgotten; what it does may not."""
        for job in self.jobs.values():
            if not job.live:
                continue
            row = rows[job.seq]
            found = row["deliveries"] - (1 if job.state == "held" else 0)
            assert job.logged <= found <= job.deliveries, f"job {job.seq}: {found} of {job.logged} to {job.deliveries}"
            job.deliveries = found
            job.loose = job.state == "ready"
            key = row.get("unique", "")
            if key != job.key:
                # It was handed out, and that is forgotten: what is to start holds its key until it starts.
                assert (job.until, key) == ("start", job.asked) and job.state != "held", f"{row} of {job}"
                job.key = key
