"""One turn: bytes arrive or the doorbell rings; entries are told their outcome; topics that moved tell their followers;
connections flush; the WAL shards are rung. And staying awake a moment for what usually comes next (docs/adr/0006).

Promise: where all of it takes less than TURN_S it is done in this turn, in whatever order is quickest; where it takes
longer, ready.py says who is next, and the loop looks at its sockets every TURN_S. Under pressure (ipc/pressure.py)
pushes are gathered, and those of topics with a negative priority wait.
"""

from __future__ import annotations

import asyncio
import time

from topicd.ipc.doorbell import Doorbell
from topicd.ipc.linger import Linger, events_of
from topicd.ipc.pressure import Board
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.load import Load
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.pulse import Pulse
from topicd.shards.delivery.reading.fan_out import SHARED, FanOut
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.append import Appender
from topicd.shards.delivery.writing.outlet import Outlet

TURN_S = 0.002  # so long at most are followers told, then the loop looks at its sockets
_NEXT_REQUEST_US = 60  # what an answer takes to its writer, and the writer's next request to here


class Turn:
    def __init__(
        self,
        place: Place,
        bell: Doorbell,
        loop: asyncio.AbstractEventLoop,
        outlets: list[Outlet],
        agenda: Agenda,
        appender: Appender,
        retention: Retention,
        pulse: Pulse,
        board: Board,
        load: Load,
        fan_out: FanOut,
    ) -> None:
        self._bell = bell
        self._loop = loop
        self._board = board
        self._load = load
        self._fan_out = fan_out
        self._ready = agenda.ready
        self._used_up = False  # the last turn left some for the next
        self._lone = False  # what is told is the only write there was
        self._gathering: asyncio.TimerHandle | None = None
        self._serve_from = 0.0  # pushes are gathered until then
        self._outlets = outlets
        self._agenda = agenda
        self._appender = appender
        self._retention = retention
        self._pulse = pulse
        linger_us = place.settings.linger_us
        self._write_linger = Linger(linger_us)
        self._request_linger = Linger(min(_NEXT_REQUEST_US, linger_us))
        self._events = events_of(loop)
        agenda.run_turn = self._run
        for outlet in outlets:
            outlet.send_answers = agenda.flush_all

    def doorbell(self) -> None:
        """The WAL shards have news. Announce, then look once more: what came in between would not ring again."""
        bell = self._bell
        lone = self._lone = self._under_way() == 1
        while True:
            self._collect()
            # Emptied only now: those who wait for an answer do not wait for this.
            bell.awake()
            bell.announce()
            if not self._collect():
                break
        self._lone = False
        if lone and not self._under_way():
            self._await_request()

    def _collect(self) -> bool:
        told = False
        for outlet in self._outlets:
            told = outlet.collect() or told
        if told or not self._agenda.empty:
            self.end()
        return told

    def end(self) -> None:
        """Ring first where somebody waits for the log: the disk works while followers and sessions are served. What
        nobody waits for comes last: a WAL shard that wakes takes a core."""
        agenda = self._agenda
        agenda.close_gathered()
        self.heard(lone=self._lone)
        agenda.close_gathered()
        agenda.ring_all()

    def heard(self, *, lone: bool) -> None:
        """One connection was listened to. What is gathered waits for the others that this look at the sockets has
        found: acknowledgements of several workers go to the log as one. lone: it brought one write, and there may be
        nothing else to do."""
        agenda = self._agenda
        self._appender.close_entry()
        agenda.ring_awaited()
        if len(self._ready) and not self._used_up:
            self._serve()
        agenda.flush_all(give_way=lone)
        agenda.ring_all()
        self._pulse.show()
        self._load.stir()

    def _run(self) -> None:
        """The sockets were looked at."""
        self._used_up = False
        self.end()

    # ---- telling followers ----

    def _serve(self) -> None:
        window_us = self._board.gather_us
        if window_us and not self._is_gathered(window_us / 1_000_000):
            return
        ready, until = self._ready, time.monotonic() + TURN_S
        topic = ready.next()
        while topic is not None:
            self._tell(topic)
            if not len(ready):
                return
            if time.monotonic() >= until:
                break
            topic = ready.next()
        ready.settle()
        self._used_up = True
        self._serve_from = 0.0  # those that are left have waited
        self._agenda.start_turn()

    def _tell(self, topic: Topic) -> None:
        if topic.policy.evicts:
            self._retention.enforce(topic)
        if not topic.followers:
            return
        if topic.policy.yields and self._board.pausing:
            self._tell_who_asked(topic)
            return
        pulse, followers = self._pulse, list(topic.followers)
        if len(followers) >= SHARED:
            followers = self._fan_out.push(topic, followers)
        for follower in followers:
            follower.moved()
            pulse.show()

    def _tell_who_asked(self, topic: Topic) -> None:
        """It can be read all the time; it is not pushed."""
        self._ready.park(topic, self._ready.since)
        for follower in list(topic.followers):
            if follower.asked:
                follower.moved()

    def look_at_pauses(self) -> None:
        """Regularly: may those that were not pushed be pushed again?"""
        if self._ready.parked and not self._board.pausing:
            self._ready.unpark()
            self._agenda.start_turn()

    def _is_gathered(self, window_s: float) -> bool:
        """Is it time for pushes? If not, it will be, and caps hold meanwhile."""
        now = time.monotonic()
        if now >= self._serve_from:
            self._serve_from = now + window_s
            return True
        for topic in self._ready.fresh:
            if topic.policy.evicts:
                self._retention.enforce(topic)
        if self._gathering is None:
            self._gathering = self._loop.call_later(self._serve_from - now, self._gathered)
        return False

    def _gathered(self) -> None:
        self._gathering = None
        self._agenda.start_turn()

    # ---- lingering ----

    def await_write(self) -> None:
        """A lone write is stored sooner than this process could fall asleep and be woken. Whatever else comes ends
        the wait."""
        if self._under_way() != 1 or not self._write_linger.worthwhile():
            return
        bell = self._bell
        bell.withdraw()
        stored = self._write_linger.until(self._stored_or_disturbed)
        bell.announce()
        self._lone = True
        self._collect()
        self._lone = False
        if stored and not self._under_way():
            self._await_request()

    def _under_way(self) -> int:
        return sum(outlet.under_way for outlet in self._outlets)

    def _stored_or_disturbed(self) -> bool:
        return any(outlet.oldest_is_stored for outlet in self._outlets) or self._something_came()

    def _await_request(self) -> None:
        """A client that writes one record at a time sends the next when it has the answer. Nothing is read here: the
        loop finds the request, and whatever else came, without having slept."""
        if self._request_linger.worthwhile():
            self._request_linger.until(self._something_came)

    def _something_came(self) -> bool:
        return self._events is not None and bool(self._events.poll(0))
