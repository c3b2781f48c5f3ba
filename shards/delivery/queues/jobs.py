"""The jobs of a queue as the log tells of them. Promise: they change by frames of the log only, so that a start finds
what was answered.

Not in the log, and gone with the process: leases, unless the queue is configured so, and what is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from topicd.frames import FrameType
from topicd.model import TopicConfig
from topicd.shards.delivery.queues.crons import Cron
from topicd.shards.delivery.queues.facts import Kept, Past, Stop, Totals
from topicd.shards.delivery.queues.options import Options
from topicd.shards.delivery.queues.states import JobStates
from topicd.shards.delivery.queues.uniques import Held
from topicd.shards.storage.ranges import Ranges


class _Upcoming:
    """Options of a batch that is on its way."""

    __slots__ = ("before", "replaces", "rows", "tick")

    def __init__(self, rows: list[Options], replaces: int, before: Held | None) -> None:
        self.rows = rows
        self.replaces = replaces  # a job that goes when this one is there; 0: none
        self.tick: tuple[str, int, int] | None = None
        self.before = before  # who held the key of it


class Jobs(JobStates):
    KEY: ClassVar[str] = "queue"
    FRAMES: ClassVar[frozenset[FrameType]] = frozenset({FrameType.LEASE})

    def __init__(self, config: TopicConfig) -> None:
        super().__init__(config)
        self._seen = 0  # newest seq that is in one of the states
        self._upcoming: dict[int, _Upcoming] = {}  # by first seq
        self._through = 0  # newest seq whose options a snapshot holds

    # ---- jobs come ----

    def announce(
        self, first_seq: int, rows: list[Options], replaces: int = 0, tick: tuple[str, int, int] | None = None
    ) -> None:
        """Options of a batch whose records will be, or were just, given these seqs."""
        before: Held | None = None
        for row in rows:
            if row.key:
                before = self.keys.holder(row.key, 0)
                self.keys.hold(row.key, row.first, row.until, row.key_ms)
        if replaces:
            self.withdraw(replaces)
        upcoming = self._upcoming[first_seq] = _Upcoming(rows, replaces, before)
        upcoming.tick = tick

    def take_back(self, first_seq: int) -> None:
        """That batch was not stored."""
        upcoming = self._upcoming.pop(first_seq, None)
        if upcoming is None:
            return
        for row in upcoming.rows:
            if row.key:
                self.keys.take_back(row.first)
                if upcoming.before is not None:
                    self.keys.hold(row.key, *upcoming.before)
        if upcoming.replaces in self._withdrawn:
            self.put_again(upcoming.replaces, self._withdrawn[upcoming.replaces])

    def replay_options(self, first_seq: int, body: dict[str, Any]) -> None:
        """From the log, with a batch that is whole."""
        if first_seq <= self._through:
            # The snapshot holds them, and what became of these jobs since; but not that the one replaced is dead.
            if body.get("replaces"):
                self.replaced.append(int(body["replaces"]))
            return
        rows = [Options.from_log(row) for row in body.get("opts", ())]
        tick = tuple(body["tick"]) if "tick" in body else None
        self.announce(first_seq, rows, int(body.get("replaces", 0)), tick)
        self.catch_up(max((row.last for row in rows), default=first_seq), 0)

    def catch_up(self, visible: int, now_ms: int) -> None:
        """Jobs up to there can be read: they are ready, or delayed."""
        if visible <= self._seen:
            return
        first = self._seen + 1
        if self._upcoming:
            for seq in sorted(seq for seq in self._upcoming if seq <= visible):
                upcoming = self._upcoming.pop(seq)
                for row in upcoming.rows:
                    if first < row.first and self.opened:
                        self.lanes.add_fresh(self.lanes.plain, first, row.first - 1)
                    self._place(row, now_ms)
                    first = max(first, row.last + 1)
                if upcoming.tick is not None:
                    self._ticked(*upcoming.tick)
                if upcoming.replaces:
                    self.ended(upcoming.replaces, upcoming.replaces)
                    self.replaced.append(upcoming.replaces)
        if first <= visible and self.opened:
            self.lanes.add_fresh(self.lanes.plain, first, visible)
        self._seen = visible

    def open(self, live: Iterable[tuple[int, int]], visible: int, now_ms: int) -> None:
        """From now on the ready ones are in their lanes; again when records went that nobody told us of."""
        self.catch_up(visible, now_ms)
        self.fill(live, visible)

    # ---- changes ----

    def replay(self, kind: FrameType, body: dict[str, Any], ts: int) -> None:
        for key, change in _CHANGES:
            if key in body:
                change(self, body)

    def _replay_done(self, body: dict[str, Any]) -> None:
        done, at = body["done"], int(body["at"])
        for i in range(0, len(done), 2):
            first, last = int(done[i]), int(done[i + 1])
            self.ended(first, last)
        keep = body.get("keep")
        for row in _pairs(done) if keep is True else keep or ():  # True: as it was before more was told of them
            self.keep(Kept(at, *row))

    def _replay_buried(self, body: dict[str, Any]) -> None:
        """In the dead letters."""
        for first, last in _pairs(body["buried"]):
            self.ended(first, last)

    def _replay_gone(self, body: dict[str, Any]) -> None:
        """Done and kept long enough."""
        gone = Ranges((int(first), int(last)) for first, last in _pairs(body["gone"]))
        self.drop_kept(gone)

    def _replay_back(self, body: dict[str, Any]) -> None:
        """Given back, with what is to be known of it."""
        at = int(body["at"])
        for seq, deliveries, first_ms, last_ms, reason, ready_at in body["back"]:
            if self.leases.end(seq) is not None or self.finishing.pop(seq, None) is not None:
                self._left(seq)
            self.dying.discard(seq)
            self.past[seq] = Past(deliveries, first_ms, last_ms, reason)
            if ready_at > at:
                self._delay(seq, ready_at)
            elif self.opened:
                self.lanes.add_back(self.lane_of(seq), seq, at)

    def _replay_dying(self, body: dict[str, Any]) -> None:
        for seq, deliveries, first_ms, last_ms, reason in body["dying"]:
            if self.leases.end(seq) is not None or self.finishing.pop(seq, None) is not None:
                self._left(seq)
            self.delayed.pop(seq, None)
            self.past[seq] = Past(deliveries, first_ms, last_ms, reason)
            self.dying.add(seq)

    def _replay_leases(self, body: dict[str, Any]) -> None:
        """Of a queue that keeps them: given out, or extended."""
        for first, last, base, deadline, node in body["lease"]:
            for seq in range(first, last + 1):
                self.delayed.pop(seq, None)
                self.keys.started(seq)
            if not self.opened:
                self.leases.give(first, last, base, deadline, node, None)
                self.leases.next_number = max(self.leases.next_number, base + last - first + 1)

    def _replay_free(self, body: dict[str, Any]) -> None:
        """Nobody holds these any more."""
        for first, last in _pairs(body["free"]):
            for seq in range(first, last + 1):
                if self.leases.end(seq) is not None and self.opened:
                    self._left(seq)
                    self.lanes.add_back(self.lane_of(seq), seq, int(body["at"]))

    def _replay_schedule(self, body: dict[str, Any]) -> None:
        """A job that waits has another time."""
        for seq, ready_at in body["sched"]:
            if self.opened:
                self.delayed.pop(seq, None)
                self._withdrawn.pop(seq, None)
                if ready_at <= int(body["at"]):
                    self.lanes.add_back(self.lane_of(seq), seq, ready_at)
                    continue
            self._delay(seq, ready_at)

    def _replay_stops(self, body: dict[str, Any]) -> None:
        if "pause" in body:
            self.paused = None if body["pause"] is None else Stop(*body["pause"])
        if "drain" in body:
            self.draining = None if body["drain"] is None else Stop(*body["drain"])

    def _replay_mark(self, body: dict[str, Any]) -> None:
        self.leases.marked = max(self.leases.marked, int(body["mark"]))

    def _replay_totals(self, body: dict[str, Any]) -> None:
        self.totals = self.totals.at_least(body["totals"])

    def _replay_crons(self, body: dict[str, Any]) -> None:
        if "cron" in body:
            cron = Cron.from_row(body["cron"])
            self.crons[cron.name] = cron
        if "uncron" in body:
            self.crons.pop(str(body["uncron"]), None)

    def _ticked(self, name: str, at_ms: int, next_ms: int) -> None:
        """A schedule has fired for this time."""
        cron = self.crons.get(name)
        if cron is not None and at_ms > cron.last_ms:
            self.crons[name] = cron._replace(last_ms=at_ms, next_ms=next_ms)

    # ---- snapshots ----

    def to_snapshot(self, visible: int) -> dict[str, Any]:
        self.catch_up(visible, 0)
        rows = [[run.first, run.last, run.lane.band.priority, run.lane.group.name] for run in self.placed]
        leases = self.leases.rows() if self.logs_leases else []
        if self.logs_leases:
            leases += [[seq, seq, g.number(seq), g.deadline, g.node] for seq, g in self.finishing.items()]
        return {
            "through": visible,
            "placed": rows,
            "past": [[seq, *past] for seq, past in self.past.items()],
            "delayed": [[seq, at] for seq, at in [*self.delayed.items(), *self._withdrawn.items()] if at],
            "dying": sorted(self.dying),
            "kept": [list(row) for row in self.kept],
            "unique": self.keys.rows(visible),
            "leases": leases,
            "mark": self.leases.marked,
            "paused": None if self.paused is None else list(self.paused),
            "draining": None if self.draining is None else list(self.draining),
            "totals": self.totals.row,
            "replaced": list(self.replaced),
            "crons": [cron.to_row() for cron in self.crons.values()],
        }

    def restore(self, body: dict[str, Any]) -> None:
        self._through = self._seen = int(body["through"])
        for first, last, priority, group in body["placed"]:
            self.placed.add(first, last, self.lanes.get(priority, group))
        self.past = {row[0]: Past(*row[1:]) for row in body["past"]}
        for seq, ready_at in body["delayed"]:
            self._delay(seq, ready_at)
        self.dying = set(body["dying"])
        self.set_kept([Kept(*row) for row in body["kept"]])
        self.keys.restore(body["unique"])
        self.leases.marked = int(body["mark"])
        for first, last, base, deadline, node in body["leases"]:
            self.leases.give(first, last, base, deadline, node, None)
        self.paused = None if body["paused"] is None else Stop(*body["paused"])
        self.draining = None if body["draining"] is None else Stop(*body["draining"])
        self.totals = Totals(*body["totals"])
        self.replaced = list(body["replaced"])
        for row in body["crons"]:
            cron = Cron.from_row(row)
            self.crons[cron.name] = cron


def _pairs(flat: list[int]) -> list[tuple[int, int]]:
    return [(flat[i], flat[i + 1]) for i in range(0, len(flat), 2)]


# In this order: what ends a job comes before what is said of others.
_CHANGES: tuple[tuple[str, Callable[[Jobs, dict[str, Any]], None]], ...] = (
    ("done", Jobs._replay_done),
    ("buried", Jobs._replay_buried),
    ("gone", Jobs._replay_gone),
    ("back", Jobs._replay_back),
    ("dying", Jobs._replay_dying),
    ("lease", Jobs._replay_leases),
    ("free", Jobs._replay_free),
    ("sched", Jobs._replay_schedule),
    ("pause", Jobs._replay_stops),
    ("drain", Jobs._replay_stops),
    ("mark", Jobs._replay_mark),
    ("totals", Jobs._replay_totals),
    ("cron", Jobs._replay_crons),
    ("uncron", Jobs._replay_crons),
)
