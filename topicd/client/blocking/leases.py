"""Leases that go on while the work does. Promise: while the process lives and the daemon answers, a job in hand is not
taken away, however busy the thread is that works on it.

One thread for each stream of jobs, asleep but for one look at its jobs every sixth of a lease; those that are older
than a third of it are extended together. It shares nothing with the loop but the dictionary of jobs in hand.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING
from weakref import WeakMethod

from topicd.client.core import queue_requests
from topicd.client.core.held import HeldJob
from topicd.client.core.jobs import chunks
from topicd.errors import TopicdError

if TYPE_CHECKING:
    from topicd.client.blocking.caller import Caller

log = logging.getLogger(__name__)
LOOKS = 6  # of a lease
_LONGEST_LOOK_S = 1.0


class LeaseKeeper:
    """`held` are the jobs in hand by seq; it is only read here. `each_look`: what else has to happen now and then; it
    is not kept alive."""

    def __init__(
        self,
        caller: Caller,
        queue: str,
        held: Mapping[int, HeldJob],
        lease_ms: int,
        each_look: Callable[[], None] | None = None,
    ) -> None:
        self._caller = caller
        self._queue = queue
        self._held = held
        self._lease_ms = lease_ms
        self._each_look = None if each_look is None else WeakMethod(each_look)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """May be called again: there is one thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"topicd leases of {self._queue}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(min(_LONGEST_LOOK_S, self._lease_ms / 1000 / LOOKS)):
            try:
                if self._each_look is not None and (also := self._each_look()) is not None:
                    also()
                self.look()
            except TopicdError as exc:
                # The next look tries again; if that fails too often the lease ends, and with it the job's turn here.
                log.warning("leases could not be extended", extra={"queue": self._queue, "error": str(exc)})

    def look(self) -> None:
        """Extends what is due."""
        now = self._caller.tempo.monotonic()
        old = self._lease_ms / 1000 / 3
        due = [job for job in list(self._held.values()) if now - job.held_at >= old and not job.settled]
        for some in chunks([job.seq for job in due]):
            self._extend({seq: job for seq in some if (job := self._held.get(seq)) is not None}, now)

    def _extend(self, jobs: Mapping[int, HeldJob], now: float) -> None:
        if not jobs or self._caller.closed:
            return
        answer = self._caller.ask(
            queue_requests.extend(self._queue, [job.key for job in jobs.values()], self._lease_ms)
        )
        for seq, deadline in answer.deadlines.items():
            if seq in jobs:
                jobs[seq].held_at, jobs[seq].deadline = now, deadline
        for seq in answer.skipped:
            if seq in jobs and not jobs[seq].settled:
                jobs[seq].lost = True
