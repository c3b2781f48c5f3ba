"""Single records under way, in order: which are acknowledged, and which were refused. Both pipelines share it."""

from __future__ import annotations

from collections import deque

from topicd.client.core.options import PIPELINE_MAX
from topicd.errors import InvalidRequest, TopicdError
from topicd.ipc.protocol.outbox import OutBatch


class Pipelined:
    def __init__(self, max_inflight: int) -> None:
        if not 1 <= max_inflight <= PIPELINE_MAX:
            raise InvalidRequest(f"max_inflight must be 1 to {PIPELINE_MAX}, not {max_inflight!r:.50}")
        self.pending: deque[OutBatch] = deque()
        self.failures: list[tuple[int, TopicdError]] = []  # (position among all appends, error)
        self._seqs: list[int] = []
        self._settled = 0

    def settle(self) -> None:
        """Takes the oldest out, as far as their outcomes are known."""
        pending, seqs = self.pending, self._seqs
        while pending and pending[0].done:
            batch = pending.popleft()
            if batch.error is None:
                seqs.append(batch.first_seq)
            else:
                self.failures.append((self._settled, batch.error))
            self._settled += 1

    def drained(self) -> list[int]:
        """The seqs of all records since the last drain, in order; raises the first refusal, which names all."""
        seqs, self._seqs = self._seqs, []
        if self.failures:
            failures, self.failures = self.failures, []
            error = failures[0][1]
            error.detail["refused"] = len(failures)
            error.detail["positions"] = [position for position, _ in failures[:100]]
            raise error
        return seqs

    def give_up(self, why: TopicdError) -> None:
        for batch in self.pending:
            batch.fail(why)
