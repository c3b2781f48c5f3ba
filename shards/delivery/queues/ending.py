"""What ends deliveries, on its way to the log: acknowledged, given back, sent to the dead letters. Promise: all of one
turn is one frame; nobody is answered before it is stored as the queue's class says; if it cannot be stored, every job
is held as before.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from topicd.errors import InvalidRequest, TopicdError
from topicd.frames import FrameType
from topicd.shards.delivery.agenda import Gathered
from topicd.shards.delivery.queues.deadlines import Sleeper
from topicd.shards.delivery.queues.facts import Past, Totals
from topicd.shards.delivery.queues.jobs import Jobs
from topicd.shards.delivery.queues.takers import WaitingClaim
from topicd.shards.delivery.queues.tools import Tools
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.storage.ranges import Ranges

_WORD = 8  # a LEASED row is two of these
_AGAIN_MS = 500  # after the log refused something that nobody asks for again


@lru_cache(1_024)
def _words(count: int) -> struct.Struct:
    return struct.Struct(f"<{count}Q")


def flat_ranges(seqs: list[int]) -> list[int]:
    """[first, last, first, last, …] of seqs in any order."""
    seqs.sort()
    if seqs and seqs[-1] - seqs[0] == len(seqs) - 1 and len(set(seqs)) == len(seqs):
        return [seqs[0], seqs[-1]]
    found: list[int] = []
    last = -1
    for seq in seqs:
        if seq == last + 1 and found:
            found[-1] = seq
        elif seq != last:
            found += (seq, seq)
        last = seq
    return found


def pairs(flat: list[int]) -> list[tuple[int, int]]:
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


class Endings:
    """Of one queue: the totals as they will be when all that is under way is stored."""

    def __init__(
        self,
        tools: Tools,
        topic: Topic,
        jobs: Jobs,
        alarm: Sleeper,
        ended: Callable[[int], None],
        follow: Callable[[WaitingClaim, int], int],
    ) -> None:
        self.tools = tools
        self.topic = topic
        self.jobs = jobs
        self.totals = jobs.totals
        self.open: Ending | None = None
        self.alarm = alarm
        self.ended = ended  # so many were done: when it is stored
        self.follow = follow  # a claim whose jobs are done takes others; the time as of the last one, or -1: the time
        self.under_way = 0

    def take(self, rows: memoryview, node: bytes, *, holder: bool = True) -> tuple[list[int], list[int]]:
        """Of these LEASED rows: (seqs that are held under their number by this node, if one is named; the others).
        Not holder: the node stands only for rows without a number."""
        leases, jobs = self.jobs.leases, self.jobs
        flat = _words(len(rows) // _WORD).unpack(rows)
        seqs, numbers = flat[0::2], flat[1::2]
        if not node and 0 in numbers:
            raise InvalidRequest("without a node every lease number is needed")
        count = len(seqs)
        named = bool(node) and holder
        if count > 1 and not named and seqs[-1] - seqs[0] == count - 1 and numbers[-1] - numbers[0] == count - 1:
            first, number = seqs[0], numbers[0]
            together = seqs == tuple(range(first, first + count)) and numbers == tuple(range(number, number + count))
            if together and jobs.begin_end_whole(first, first + count - 1, number):
                return list(seqs), []
        found: list[int] = []
        skipped: list[int] = []
        for seq, number in zip(seqs, numbers, strict=True):
            if leases.is_held(seq, number, node if named or not number else b""):
                jobs.begin_end(seq)
                found.append(seq)
            else:
                skipped.append(seq)
        return found, skipped

    def take_one(self, seq: int, number: int, node: bytes) -> bool:
        """`take` of a single row, where the node stands only for rows without a number."""
        if not self.jobs.leases.is_held(seq, number, b"" if number else node):
            return False
        self.jobs.begin_end(seq)
        return True

    def gather(self) -> Ending:
        """What takes more until the turn ends."""
        if self.open is None:
            self.open = Ending(self)
            self.tools.agenda.gather(self.open)
        return self.open

    def go_on(self, claims: list[WaitingClaim]) -> None:
        """The jobs that these finished are done; now they take others."""
        topic, now = self.topic, -1
        for taker in claims:
            if not topic.live:
                taker.not_granted(topic.gone())
            elif not taker.outbox.gone:
                now = self.follow(taker, now)

    def count(self, *, acked: int = 0, dead: int = 0, failed: int = 0, released: int = 0, expired: int = 0) -> None:
        now = self.totals
        self.totals = Totals(
            now.acked + acked,
            now.dead + dead,
            now.failed + failed,
            now.released + released,
            now.expired + expired,
        )
        if not self.under_way and self.open is None:
            self.jobs.totals = self.totals

    def drop_kept(self, gone: list[int], now_ms: int) -> None:
        """Done, and kept long enough. Not waited for: a start that does not find it in the log does it again."""
        topic, body = self.topic, {"at": now_ms, "gone": gone}
        self.jobs.replay(FrameType.LEASE, body, now_ms)
        self.tools.deletion.apply_seqs(topic, Ranges(pairs(gone)))
        if topic.policy.logged:
            self.tools.log.change(topic, FrameType.LEASE, body, seq=topic.seqs.head, need=Need.PLACED, numbered=True)

    def stop_itself(self, reason: str) -> None:
        """Nothing is handed out from now on, whether the log can say so or not."""
        now = self.tools.clock.now_ms()
        body: dict[str, Any] = {"at": now, "pause": ["breaker", reason, now]}
        self.jobs.replay(FrameType.LEASE, body, now)
        topic = self.topic
        self.tools.log.change(topic, FrameType.LEASE, body, seq=topic.seqs.head, need=Need.PLACED, numbered=True)


class Ending(Gathered):
    def __init__(self, endings: Endings) -> None:
        self._endings = endings
        self.done: list[int] = []  # acknowledged
        self.buried: list[int] = []  # in the dead letters
        self.back: list[list[Any]] = []  # [seq, deliveries, first_ms, last_ms, reason, ready_at]
        self.dying: list[list[Any]] = []  # [seq, deliveries, first_ms, last_ms, reason]
        self.free: list[int] = []
        self._told: list[Callable[[TopicdError | None], None]] = []
        self._claims: list[WaitingClaim] = []
        self._body: dict[str, Any] = {}

    def acknowledge(self, seqs: list[int]) -> None:
        self.done += seqs

    def give_back(self, seq: int, past: Past, ready_at: int) -> None:
        self.back.append([seq, *past, ready_at])

    def bury(self, seq: int, past: Past) -> None:
        self.dying.append([seq, *past])

    def then(self, told: Callable[[TopicdError | None], None]) -> None:
        """When it is stored, or cannot be."""
        self._told.append(told)

    def then_claim(self, taker: WaitingClaim) -> None:
        """The same, for one that takes others next."""
        self._claims.append(taker)

    # ---- the end of the turn ----

    def close(self) -> None:
        endings = self._endings
        topic, tools = endings.topic, endings.tools
        endings.open = None
        now = tools.clock.now_ms()
        endings.under_way += 1
        endings.count(acked=len(self.done), dead=len(self.buried))
        body = self._body = {"at": now, "totals": endings.totals.row}
        if self.done:
            body["done"] = flat_ranges(self.done)
            if topic.config.keep_done_ms:
                body["keep"] = endings.jobs.ran(self.done)  # sorted by now
        if self.buried:
            body["buried"] = flat_ranges(self.buried)
        if self.back:
            body["back"] = self.back
        if self.dying:
            body["dying"] = self.dying
        if self.free:
            body["free"] = flat_ranges(self.free)
        if not topic.policy.logged or not topic.live:
            self._applied()
            return
        tools.log.change(
            topic,
            FrameType.LEASE,
            body,
            seq=topic.seqs.head,
            need=topic.policy.need,
            applied=self._applied,
            refused=self._refused,
            numbered=True,
        )

    def _applied(self) -> None:
        endings, body = self._endings, self._body
        endings.under_way -= 1
        topic, jobs, tools = endings.topic, endings.jobs, endings.tools
        if self._only_done:
            jobs.totals = jobs.totals.at_least(body["totals"])
            for first, last in pairs(body["done"]):
                tools.deletion.apply_done(topic, first, last, jobs.ended(first, last))
        else:
            jobs.replay(FrameType.LEASE, body, int(body["at"]))
            gone = body.get("done", []) if not body.get("keep") else []
            gone = [*gone, *body.get("buried", [])]
            if gone:
                tools.deletion.apply_seqs(topic, Ranges(pairs(gone)))
        endings.ended(len(self.done))
        for tell in self._told:
            tell(None)
        endings.go_on(self._claims)
        if topic.followers:
            tools.agenda.moved(topic)

    @property
    def _only_done(self) -> bool:
        """The usual case, in which nothing has to be looked for in what the log was told."""
        return bool(self.done) and not (self.buried or self.back or self.dying or self.free or "keep" in self._body)

    def _refused(self, error: TopicdError) -> None:
        endings = self._endings
        endings.under_way -= 1
        jobs = endings.jobs
        endings.totals = jobs.totals
        for seq in [*self.done, *(int(row[0]) for row in self.back), *(int(row[0]) for row in self.dying)]:
            jobs.end_failed(seq)
        if jobs.dying:
            endings.tools.deadlines.wake_at(endings.alarm, endings.tools.clock.now_ms() + _AGAIN_MS)
        for tell in self._told:
            tell(error)
        for taker in self._claims:
            taker.not_granted(error)
