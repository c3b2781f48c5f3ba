"""One router at work, in the shard of its destination. Promise: every record of the source that it is meant for is
copied once and in order; where the destination has no room it waits, and skips nothing; what was gone before its turn
becomes a hole that readers are told of. Where the source cannot be read it stands, until somebody says that these
records are given up.

One batch is under way at a time: while it is, the next one gathers by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from topicd.errors import (
    InvalidRequest,
    NotReady,
    RecordTooLarge,
    StorageCorrupt,
    Throttled,
    TopicdError,
    TopicFull,
    TopicNotFound,
)
from topicd.frames import FrameType
from topicd.limits import ROUTED_RECORDS
from topicd.shards.delivery.routing import copies
from topicd.shards.delivery.routing.definition import Definition
from topicd.shards.delivery.routing.feeds import Feed, Piece
from topicd.shards.delivery.routing.pauses import Pauses
from topicd.shards.delivery.routing.pump import Seen
from topicd.shards.delivery.routing.tools import Tools
from topicd.shards.delivery.topic.flight import InFlight, Waiter
from topicd.shards.delivery.topic.inflows import Inflow, Mark
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need

log = logging.getLogger(__name__)


class Forwarder:
    """Answers of appends come here as to any other who appends (topic.flight.Replier)."""

    def __init__(self, tools: Tools, one: Definition, dest: Topic) -> None:
        self._tools = tools
        self.one = one
        self.dest = dest
        self.flow = dest.inflows.routers.setdefault(one.id, Inflow(one.from_seq))
        self.flow.cursor = max(self.flow.cursor, one.from_seq)
        self.position = self.flow.cursor  # up to there everything is copied, or on its way
        self.feed: Feed = tools.feed(one, self.wake)
        self.waiting: str | None = None  # why it stands still
        self.unreadable: tuple[int, int] | None = None  # seqs of the source, where it stands
        self.behind_since = 0  # ms: no later has what it has not copied come; 0: it is not behind
        self._behind_at = 0  # ms, when its source had this head
        self._behind_to = 0
        self.noted = self.flow.cursor  # what the log knows
        self.told = (0, 0)  # to the source: how often it was reached, the cursor
        self._remake_to: int | None = None  # source's head at the start: up to there copies may have been seen
        self._remade: list[Callable[[], None]] = []
        self._decided: list[Callable[[], None]] = []
        self._limit = ROUTED_RECORDS
        self._under_way = False
        self._held = False
        self._gives_way = False  # for a moment, to writers
        self._pauses = Pauses()
        self._seen_head = 0  # of the source, when the pump asked
        self._seen_position = self.position
        self._awaited: list[tuple[int, Callable[[], None]]] = []
        self.closed = False

    def open(self) -> None:
        self.feed.open(self.position)
        self.wake()

    def close(self) -> None:
        self.closed = True
        self.feed.close()
        self._tell(everybody=True)
        self._tell_remade()
        self._tell_decided()

    def change(self, one: Definition) -> None:
        """Other options; it goes on where it is."""
        self.feed.close()
        self.one = one
        self.feed = self._tools.feed(one, self.wake)
        self.position = self.flow.under_way[-1][0] if self.flow.under_way else self.flow.cursor
        self.open()

    def wake(self) -> None:
        if not (self._under_way or self._held or self.closed):
            self._tools.pump.add(self)

    # ---- its share of the time ----

    def seen(self) -> Seen:
        """Of what was there when its source was found nothing has come."""
        head, position = self.feed.head, self.position
        came = max(0, head - self._seen_head) if self._seen_head else 0
        passed = max(0, position - self._seen_position)
        self._seen_head, self._seen_position = head, position
        return Seen(came, passed, bool(came) and self.feed.remote and not self._tools.fed(self.one.source))

    def late_ms(self) -> int:
        stands = self.waiting is not None or not self.behind_since
        return 0 if stands else max(0, self._tools.now_ms() - self.behind_since)

    # ---- who waits for it ----

    @property
    def urgent(self) -> bool:
        return bool(self._awaited)

    def when_reached(self, head: int, then: Callable[[], None]) -> Callable[[], None] | None:
        """`then` when everything up to that source seq is here; what is returned takes it back. None: it is here, or
        the router stands still, and there is nothing to wait for."""
        if self.flow.cursor >= head or self.closed or self.waiting is not None:
            return None
        entry = (head, then)
        self._awaited.append(entry)
        if self._gives_way:
            self._gives_way = False
            self._go_on()
        self._tools.pump.hurry(self)

        def take_back() -> None:
            if entry in self._awaited:
                self._awaited.remove(entry)

        return take_back

    def _tell(self, *, everybody: bool = False) -> None:
        cursor = self.flow.cursor
        ready = [entry for entry in self._awaited if everybody or entry[0] <= cursor]
        if ready:
            self._awaited = [entry for entry in self._awaited if entry not in ready]
            for _, then in ready:
                then()

    @property
    def lag(self) -> int:
        """Records of the source that it has not looked at, as far as it knows."""
        return max(0, self.feed.head - self.flow.cursor)

    def progress(self, now_ms: int) -> dict[str, Any]:
        lag = self.lag
        return {
            "forwarded_total": self.flow.total,
            "cursor": self.flow.cursor,
            "lag": lag,
            "lag_ms": max(0, now_ms - self.behind_since) if lag and self.behind_since else 0,
            "waiting": self.waiting,
            "kind": None if self.flow.why is None else "logged" if self.flow.why else "derived",
            "why": self.flow.why or None,
            "unreadable": None if self.unreadable is None else list(self.unreadable),
        }

    # ---- work ----

    def run(self) -> None:
        """One batch, or whatever keeps it from one."""
        if self._under_way or self._held or self.closed:
            return
        if not self.dest.live:
            self._stand("its destination is being deleted")
            return
        if self.flow.why is None:
            self._held = True
            self._tools.decide(self)
            return
        try:
            self._gives_way = not (self.urgent or self._tools.has_room())
            if self._gives_way:
                raise Throttled("the disk does not keep up", limit="checkpoint_bytes", retry_after_ms=20)
            self._check_source()
            piece = self._next()
            if piece is None:
                self._caught_up()
                return
            self._note_behind(self._tools.now_ms())
            if piece.gap is not None and self.position < piece.gap[1]:
                self._trim(piece.gap)
            else:
                self._copy(piece)
        except TopicdError as exc:
            self._stand(_reason(exc), exc)
        except ValueError as exc:
            log.exception("records cannot be copied", extra={"router": self.one.router})
            self._stand(f"records of its source make no sense: {exc}")

    def _note_behind(self, now_ms: int) -> None:
        if not self.behind_since:
            self.behind_since = self._behind_at = now_ms
            self._behind_to = self.feed.head
        elif self.position >= self._behind_to:
            # What it has not copied has come since it was looked at last.
            self.behind_since, self._behind_at, self._behind_to = self._behind_at, now_ms, self.feed.head

    def _next(self) -> Piece | None:
        try:
            piece = self.feed.take(self.position)
        except StorageCorrupt as exc:
            self.unreadable = _place_of(exc, self.position)
            self._tell_remade()
            raise
        if piece is not None:
            self.unreadable = None
        return piece

    def _check_source(self) -> None:
        """A source that may lose its tail with the power gives out again seqs that were copied: what comes under them
        now was not."""
        begins, self.feed.begins = self.feed.begins, None
        if begins is not None and self._remake_to is None:
            self._remake_to = begins
        if begins is None or begins >= self.position:
            return
        extra = {"router": self.one.router, "cursor": self.position, "head_seq": begins}
        log.warning("source has lost its newest records", extra=extra)
        self.position = self.flow.cursor = begins
        body = {"router": self.one.id, "cursor": begins, "total": self.flow.total, "back": True}
        self._tools.note(self.dest, body, Need.PLACED)
        self.feed.rewind(begins)

    def _caught_up(self) -> None:
        self._look_if_remade()
        if self.position >= self.feed.head:
            self.behind_since = 0
            self.waiting = None

    def _copy(self, piece: Piece) -> None:
        while True:
            try:
                made = copies.make(self.one, piece.buffer, piece.start, piece.end, self.position, self._limit)
            except ValueError:
                self.unreadable = (self.position + 1, piece.next_from)
                raise
            cursor = piece.next_from if made.complete else made.last_seq
            inflows = self.dest.inflows
            there = min(inflows.skip, made.records) if self.derived else 0
            made = copies.without_first(made, there)
            if not made.records:
                self._moved(piece, cursor, made.complete)
                inflows.skip -= there
                inflows.passed(self.one.id, cursor)
                self._look_if_remade()
                self._tell()
                self.wake()
                return
            try:
                self._tools.forward(self, self.one, self.dest, cursor, made.frames, made.records)
            except (TopicFull, RecordTooLarge):
                if made.records == 1 and self._limit == 1:
                    self._is_remade()  # further than this it was never
                    raise
                self._limit = max(1, min(self._limit, made.records) // 2)  # as much as fits
                continue
            inflows.skip -= there
            self._under_way = True
            self._moved(piece, cursor, made.complete)
            return

    def _moved(self, piece: Piece, cursor: int, complete: bool) -> None:
        self.position = max(self.position, cursor)
        if complete:
            self.feed.done(piece)

    def _stand(self, reason: str, error: TopicdError | None = None) -> None:
        """It cannot go on now: look again in a while."""
        if isinstance(error, Throttled):
            pause = int(error.detail.get("retry_after_ms") or 20) / 1000  # others have to wait, too
        else:
            if self.waiting != reason:
                log.warning("router waits", extra={"router": self.one.router, "reason": reason})
            self.waiting = reason
            pause = self._pauses.next()
            self._tell(everybody=True)
        self._held = True
        self._tools.later(pause, self._go_on)

    def _go_on(self) -> None:
        self._held = False
        self.wake()

    def _stored(self) -> None:
        self._under_way = False
        if self.waiting is not None:
            log.info("router goes on", extra={"router": self.one.router})
        self.waiting = None
        self._pauses.reset()
        self._limit = min(ROUTED_RECORDS, 2 * self._limit)
        if not self.derived:
            self.noted = self.flow.cursor
        self._look_if_remade()
        self._tell()
        self.wake()

    # ---- derived or logged ----

    @property
    def derived(self) -> bool:
        return self.dest.inflows.derived == self.one.id

    def begin(self, why: str) -> None:
        """It is decided: logged, and why, or derived. No copy is made before the log says so."""
        dest, flow, inflows = self.dest, self.flow, self.dest.inflows
        if flow.why is not None or self.closed:
            self._begun()
            return
        body: dict[str, Any] = {"router": self.one.id, "cursor": flow.cursor, "total": flow.total}
        flow.why = why
        if why:
            self._tools.note(dest, {**body, "logged": why}, Need.PLACED)
            self._begun()
            return
        # At once: who writes to it while this is on its way comes behind it, and says that it is logged.
        inflows.derived, inflows.mark = self.one.id, Mark(0, flow.cursor, 0)
        dest.seqs.last_ts = 0

        def refused(error: TopicdError) -> None:
            if self.derived:
                inflows.derived, flow.why = None, None
            self._held = False
            self._stand(_reason(error), error)

        self._tools.note(dest, {**body, "mark": 0}, Need.SYNCED, self._begun, refused)

    def _begun(self) -> None:
        self._tell_decided()
        self._go_on()

    def when_decided(self, then: Callable[[], None]) -> None:
        """`then` when it is known which kind its destination is, or the router ends."""
        if self.flow.why is None and not self.closed:
            self._decided.append(then)
        else:
            then()

    def _tell_decided(self) -> None:
        waiting, self._decided = self._decided, []
        for then in waiting:
            then()

    def _look_if_remade(self) -> None:
        """Has everything been copied again that may have been seen before the start?"""
        inflows, remake_to = self.dest.inflows, self._remake_to
        if not inflows.remaking or not self.derived or remake_to is None or self.flow.cursor < remake_to:
            return
        if inflows.skip:
            log.error("destination has more than its source", extra={"router": self.one.router, "copies": inflows.skip})
            inflows.skip = 0
        self._is_remade()

    def _is_remade(self) -> None:
        if self.remaking:
            self.dest.inflows.remaking = False
            self._tell_remade()

    @property
    def remaking(self) -> bool:
        return self.derived and self.dest.inflows.remaking

    def when_remade(self, then: Callable[[], None]) -> None:
        """`then` when what was seen before the start is there again, the router ends, or it needs somebody's help."""
        if self.remaking and self.unreadable is None and not self.closed:
            self._remade.append(then)
            self._tools.pump.hurry(self)
        else:
            then()

    def _tell_remade(self) -> None:
        waiting, self._remade = self._remade, []
        for then in waiting:
            then()

    # ---- answers ----

    def appended(self, waiter: Waiter, head: int, entry: InFlight) -> None:
        """Its records become visible in this very turn, right behind this."""
        self._tools.soon(waiter.records, self._stored)

    def append_refused(self, request_id: int, error: TopicdError) -> None:
        self._under_way = False
        self.position = self.flow.cursor
        self.feed.rewind(self.position)
        self._stand(_reason(error), error)

    def deduped(self, waiter: Waiter, head: int) -> None:
        raise AssertionError("a router's batches are never repeated")

    def run_appended(self, request_ids: bytes, first_seq: int, head: int) -> None:
        raise AssertionError("a router appends batches")

    # ---- holes ----

    def _trim(self, gap: tuple[int, int]) -> None:
        """Source records that went before their turn: as many seqs that nobody writes."""
        first = max(gap[0], self.position + 1)
        self._pass_over((first, gap[1]), gap[1] - first + 1, "its source has lost records")
        log.warning("source was trimmed", extra={"router": self.one.router, "first_seq": first, "last_seq": gap[1]})

    def step_over(self, up_to: int, done: Callable[[dict[str, Any] | None, TopicdError | None], None]) -> None:
        """Source records that cannot be read, where it stands, are given up, and no others."""
        stands, dest = self.unreadable, self.dest
        if stands is None or self._under_way or stands[0] != self.position + 1:
            raise InvalidRequest(
                f"router {self.one.router!r} does not stand at records that cannot be read",
                router=self.one.router,
                waiting=self.waiting,
            )
        gap = (stands[0], min(stands[1], up_to))
        if gap[1] < gap[0]:
            message = f"router {self.one.router!r} stands at seq {gap[0]} of its source, behind seq {up_to}"
            raise InvalidRequest(message, router=self.one.router, unreadable=list(stands))
        count = gap[1] - gap[0] + 1
        if self.derived and dest.inflows.remaking:
            # Nobody knows which seqs were copies of these and which of what follows. None of all that may have been
            # seen is given out again.
            if self._remake_to is None:
                raise NotReady(f"source {self.one.source!r} has not said how far it is", retry_after_ms=50)
            count = max(count, self._remake_to - self.position)

        def skipped(hole: list[int] | None) -> None:
            told = {"skipped": list(gap), "hole": hole}
            log.warning("router has given up records that cannot be read", extra={"router": self.one.router, **told})
            self.unreadable = None
            self.feed.rewind(gap[1])
            done(told, None)

        self._pass_over(gap, count, "its source cannot be read", skipped, lambda error: done(None, error))

    def _pass_over(
        self,
        gap: tuple[int, int],
        count: int,
        why: str,
        then: Callable[[list[int] | None], None] = lambda hole: None,
        otherwise: Callable[[TopicdError], None] = lambda error: None,
    ) -> None:
        """On behind these source records, with a hole of `count` seqs for them. Only while nothing else is on its way
        to the destination, so that all become visible in order."""
        dest = self.dest
        if dest.flight.count or dest.seqs.head != dest.seqs.visible:
            raise Throttled("the destination is busy", limit="router", retry_after_ms=5)
        if self.derived:
            # Of those that are gone some may have been copied, and be there.
            count, dest.inflows.skip, dest.inflows.remaking = max(0, count - dest.inflows.skip), 0, False
            hole = self._tools.log_copies(dest, why, gap[1], count)
            self.position = max(self.position, gap[1])
            self._tell_remade()
            self._stored()
            then(hole)
            return
        first, last = dest.seqs.head + 1, dest.seqs.head + count
        need = dest.need_for(last)
        synced = need is Need.SYNCED
        dest.seqs.give_out(count, max(self._tools.now_ms(), dest.seqs.last_ts))
        dest.flight.synced += synced
        self._under_way = True
        body = {"router": self.one.id, "cursor": gap[1], "total": self.flow.total + count, "hole": [first, last]}

        def applied() -> None:
            dest.flight.synced -= synced
            dest.inflows.replay(FrameType.ROUTED, body, 0)
            self._tools.made_hole(dest, last)
            self.position = max(self.position, gap[1])
            self._stored()
            then([first, last])

        def refused(error: TopicdError) -> None:
            dest.flight.synced -= synced
            dest.seqs.roll_back(first)
            self.append_refused(0, error)
            otherwise(error)

        self._tools.note(dest, body, need, applied, refused)


def _place_of(error: StorageCorrupt, position: int) -> tuple[int, int] | None:
    """Behind the position: what of the source cannot be read."""
    last = int(error.detail.get("last_seq", 0))
    return (position + 1, last) if last > position else None


def _reason(error: TopicdError) -> str:
    if isinstance(error, TopicFull):
        return "its destination is full"
    if isinstance(error, RecordTooLarge):
        return "a record is larger than its destination may be"
    if isinstance(error, TopicNotFound):
        return "its source is gone"
    return error.message
