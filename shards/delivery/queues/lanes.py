"""Jobs that could be handed out, in the order in which they would be: by priority, in a priority the groups in turn,
in a group those that came back first, then by seq. Promise: what waits is counted exactly and costs a run of seqs, not
a job; a lower priority that others went before is served after STARVING_MS at the latest; a group that may not have
more is passed over without being looked at.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator

from topicd.limits import PRIORITY_DEFAULT, PRIORITY_MAX
from topicd.shards.delivery.queues.deadlines import is_over
from topicd.shards.delivery.queues.rates import Rate

STARVING_MS = 5_000
_PARKED_MS = 2_000  # no limit of a rate lasts longer


class Group:
    """Jobs that share limits. Those without a group have none."""

    __slots__ = ("in_flight", "lanes", "name", "parked_until", "rate")

    def __init__(self, name: str) -> None:
        self.name = name
        self.in_flight = 0
        self.lanes: list[Lane] = []
        self.rate = Rate()
        self.parked_until = -1  # -1: not parked; 0: until one of its jobs ends; else: a time


class Lane:
    """Jobs of one priority and one group."""

    __slots__ = ("active", "back", "band", "fresh", "group", "jobs", "ready")

    def __init__(self, band: Band, group: Group) -> None:
        self.band = band
        self.group = group
        self.jobs = 0  # that are placed here and not done; plain ones are not counted
        self.ready = 0
        self.back: list[tuple[int, int]] = []  # (since, seq): came back, or their time has come; a heap
        self.fresh: deque[list[int]] = deque()  # [first, last], ascending
        self.active = False  # in the turn of its band

    def seqs(self) -> Iterator[tuple[int, int]]:
        """All that are ready, as runs, in no particular order."""
        for _, seq in self.back:
            yield seq, seq
        yield from [(first, last) for first, last in self.fresh]

    def take_one(self) -> int:
        if self.back:
            return heapq.heappop(self.back)[1]
        return self.take_fresh(1)[0]

    def take_fresh(self, most: int) -> tuple[int, int]:
        """Neighbours, from the front."""
        run = self.fresh[0]
        first, last = run[0], min(run[1], run[0] + most - 1)
        if last == run[1]:
            self.fresh.popleft()
        else:
            run[0] = last + 1
        return first, last

    def add_fresh(self, first: int, last: int) -> None:
        """Behind all that are there."""
        if self.fresh and self.fresh[-1][1] + 1 == first:
            self.fresh[-1][1] = last
        else:
            self.fresh.append([first, last])

    def put_back(self, first: int, last: int) -> None:
        """What take_fresh took, and was not handed out."""
        if self.fresh and last + 1 == self.fresh[0][0]:
            self.fresh[0][0] = first
        else:
            self.fresh.appendleft([first, last])


class Band:
    """The lanes of one priority."""

    __slots__ = ("passed_ms", "priority", "ready", "turn")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.ready = 0
        self.turn: deque[Lane] = deque()  # that have jobs and may give some
        self.passed_ms = 0  # since then others went before jobs of this one; 0: none did


class Picked:
    """Neighbouring jobs that were taken out."""

    __slots__ = ("back", "first", "lane", "last", "size")

    def __init__(self, first: int, last: int, lane: Lane, back: bool) -> None:
        self.first = first
        self.last = last
        self.lane = lane
        self.back = back
        self.size = -1  # bytes of their records, once they were read

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def continues(self, other: Picked) -> bool:
        """Is the other one just the rest of this one?"""
        return not (self.back or other.back) and self.lane is other.lane and self.last + 1 == other.first


class GroupLimits:
    __slots__ = ("in_flight", "per_s")

    def __init__(self, in_flight: int, per_s: int) -> None:
        self.in_flight = in_flight  # 0: any number
        self.per_s = per_s

    @property
    def none(self) -> bool:
        return not (self.in_flight or self.per_s)


class Lanes:
    def __init__(self) -> None:
        self.bands = [Band(priority) for priority in range(PRIORITY_MAX + 1)]
        self.groups: dict[str, Group] = {"": Group("")}
        self._lanes: dict[tuple[int, str], Lane] = {}
        self.plain = self.get(PRIORITY_DEFAULT, "")
        self.ready = 0
        self._parked: list[Group] = []  # until a time

    def get(self, priority: int, group: str) -> Lane:
        lane = self._lanes.get((priority, group))
        if lane is None:
            found = self.groups.get(group)
            if found is None:
                found = self.groups[group] = Group(group)
            lane = self._lanes[(priority, group)] = Lane(self.bands[priority], found)
            found.lanes.append(lane)
        return lane

    def forget(self, lane: Lane) -> None:
        """It has no jobs any more."""
        if lane is self.plain or lane.ready or lane.jobs:
            return
        self._lanes.pop((lane.band.priority, lane.group.name), None)
        group = lane.group
        if lane in group.lanes:
            group.lanes.remove(lane)
        if group.name and not group.lanes and not group.in_flight:
            self.groups.pop(group.name, None)

    def __iter__(self) -> Iterator[Lane]:
        return iter(list(self._lanes.values()))

    def clear(self) -> None:
        """Nothing is ready; what is known of the lanes stays."""
        for band in self.bands:
            band.ready = 0
            band.turn.clear()
        for lane in self._lanes.values():
            lane.ready, lane.active = 0, False
            lane.back.clear()
            lane.fresh.clear()
        self.ready = 0

    # ---- jobs come ----

    def add_fresh(self, lane: Lane, first: int, last: int) -> None:
        lane.add_fresh(first, last)
        self._count(lane, last - first + 1)

    def add_back(self, lane: Lane, seq: int, since_ms: int) -> None:
        heapq.heappush(lane.back, (since_ms, seq))
        self._count(lane, 1)

    def put_back(self, picked: Picked, since_ms: int) -> None:
        """Taken out and not handed out."""
        if picked.back:
            for seq in range(picked.first, picked.last + 1):
                heapq.heappush(picked.lane.back, (since_ms, seq))
        else:
            picked.lane.put_back(picked.first, picked.last)
        group = picked.lane.group
        if group.name:
            group.in_flight -= picked.count
            if group.parked_until == 0:
                self._open(group)
        self._count(picked.lane, picked.count)

    def remove(self, lane: Lane, seq: int) -> bool:
        """This one shall not be handed out; False: it is not ready. Rare: every run of the lane is looked at."""
        before = len(lane.back)
        lane.back = [row for row in lane.back if row[1] != seq]
        found = len(lane.back) < before
        if found:
            heapq.heapify(lane.back)
        for at, (first, last) in enumerate(lane.fresh) if not found else ():
            if first <= seq <= last:
                del lane.fresh[at]
                if seq < last:
                    lane.fresh.insert(at, [seq + 1, last])
                if first < seq:
                    lane.fresh.insert(at, [first, seq - 1])
                found = True
                break
        if found:
            self._count(lane, -1)
            if not lane.ready and lane.active:
                lane.active = False
                lane.band.turn.remove(lane)
        return found

    def _count(self, lane: Lane, count: int) -> None:
        lane.ready += count
        lane.band.ready += count
        self.ready += count
        self._activate(lane)

    def _activate(self, lane: Lane) -> None:
        if lane.ready and not lane.active and lane.group.parked_until < 0:
            lane.active = True
            lane.band.turn.append(lane)

    # ---- jobs go ----

    def pick(self, most: int, now_ms: int, limits: GroupLimits) -> list[Picked]:
        """At most so many, in order; fewer: there are no more that may go now."""
        found: list[Picked] = []
        self.unpark(now_ms, limits)
        while most > 0:
            band = self._next_band(now_ms)
            if band is None:
                break
            starved = band.passed_ms and now_ms - band.passed_ms >= STARVING_MS
            self._note_passed(band, now_ms)
            picked = self._pick_from(band, 1 if starved else most, now_ms, limits)
            if picked is None:
                continue
            most -= picked.count
            last = found[-1] if found else None
            if last is not None and last.continues(picked):
                last.last = picked.last
            else:
                found.append(picked)
        return found

    def take_next(self) -> None:
        """As `pick` of one, where all that are ready are plain and fresh: the first of them."""
        lane = self.plain
        lane.take_fresh(1)
        band = lane.band
        band.passed_ms = 0
        lane.ready -= 1
        band.ready -= 1
        self.ready -= 1
        if not lane.ready:
            lane.active = False
            band.turn.popleft()

    def _next_band(self, now_ms: int) -> Band | None:
        """The one that has waited too long, else the highest."""
        best: Band | None = None
        for band in self.bands:
            if not band.turn:
                continue
            if band.passed_ms and now_ms - band.passed_ms >= STARVING_MS:
                return band
            best = band
        return best

    def _note_passed(self, served: Band, now_ms: int) -> None:
        served.passed_ms = 0
        for band in self.bands:
            if band is served:
                return
            if band.turn and (not band.passed_ms or band.passed_ms > now_ms):
                band.passed_ms = now_ms

    def _pick_from(self, band: Band, most: int, now_ms: int, limits: GroupLimits) -> Picked | None:
        lane = band.turn[0]
        group = lane.group
        limited = bool(group.name) and not limits.none
        room = self._group_room(group, now_ms, limits) if limited else most
        if room <= 0:
            self._park(group, limits)
            return None
        alone = len(band.turn) == 1
        if lane.back:
            seq = lane.take_one()
            picked = Picked(seq, seq, lane, True)
        else:
            first, last = lane.take_fresh(min(most, room) if alone else 1)
            picked = Picked(first, last, lane, False)
        count = picked.count
        lane.ready -= count
        band.ready -= count
        self.ready -= count
        if not lane.ready:
            lane.active = False
            band.turn.popleft()
        elif not alone:
            band.turn.rotate(-1)
        if group.name:
            group.in_flight += count
            if limits.per_s:
                group.rate.take(count, now_ms, limits.per_s)
        return picked

    # ---- limits of groups ----

    @staticmethod
    def _group_room(group: Group, now_ms: int, limits: GroupLimits) -> int:
        room = limits.in_flight - group.in_flight if limits.in_flight else 1 << 30
        return min(room, group.rate.room(now_ms, limits.per_s)) if limits.per_s else room

    def _park(self, group: Group, limits: GroupLimits) -> None:
        full = limits.in_flight and group.in_flight >= limits.in_flight
        group.parked_until = 0 if full else group.rate.free_at(limits.per_s)
        if not full:
            self._parked.append(group)
        for lane in group.lanes:
            if lane.active:
                lane.active = False
                lane.band.turn.remove(lane)

    def unpark(self, now_ms: int, limits: GroupLimits) -> None:
        """Groups whose time has come."""
        if not self._parked:
            return
        due = [group for group in self._parked if is_over(group.parked_until, now_ms, _PARKED_MS) or not limits.per_s]
        self._parked = [group for group in self._parked if group not in due]
        for group in due:
            self._open(group)

    def unpark_all(self) -> None:
        """The limits have changed."""
        self._parked = []
        for group in self.groups.values():
            if group.parked_until >= 0:
                self._open(group)

    def ended(self, group: Group) -> None:
        """One of its jobs is in flight no more."""
        group.in_flight -= 1
        if group.parked_until == 0:
            self._open(group)
        if not group.lanes and not group.in_flight:
            self.groups.pop(group.name, None)

    def _open(self, group: Group) -> None:
        group.parked_until = -1
        for lane in group.lanes:
            self._activate(lane)

    @property
    def parked_until(self) -> int | None:
        """When the next group may go on; None: none waits for a time."""
        return min((group.parked_until for group in self._parked), default=None)

    @property
    def any_may_go(self) -> bool:
        return any(band.turn for band in self.bands)
