"""One turn: bytes arrive or the doorbell rings; entries are told their outcome; topics that moved tell their followers;
connections flush; the WAL shards are rung. And staying awake a moment for what usually comes next (docs/adr/0006).
"""

from __future__ import annotations

import asyncio
import select
from typing import Any

from topicd.ipc.doorbell import Doorbell
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.pulse import Pulse
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.writing.append import Appender
from topicd.shards.delivery.writing.outlet import Outlet
from topicd.shards.process.linger import Linger

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
    ) -> None:
        self._bell = bell
        self._outlets = outlets
        self._agenda = agenda
        self._appender = appender
        self._retention = retention
        self._pulse = pulse
        linger_us = place.settings.linger_us
        self._write_linger = Linger(linger_us)
        self._request_linger = Linger(min(_NEXT_REQUEST_US, linger_us))
        self._events = _events_of(loop)
        agenda.run_turn = self.end
        for outlet in outlets:
            outlet.send_answers = agenda.flush_all

    def doorbell(self) -> None:
        """The WAL shards have news. Announce, then look once more: what came in between would not ring again."""
        bell = self._bell
        lone = self._under_way() == 1
        while True:
            self._collect()
            # Emptied only now: those who wait for an answer do not wait for this.
            bell.awake()
            bell.announce()
            if not self._collect():
                break
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
        """Ring first: the disk works while followers and sessions are served."""
        agenda = self._agenda
        self._appender.close_entry()
        agenda.ring_all()
        while (topic := agenda.ready.next()) is not None:
            if topic.policy.evicts:
                self._retention.enforce(topic)
            for follower in list(topic.followers):
                follower.moved()
                self._pulse.show()
        agenda.flush_all()
        self._pulse.show()

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
        self._collect()
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


def _events_of(loop: asyncio.AbstractEventLoop) -> Any:
    """Tells whether the loop has anything to do; None: this loop does not show it."""
    backend = getattr(loop, "_get_backend_id", None)
    if backend is None:
        return None
    events = select.poll()
    events.register(backend(), select.POLLIN)
    return events
