"""A job in hand, and several that were claimed together: what both faces know of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

from topicd._native.interface import Decoded
from topicd.client.core.jobs import Acked, Claimed, OneClaimed, Row, leased_rows
from topicd.client.core.records import Record
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.wire import LEASED
from topicd.limits import CLAIM_MAX
from topicd.lists import check_list

Then = Sequence[tuple[str, Sequence[Any]]]  # (topic, records) of each topic that a finished job writes to


class HeldJob(Record):
    """`lease` is a number that only grows: whoever writes elsewhere on behalf of the job can be fenced with it.
    `deadline` is in ms; `deliveries` is 1 the first time."""

    __slots__ = ("_holder", "deadline", "deliveries", "held_at", "lease", "lost", "settled")

    lease: int
    deadline: int
    deliveries: int
    held_at: float  # monotonic, when the lease was last known to begin
    lost: bool  # the daemon has said that it is not ours any more
    settled: bool  # finished or given back
    _holder: Any

    @property
    def queue(self) -> str:
        """The name of its queue."""
        return self.topic

    @property
    def key(self) -> tuple[int, int]:
        """(seq, lease): what finishes it."""
        return self.seq, self.lease

    def check_open(self) -> None:
        """Raises InvalidRequest if it was finished or given back."""
        if self.settled:
            raise InvalidRequest(f"job {self.seq} of {self.topic!r} was finished or given back already")

    def __repr__(self) -> str:
        shown = self.data if len(self.data) <= 40 else self.data[:37] + b"..."
        return f"{type(self).__name__}({self.topic}#{self.seq}, {shown!r}, delivery {self.deliveries})"


J = TypeVar("J", bound=HeldJob)


def held_jobs(
    kind: type[J], holder: Any, topic: str, now: float, rows: list[Row], records: list[Decoded]
) -> Iterator[J]:
    """Jobs as they arrived, in the order in which they are to be worked on."""
    new = kind.__new__
    for (seq, lease, deadline, deliveries), (_, ts, node, tag, meta, data) in zip(rows, records, strict=True):
        job = new(kind)
        job.topic, job.seq, job.ts, job.data = topic, seq, ts, data
        job._tag, job._node, job._meta = tag, node, meta
        job._holder, job.lease, job.deadline, job.deliveries = holder, lease, deadline, deliveries
        job.held_at, job.lost, job.settled = now, False, False
        yield job


class HeldJobs(Sequence[J], Generic[J]):
    """Jobs of one claim. `payloads()` is the fastest way to their data; indexing and iterating give jobs."""

    def __init__(self, kind: type[J], holder: Any, topic: str, now: float, claimed: Claimed | OneClaimed) -> None:
        self.topic = topic
        self._kind = kind
        self._holder = holder
        self._now = now
        self._claimed = claimed
        self._made: list[J] | None = None

    @property
    def ready(self) -> int:
        """How many more could be claimed after this."""
        return self._claimed.ready

    @property
    def finished(self) -> Acked:
        """What became of the jobs that the claim was to finish first: `claim(done=…)`."""
        return self._claimed.finished

    @property
    def rows(self) -> bytes:
        """LEASED rows of all of them."""
        return self._claimed.leased()

    def payloads(self) -> list[bytes]:
        """The data of each job."""
        return self._claimed.payloads()

    @property
    def made(self) -> Sequence[J]:
        """Those that somebody has in hand."""
        return self._made or ()

    @property
    def _jobs(self) -> list[J]:
        if self._made is None:
            found = self._claimed
            rows, records = found.rows(), found.records()
            self._made = list(held_jobs(self._kind, self._holder, self.topic, self._now, rows, records))
        return self._made

    def __len__(self) -> int:
        return self._claimed.count

    def __getitem__(self, index: Any) -> Any:
        return self._jobs[index]

    def __iter__(self) -> Iterator[J]:
        return iter(self._jobs)

    def settled(self) -> None:
        """All of them were finished together."""
        for job in self._made or ():
            job.settled = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic}, {len(self)} jobs)"


class Finishing:
    """What a claim finishes first: jobs, what another claim brought, or whatever `held_keys` takes."""

    __slots__ = ("_jobs", "rows")

    def __init__(self, jobs: Any) -> None:
        """Raises InvalidRequest for jobs that were settled before, and for more than one request takes."""
        if isinstance(jobs, HeldJob):
            self._jobs: Sequence[HeldJob] = (jobs,)
            self.rows = leased_rows((jobs.key,))
        elif isinstance(jobs, HeldJobs):
            self._jobs = jobs.made
            self.rows = jobs.rows
        else:
            given = _listed(jobs)
            self._jobs = [one for one in given if isinstance(one, HeldJob)]
            self.rows = leased_rows(held_keys(given))
        for job in self._jobs:
            job.check_open()
        if len(self.rows) > CLAIM_MAX * LEASED.size:
            raise InvalidRequest(f"a claim finishes at most {CLAIM_MAX} jobs; ack() takes any number")

    def answered(self, finished: Acked) -> None:
        """What it finished is settled; what was skipped was not ours any more."""
        for job in self._jobs:
            job.settled, job.lost = True, job.seq in finished.skipped


def held_keys(jobs: Any) -> list[tuple[int, int]]:
    """(seq, lease) of jobs, or of what is given as such pairs; a seq alone has lease 0, which is not checked."""
    given = _listed(jobs)
    keys: list[tuple[int, int]] = []
    for one in given:
        if isinstance(one, HeldJob):
            keys.append(one.key)
        elif _is_key(one):
            keys.append(one)
        elif isinstance(one, int) and not isinstance(one, bool):
            keys.append((one, 0))
        else:
            raise InvalidRequest(f"jobs, (seq, lease) pairs or seqs are wanted, not {one!r:.100}")
    if any(not 0 < seq < 1 << 63 or not 0 <= lease < 1 << 64 for seq, lease in keys):
        raise InvalidRequest("a seq is a number from 1 on, a lease one from 0 on")
    return keys


def _listed(jobs: Any) -> list[Any]:
    """One or many. A tuple of two numbers is one key: taken for two seqs, it would finish what it was to fence."""
    if isinstance(jobs, HeldJob | int) or _is_key(jobs):
        return [jobs]
    check_list(jobs, "jobs")
    try:
        return list(jobs)
    except TypeError:
        raise InvalidRequest(f"jobs, (seq, lease) pairs or seqs are wanted, not {jobs!r:.100}") from None


def _is_key(given: Any) -> bool:
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, int) for part in given)


def merged(then: Then) -> dict[str, list[Any]]:
    """One batch for each topic, as `done(then=…)` needs it."""
    check_list(then, "(topic, records) pairs")
    found: dict[str, list[Any]] = {}
    for entry in then:
        if not isinstance(entry, tuple | list) or len(entry) != 2 or not isinstance(entry[1], list | tuple):
            raise InvalidRequest(f"then is a list of (topic, list of records), not of {entry!r:.100}")
        topic, records = entry
        found.setdefault(str(topic), []).extend(records)
    return {topic: records for topic, records in found.items() if records}
