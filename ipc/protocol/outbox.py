"""The batches of one producer for one topic, in order. Promise: each is stored once, in the order it was
given, however often the connection breaks or the daemon refuses for a while; one that is refused for good
is left out, not overtaken.

Without its connection: `sender` feeds it. What it relies on: see `once`.
"""

from __future__ import annotations

from collections import deque

from topicd.errors import ConnectionLost, TopicdError
from topicd.ipc.protocol.once import Numbers, Verdict, expected_number, verdict
from topicd.ipc.protocol.retry import Backoff, retry_after


class OutBatch:
    """One batch on its way out. `settled` is called once, when `first_seq` or `error` says how it ended."""

    __slots__ = (
        *("conflict", "count", "deadline", "deduped", "done", "error", "first_seq", "frames"),
        *("impatient", "number", "options", "outbox", "performance", "size"),
    )

    def __init__(self, outbox: TopicOutbox, frames: bytes | bytearray, count: int, deadline: float) -> None:
        self.outbox = outbox
        self.frames: bytes | bytearray = frames
        self.size = len(frames)
        self.count = count
        self.deadline = deadline
        self.number = 0  # given when first sent
        self.impatient: tuple[type[TopicdError], ...] = ()  # what could be tried again and ends it at once
        self.performance: dict[str, float] | None = None
        self.options = b""  # of jobs, packed
        self.first_seq = 0
        self.deduped = False
        self.conflict = False  # a job with its unique key is there already
        self.done = False
        self.error: TopicdError | None = None  # the last one; final once done

    def fail(self, error: TopicdError) -> None:
        if self.done:
            return
        self.error = error
        self.done = True
        self.frames = b""
        self.settled()

    def settled(self) -> None:
        """For subclasses."""

    def divided(self, error: TopicdError) -> list[OutBatch]:
        """Smaller batches with the same records, of which the daemon will take some; none if it will not."""
        return []


class TopicOutbox:
    def __init__(self, topic: str, backoff: Backoff, *, halt: bool = False, creates: bool = True) -> None:
        self.topic = topic
        self._halt = halt  # a batch refused for good takes all behind it along
        self.creates = creates  # a topic that does not exist
        self.creates_queue = False  # and then a queue
        self.timed = False  # those who wait shall hear how long it took
        self.topic_id = 0
        self._numbers = Numbers()
        self.producer_id = self._numbers.producer_id
        self.waiting: deque[OutBatch] = deque()  # to be sent, those that were sent before first
        self.flying: deque[OutBatch] = deque()  # sent and not answered on this connection
        self.refused: list[OutBatch] = []  # answered with an error since the last regrouping
        self.outstanding = 0  # answers that are still to come on this connection
        self.open = False  # something was acknowledged since the last trouble; until then one at a time
        self.not_before = 0.0
        self.opening = False
        self.queued = False  # the sender's mark: it is among those that may have something to send
        self._highest_acked = 0
        self._numbered_for = 0  # the id of the topic that the numbers belong to
        self._reopened = False
        self._backoff = backoff

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.flying or self.refused or self.outstanding)

    def sendable(self, window: int, now: float) -> int:
        """How many batches may go now."""
        if self.refused or not self.topic_id or now < self.not_before:
            return 0
        return max(0, min(len(self.waiting), (window if self.open else 1) - self.outstanding))

    def send(self) -> OutBatch:
        """The next batch, numbered."""
        batch = self.waiting.popleft()
        if batch.number:
            batch.error = None  # of the last attempt
        else:
            batch.number = self._numbers.take(self._numbered_for)
        self.flying.append(batch)
        self.outstanding += 1
        return batch

    def opened(self, topic_id: int) -> None:
        self.opening = False
        self.topic_id = topic_id
        if topic_id != self._numbered_for:
            # A topic remembers its producers; one made anew has never seen us.
            self._numbered_for = topic_id
            self._highest_acked = 0
            for batch in self.waiting:
                batch.number = 0

    # ---- answers ----

    def acked(self, batch: OutBatch, first_seq: int, deduped: bool) -> None:
        # The hot path: what _answered does, in place.
        self.outstanding -= 1
        flying = self.flying
        if flying[0] is batch:
            flying.popleft()
        else:
            flying.remove(batch)
        self._highest_acked = max(self._highest_acked, batch.number)
        if not self.open:
            self.open = True
            self._reopened = False
            self._backoff.reset()
        if batch.done:
            return  # Its time was up before this answer came.
        batch.first_seq = first_seq
        batch.deduped = deduped
        batch.error = None
        batch.done = True
        batch.frames = b""
        batch.settled()

    def refuse(self, batch: OutBatch, error: TopicdError) -> None:
        self._answered(batch)
        if not batch.done:
            batch.error = error
        self.refused.append(batch)
        self.open = False

    def _answered(self, batch: OutBatch) -> None:
        self.outstanding -= 1
        if self.flying and self.flying[0] is batch:
            self.flying.popleft()
        else:
            self.flying.remove(batch)

    def regroup(self, now: float) -> None:
        """Once every answer is there: fail what is refused for good, put the rest in front again, numbered
        anew.

        Batches behind a refused one come back as out_of_order, so nothing of them was stored.
        """
        refused = sorted(self.refused, key=lambda batch: batch.number)
        self.refused = []
        lowest = refused[0].number
        # What was refused for its size only is sent again in pieces, once the numbers are known.
        again = [batch for batch in refused if not batch.done and not self._final(batch)]
        failed = next((batch.error for batch in refused if batch.done and batch.error is not None), None)
        if self._halt and failed is not None:
            self.waiting.extendleft(reversed(again))
            self.fail_waiting(failed)
            self._renumber(lowest)
            return
        self._wait(again, now)
        expected = next((e for batch in again if (e := expected_number(batch.error))), 0)
        if self.topic_id == 0 or self._highest_acked > lowest:
            self.waiting.extendleft(reversed(again))
            return  # Numbers follow the topic, or all of these were stored before and will be told so.
        self.waiting.extendleft(reversed([piece for batch in again for piece in self._pieces(batch)]))
        if expected > lowest and not (again and again[0].number == lowest):
            # The daemon holds something under numbers we think are free: never touch those again.
            self._numbers.renew()
            self.producer_id = self._numbers.producer_id
            lowest = 1
        elif 0 < expected < lowest:
            lowest = expected
        self._renumber(lowest)

    def _renumber(self, number: int) -> None:
        for batch in self.waiting:
            if not batch.number:
                break
            batch.number = number
            number += 1
        self._numbers.continue_at(self._numbered_for, number)

    def _final(self, batch: OutBatch) -> bool:
        error = batch.error
        if error is None:
            return False
        what = verdict(error, reopened=self._reopened)
        if what is Verdict.RETRY and isinstance(error, batch.impatient):
            what = Verdict.GIVE_UP
        if what is Verdict.REOPEN:
            self.topic_id = 0
        elif what is Verdict.GIVE_UP:
            if self.topic_id and batch.divided(error):
                return False
            batch.fail(error)
        return what is Verdict.GIVE_UP

    def _pieces(self, batch: OutBatch) -> list[OutBatch]:
        """Numbered like the batch until all of them are numbered anew."""
        error = batch.error
        if error is None or verdict(error, reopened=self._reopened) is not Verdict.GIVE_UP:
            return [batch]
        made = batch.divided(error)
        for piece in made:
            piece.number = batch.number
        return made

    def _wait(self, again: list[OutBatch], now: float) -> None:
        if self.topic_id == 0:
            self._reopened = True
        asked = [batch.error for batch in again if batch.error is not None]
        # Behind the first error the others are mere consequences; at once if all that is wrong is the number.
        first = asked[0] if asked else None
        if first is not None and verdict(first, reopened=False) is Verdict.RETRY:
            self.delay(first, now)

    def delay(self, error: TopicdError, now: float) -> None:
        self.not_before = now + max(self._backoff.next(), retry_after(error))

    def disconnected(self, now: float) -> None:
        """The outcome of everything in flight is unknown: it goes again, with the same numbers."""
        self.outstanding = 0
        self.open = False
        self.opening = False
        if self.refused:
            self.refused.extend(self.flying)
            self.flying.clear()
            self.regroup(now)
        else:
            self.waiting.extendleft(batch for batch in reversed(self.flying) if not batch.done)
            self.flying.clear()

    # ---- time ----

    def expire(self, now: float, why: TopicdError | None) -> None:
        """Give up what has waited too long; what was sent may or may not be stored."""
        while self.waiting and self.waiting[0].deadline <= now:
            batch = self.waiting.popleft()
            batch.fail(batch.error or why or ConnectionLost("the daemon could not be reached in time"))
        for batch in self.flying:
            if batch.deadline > now:
                break
            batch.fail(ConnectionLost("the daemon did not answer in time"))

    def fail_waiting(self, error: TopicdError) -> None:
        while self.waiting:
            self.waiting.popleft().fail(error)

    def next_deadline(self) -> float | None:
        times = [batches[0].deadline for batches in (self.waiting, self.flying) if batches]
        return min(times) if times else None
