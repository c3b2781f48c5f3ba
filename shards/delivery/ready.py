"""Topics that moved and whose followers have not been told yet: who is told next. Promise: each topic at most once;
five bands by effective priority are served 8 : 4 : 2 : 1 : 1 while all of them have something, first in, first out
inside a band; who waits climbs, and is in the highest band after ten seconds.

Whoever is alone is served without a look at priorities: where everything is served in the same turn there is nothing
to order. `fresh` holds what came since the last look; a look deals it to the bands. In a round each band may be served
as often as its weight says; the round ends when no band that has something may be served any more. A band that is
empty for a moment keeps what is left of its round: its topics come back when the sockets have been looked at.
"""

from __future__ import annotations

from collections import deque

from topicd.clock import Clock
from topicd.shards.delivery.topic.topic import Topic

BAND_FLOORS = (750, 500, 250, 0)  # least priority of each band but the last
WEIGHTS = (8, 4, 2, 1, 1)
BANDS = len(WEIGHTS)
_PRIORITY_MAX = 1_000
_BOOST = 500
_HALF_LIFE_MS = 30_000
_FORGOTTEN_MS = 300_000
_AGE_PER_S = 100.0
_AGE_MAX = 1_000.0
_TICK_S = 0.05  # who waits is looked at so often
_TICK_TOPICS = 5_000  # as many again for each tick: a look at very many topics must not take the time to serve them


class Ready:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._bands: list[deque[Topic]] = [deque() for _ in WEIGHTS]
        self._left = list(WEIGHTS)  # of this round
        self._dealt = 0  # topics in the bands
        self._tick_due = 0.0
        self.since = -1.0  # since when the one that was taken last had waited
        self.fresh: deque[Topic] = deque()
        self.parked: dict[int, Topic] = {}  # moved, and nobody is told until the pressure is gone
        self.worst_wait_s = 0.0  # of those served since this was set to 0

    def __len__(self) -> int:
        return self._dealt + len(self.fresh)

    def add(self, topic: Topic) -> None:
        if not topic.in_ready:
            topic.in_ready = True
            self.fresh.append(topic)

    def next(self) -> Topic | None:
        fresh = self.fresh
        if not self._dealt:
            if not fresh:
                return None
            if len(fresh) == 1:
                return self._taken(fresh.popleft())
        now = self._clock.monotonic()
        if fresh:
            self._deal(now)
        if now >= self._tick_due:
            self._promote(now)
        band = self._next_band()
        self._left[band] -= 1
        self._dealt -= 1
        topic = self._bands[band].popleft()
        self.worst_wait_s = max(self.worst_wait_s, now - topic.waiting_since)
        return self._taken(topic)

    def forget(self, topic: Topic) -> None:
        self.parked.pop(topic.id, None)
        if not topic.in_ready:
            return
        for waiting in (self.fresh, *self._bands):
            if topic in waiting:
                waiting.remove(topic)
                self._dealt -= waiting is not self.fresh
        self._taken(topic)

    def settle(self) -> None:
        """The turn is over and some could not be served: their waiting counts from now."""
        if self.fresh:
            self._deal(self._clock.monotonic())

    def oldest_wait_s(self) -> float:
        """Of those that wait now."""
        if not self._dealt:
            return 0.0
        now = self._clock.monotonic()
        return max(now - band[0].waiting_since for band in self._bands if band)

    # ---- those that nobody is told of for a while ----

    def park(self, topic: Topic, since: float = -1.0) -> None:
        """Its followers wait until the pressure is gone. since: they have waited since then already."""
        if topic.waiting_since < 0:
            topic.waiting_since = since if since >= 0 else self._clock.monotonic()
        self.parked[topic.id] = topic

    def unpark(self) -> None:
        parked, self.parked = self.parked, {}
        for topic in parked.values():
            self.add(topic)

    # ---- bands ----

    def _taken(self, topic: Topic) -> Topic:
        self.since = topic.waiting_since
        topic.in_ready = False
        topic.waiting_since = -1.0
        return topic

    def _deal(self, now: float) -> None:
        """Each to its band, behind those that wait there."""
        now_ms, fresh = self._clock.now_ms(), self.fresh
        if not self._dealt:
            self._tick_due = now + _TICK_S
        self._dealt += len(fresh)
        while fresh:
            topic = fresh.popleft()
            if topic.waiting_since < 0:
                topic.waiting_since = now
            self._bands[band_of(effective_priority(topic, now_ms, now))].append(topic)

    def _promote(self, now: float) -> None:
        """Deal all anew, those that wait longest first: age counts now."""
        self._tick_due = now + _TICK_S * (1 + self._dealt // _TICK_TOPICS)
        waiting = sorted([topic for band in self._bands for topic in band], key=_since)
        for band in self._bands:
            band.clear()
        now_ms = self._clock.now_ms()
        for topic in waiting:
            self._bands[band_of(effective_priority(topic, now_ms, now))].append(topic)

    def _next_band(self) -> int:
        bands, left = self._bands, self._left
        for band in range(BANDS):
            if left[band] > 0 and bands[band]:
                return band
        self._left = list(WEIGHTS)
        for band in range(BANDS):
            if bands[band]:
                return band
        raise AssertionError("asked for a band while nobody waits")


def _since(topic: Topic) -> float:
    return topic.waiting_since


def band_of(priority: int, lower: int = 0) -> int:
    """0: the first. lower: so many bands further down, for work that goes behind the rest under pressure."""
    band = 0
    for floor in BAND_FLOORS:
        if priority >= floor:
            break
        band += 1
    return min(band + lower, BANDS - 1)


def effective_priority(topic: Topic, now_ms: int, now: float) -> int:
    """Its own priority, or one that fades after the last read; and what waiting adds. now_ms, now: the clock's two
    times."""
    config = topic.config
    found = 0.0
    if config.priority is not None:
        found = float(max(-_PRIORITY_MAX, min(_PRIORITY_MAX, config.priority)))
    elif config.auto_priority and topic.last_read_ms:
        idle = max(0, now_ms - topic.last_read_ms)
        if idle < _FORGOTTEN_MS:
            found = _BOOST * 2.0 ** (-idle / _HALF_LIFE_MS)
    if topic.waiting_since >= 0:
        found += min(_AGE_MAX, _AGE_PER_S * max(0.0, now - topic.waiting_since))
    return round(found)
