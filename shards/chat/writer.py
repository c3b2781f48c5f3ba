"""From a request to its outcome. Promise: an operation is answered after its entry is in the log, as durable as its
class says, and applied to the store; entries are applied in the order of the log and none is passed over; what waits is
bounded, and what is beyond the bound is refused at once.

An entry whose fate is unknown (the log did not answer in time) may be in the log yet: it is applied when the next entry
shows that one is missing before it, or after a moment.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from topicd.clock import Clock
from topicd.errors import NotReady, StorageFailed, Throttled, TopicdError
from topicd.limits import MIB
from topicd.shards.chat.changes import Told
from topicd.shards.chat.log import OperationLog
from topicd.shards.chat.operations import Entry, LogEntry, Operation
from topicd.shards.chat.view import Applied, View

log = logging.getLogger(__name__)

WAITING_MAX = 4_096
WAITING_BYTES = 64 * MIB
_TOGETHER = 64  # entries applied in one batch
_OPERATIONS = 1_000  # of these no further entry is taken: others wait for some ten milliseconds at most
_LOOK_AGAIN_S = 1.0


class _Waiting(NamedTuple):
    entry: Entry
    size: int
    stored: asyncio.Future[int]
    outcome: asyncio.Future[list[Any]]


class Writer:
    """`told` hears of every batch after it is written."""

    def __init__(self, oplog: OperationLog, view: View, clock: Clock, told: Callable[[Told], None]) -> None:
        self._log = oplog
        self._view = view
        self._clock = clock
        self._told = told
        self._waiting: deque[_Waiting] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()
        self._lock = asyncio.Lock()  # held by whoever applies
        self._task: asyncio.Task[None] | None = None
        self._looking: asyncio.TimerHandle | None = None
        self.draining = False
        self.entries = self.operations = self.refused = self.throttled = 0
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def submit(self, operations: list[Operation]) -> asyncio.Future[list[Any]]:
        """A future of what became of each operation: its answer, or the error that refuses it."""
        if self.draining:
            raise NotReady("the chat process stops")
        if len(self._waiting) >= WAITING_MAX or self._bytes >= WAITING_BYTES:
            self.throttled += 1
            raise Throttled("too many chat operations are under way", limit="chat operations", retry_after_ms=50)
        entry = Entry(self._clock.now_ms(), operations)
        raw = entry.pack()
        outcome: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(entry, len(raw), self._log.append(raw), outcome))
        self._bytes += len(raw)
        self._changed.set()
        return outcome

    async def one(self, operation: Operation) -> Any:
        """The outcome of a single one; raises what refuses it."""
        (outcome,) = await self.submit([operation])
        if isinstance(outcome, TopicdError):
            raise outcome
        return outcome

    # ---- applying ----

    async def _run(self) -> None:
        try:
            while True:
                if not self._waiting:
                    self._changed.clear()
                    await self._changed.wait()
                await asyncio.wait((self._waiting[0].stored,))
                async with self._lock:
                    await self._apply_stored()
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            self.failure = exc
            log.error(
                "chat operations cannot be applied, the process begins anew",
                extra={"error": exc},
                exc_info=None if isinstance(exc, StorageFailed) else exc,
            )

    async def _apply_stored(self) -> None:
        """All that are known to be in the log, from the first on."""
        ready: list[tuple[int, _Waiting]] = []
        count = 0
        while self._waiting and len(ready) < _TOGETHER and count < _OPERATIONS and self._waiting[0].stored.done():
            item = self._waiting.popleft()
            count += len(item.entry.operations)
            self._bytes -= item.size
            error = item.stored.exception()
            if error is None:
                ready.append((item.stored.result(), item))
            else:
                self.refused += 1
                _fail(item, error)
                self._look_again()
        if not ready:
            return
        if ready[0][0] > self._view.applied + 1:
            await self._fetch(ready[0][0] - 1)
        expected = self._view.applied + 1
        for seq, _ in ready:
            if seq != expected:
                # Somebody else's entry lies between: the log says whose, and its outcome is the log's.
                await self._fetch_around(ready)
                return
            expected += 1
        applied = self._applied([(seq, item.entry) for seq, item in ready])
        self._tell(applied.told)
        for (_, item), outcomes in zip(ready, applied.outcomes, strict=True):
            self._answer(item, outcomes)

    async def _fetch_around(self, ready: list[tuple[int, _Waiting]]) -> None:
        waiting = dict(ready)
        async for entries in self._log.read(self._view.applied, ready[-1][0]):
            applied = self._applied(entries)
            self._tell(applied.told)
            for (seq, _), outcomes in zip(entries, applied.outcomes, strict=True):
                if seq in waiting:
                    self._answer(waiting[seq], outcomes)

    async def _fetch(self, up_to: int) -> None:
        async for entries in self._log.read(self._view.applied, up_to):
            self._tell(self._applied(entries).told)

    def _applied(self, entries: Sequence[tuple[int, LogEntry]]) -> Applied:
        """A batch that was not written is missing: nothing may be applied behind it, whoever asked for it."""
        if self.failure is not None:
            raise NotReady("the chat process begins anew")
        try:
            return self._view.apply(entries)
        except BaseException as exc:
            self.failure = exc
            raise

    def _answer(self, item: _Waiting, outcomes: list[Any]) -> None:
        self.entries += 1
        self.operations += len(outcomes)
        if not item.outcome.done():
            item.outcome.set_result(outcomes)

    def _tell(self, told: list[Told]) -> None:
        for one in told:
            self._told(one)

    def _look_again(self) -> None:
        if self._looking is None:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(_LOOK_AGAIN_S, lambda: loop.create_task(self._catch_up_later()))

    async def _catch_up_later(self) -> None:
        self._looking = None
        try:
            await self.catch_up()
        except TopicdError as exc:
            log.warning("the chat log cannot be read", extra={"error": exc})
            self._look_again()

    async def catch_up(self) -> int:
        """Applies what is in the log up to its head; the seq that is applied then."""
        async with self._lock:
            place = await self._log.place()
            if place.head_seq > self._view.applied and not self._waiting:
                await self._fetch(place.head_seq)
        return self._view.applied

    async def quiet(self, timeout: float) -> None:
        """Until nothing is under way, or time is up."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while self._waiting and loop.time() < deadline and self.failure is None:
            await asyncio.sleep(0.005)

    @property
    def still(self) -> asyncio.Lock:
        """Nothing is applied while it is held."""
        return self._lock

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._task is not None:
            self._task.cancel()
        for item in self._waiting:
            _fail(item, NotReady("the chat process stops"))


def _fail(item: _Waiting, error: BaseException) -> None:
    if not item.outcome.done():
        item.outcome.set_exception(error)
        item.outcome.exception()  # whoever asked may have gone
