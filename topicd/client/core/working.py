"""A stream of pushed jobs without its connection: what is here, what is finished and not sent, what was sent and not
answered.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Any, Generic

from topicd.client.core.held import J, held_jobs
from topicd.client.core.jobs import Acked, parse_acked, parse_claimed
from topicd.errors import ConnectionLost, FormatError, TopicdError, TopicNotFound
from topicd.ipc.protocol.codec import answer_map, error_of
from topicd.ipc.protocol.cutter import Arrived
from topicd.ipc.protocol.wire import LEASED, OP_ACKED, OP_ERROR, OP_JOBS, OP_NOTICE

log = logging.getLogger(__name__)


class Working(Generic[J]):
    """`held` are all jobs here that are not settled, `buffered` those of them that nobody has begun."""

    def __init__(self, kind: type[J], holder: Any, queue: str) -> None:
        self.queue = queue
        self.topic_id = 0
        self.lease_ms = 0
        self.held: dict[int, J] = {}
        self.buffered: deque[J] = deque()
        self.lost = 0  # finished here without being ours any more, as far as was told
        self.untold = 0  # finished or failed here, and the daemon could not be told
        self.sent: dict[int, tuple[bytes, bool]] = {}  # request id: LEASED rows, and whether they were sent before
        self.answers: dict[int, Acked] = {}  # to requests that somebody waits for
        self.awaited: set[int] = set()
        self._kind = kind
        self._holder = holder

    def opened(self, answer: dict[str, Any]) -> None:
        try:
            self.topic_id, self.lease_ms = int(answer["topic_id"]), int(answer["lease_ms"])
        except (KeyError, TypeError, ValueError) as exc:
            raise FormatError(f"the daemon's answer to WORK is malformed: {exc!r}") from None

    def disconnected(self) -> bytes:
        """What was pushed and not begun is the daemon's again. LEASED rows whose acknowledgement was not answered: they
        have to be sent again."""
        for job in self.buffered:
            self.held.pop(job.seq, None)
        self.buffered.clear()
        again = b"".join(rows for request_id, (rows, _) in self.sent.items() if request_id not in self.awaited)
        self.sent.clear()
        return again

    def take(self, arrived: Arrived, now: float) -> bool:
        """False: it is nothing that a stream of jobs brings by itself. Raises what ends the stream."""
        op = arrived.op
        if op == OP_JOBS:
            self._jobs(arrived, now)
        elif op == OP_ACKED and arrived.request_id in self.sent:
            self._acked(arrived.request_id, parse_acked(arrived.buffer, arrived.start, arrived.end))
        elif op == OP_NOTICE:
            raise self._ended(answer_map(arrived.body()))
        elif op == OP_ERROR and arrived.request_id in (0, *self.sent):
            raise self._refused(arrived.request_id, error_of(arrived.body()))
        else:
            return False
        return True

    def _jobs(self, arrived: Arrived, now: float) -> None:
        found = parse_claimed(arrived.buffer, arrived.start, arrived.end)
        held, buffered = self.held, self.buffered
        for job in held_jobs(self._kind, self._holder, self.queue, now, found.rows(), found.records()):
            held[job.seq] = job
            buffered.append(job)

    def _acked(self, request_id: int, answer: Acked) -> None:
        _, repeated = self.sent.pop(request_id)
        if request_id in self.awaited:
            self.answers[request_id] = answer
        elif answer.skipped and not repeated:
            # Of those that were sent before, nobody knows whether the first time counted.
            self.not_ours(answer.skipped)

    def not_ours(self, seqs: list[int]) -> None:
        """Finished here, and taken away before."""
        self.lost += len(seqs)
        log.warning("finished jobs had been taken away", extra={"queue": self.queue, "seqs": seqs[:10]})

    def not_told(self, jobs: int, what: str, error: TopicdError | None) -> None:
        """What the end of the stream leaves unsaid: these jobs will be delivered again."""
        if jobs:
            self.untold += jobs
            about = {"queue": self.queue, "jobs": jobs, "error": str(error or "the time was over")}
            log.warning(f"{what} could not be reported and will be delivered again", extra=about)

    def rows_not_told(self, rows: bytes, error: TopicdError | None) -> None:
        """The same of finished jobs: LEASED rows."""
        self.not_told(len(rows) // LEASED.size, "finished jobs", error)

    def _ended(self, notice: dict[str, Any]) -> TopicdError:
        if notice.get("event") == "topic_deleted":
            return TopicNotFound(f"queue {self.queue!r} was deleted")
        return FormatError(f"the daemon sent a notice to a worker: {notice!r:.200}")

    def _refused(self, request_id: int, error: TopicdError) -> TopicdError:
        """An acknowledgement that may succeed later goes again, over a new connection."""
        if error.retriable:
            return ConnectionLost(f"acknowledgements were refused: {error}")
        rows, _ = self.sent.pop(request_id, (b"", False))
        if request_id not in self.awaited:
            self.rows_not_told(rows, error)
        return error


def rows_of(pending: list[tuple[int, int]]) -> bytes:
    pack = LEASED.pack
    return b"".join([pack(seq, lease) for seq, lease in pending])


class WorkFigures:
    """What a stream of jobs tells of itself, on either face."""

    _working: Working[Any]
    _closed: bool

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def lost(self) -> int:
        """Jobs finished without waiting for the answer that were not ours any more."""
        return self._working.lost

    @property
    def untold(self) -> int:
        """Jobs that were finished or failed here while the daemon could not be reached any more, not even by `close`:
        at most so many are delivered again."""
        return self._working.untold

    @property
    def held(self) -> int:
        """Jobs that are here and not finished, begun or not."""
        return len(self._working.held)
