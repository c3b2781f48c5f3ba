"""The supervisor's loop. Promise: READY only when every shard serves; a dead or silent child is replaced
while the others go on; a stop ends within stop_timeout_s; when idle, one wake-up a second, under pressure one more
every 100 ms.

turn() is one round and reads as its steps. Exit codes: 0 clean, 1 failed, 2 configuration, 3 lock held.
"""

from __future__ import annotations

import gc
import logging
import os
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from topicd import telemetry
from topicd.config import ConfigError, Settings
from topicd.errors import InvalidRequest
from topicd.ipc.control import process_name
from topicd.ipc.protocol.wire import OP_DEBUG, OP_HELLO, OP_PING, OP_STATUS, check_version
from topicd.supervisor import kinds, reloading, status
from topicd.supervisor.family import Family
from topicd.supervisor.front import Front
from topicd.supervisor.governor import Governor
from topicd.supervisor.kinds import Kind
from topicd.supervisor.metrics_server import MetricsServer, Page
from topicd.supervisor.notify import Notifier
from topicd.supervisor.resources import Resources
from topicd.supervisor.signals import STOP, SignalQueue
from topicd.supervisor.states import PHASES, Machine, Phase
from topicd.supervisor.stopping import StopPlan
from topicd.supervisor.template import Template

OK, FAILED, BAD_CONFIG, LOCK_HELD = 0, 1, 2, 3
TICK_S = 1.0
STATUS_FRESH_S = 0.02
START_PATIENCE_S = 30.0
READY_PHASES = frozenset({Phase.SERVING, Phase.DEGRADED})

log = logging.getLogger(__name__)


class Supervisor:
    def __init__(
        self,
        settings: Settings,
        reload: Callable[[], Settings],
        announce: Callable[[str], None],
        table: Sequence[Kind],
        template: Template | None = None,
    ) -> None:
        self._settings = settings
        self._kinds = table
        self._reload_settings = reload
        self._announce = announce
        self._resources = Resources(settings)
        self._signals = SignalQueue()
        self._notifier = Notifier(os.environ)
        self._selector = selectors.DefaultSelector()
        self._front = Front(self._selector, self._answer, settings.uids)
        pages = {"/metrics": self._metrics, "/health": self._health, "/ready": self._ready}
        self._metrics_server = MetricsServer(self._selector, pages)
        self._governor = Governor(settings.delivery_shards)
        self._family = Family(
            self._selector, self._resources, settings, table, self._fail, self._governor.call, template
        )
        self._table = status.ProcessTable()
        self._scraped = status.ProcessTable()
        self._phase = Machine(PHASES, Phase.STARTING)
        self._plan: StopPlan | None = None
        self._failure = ""
        self._told: dict[bool, tuple[float, dict[str, Any]]] = {}  # by whether it has the stats: when, what
        self._drained = False
        self._tick_s = min(TICK_S, settings.heartbeat_timeout_s / 4)
        self._started_at = self._turned_at = time.monotonic()
        self._ticked_at = float("-inf")

    def run(self) -> int:
        try:
            self.open()
            while self._phase.now is not Phase.STOPPED:
                self.turn()
        finally:
            self.close()
        return OK if self._drained and not self._failure else FAILED

    def open(self) -> None:
        self._resources.take_lock()
        self._signals.open()
        self._selector.register(self._signals, selectors.EVENT_READ, None)
        self._notifier.open()
        names = [process_name(kind.name, index) for kind, index in kinds.names_of(self._kinds, self._settings)]
        self._resources.open(names)
        self._governor.open(self._resources.board)
        sockets = kinds.sockets_of(self._kinds, self._settings, self._resources.run_dir)
        self._front.open(self._resources.listen(os.environ, sockets))
        where = self._resources.run_dir.metrics_socket
        self._metrics_server.open(where, self._settings.mode, self._settings.metrics_port)
        self._family.open(time.monotonic())
        self._tell_status()

    def close(self) -> None:
        self._front.close()
        self._metrics_server.close()
        # Whoever still runs takes this for the supervisor's death, finishes what is in the rings, and leaves.
        self._family.close()
        self._resources.close(clean=self._drained or not self._family.children)
        self._notifier.close()
        self._signals.close()
        self._selector.close()

    def turn(self) -> None:
        self._wait()
        now = time.monotonic()
        self._obey_signals(now)
        self._family.reap(now, self._wanted)
        self._check_heartbeats(now)
        self._family.start_due(now, self._wanted)
        self._family.answer(now)
        self._governor.look(now)
        self._advance(now)
        self._tell_status()

    # ---- the steps of a turn ----

    def _wait(self) -> None:
        now = time.monotonic()
        moments = [now + self._tick_s]
        if (start := self._family.next_start(self._wanted)) is not None:
            moments.append(start)
        if (look := self._governor.next_at) is not None:
            moments.append(look)
        if self._plan is not None and (press := self._plan.next_at(now)) is not None:
            moments.append(press)
        for key, mask in self._selector.select(max(0.0, min(moments) - now)):
            if key.data is not None:
                key.data(mask)

    def _obey_signals(self, now: float) -> None:
        for number in self._signals.take():
            if number == signal.SIGHUP:
                self._reload()
            elif number in STOP and self._plan is None:
                log.info("stopping", extra={"signal": signal.Signals(number).name})
                self._stop(now)
            elif number == signal.SIGINT and self._plan is not None:
                log.warning("second interrupt: killing what is left")
                self._plan.hurry()

    def _check_heartbeats(self, now: float) -> None:
        """At every tick. While stopping, the plan's deadlines count instead."""
        if now - self._turned_at > self._settings.heartbeat_timeout_s / 2:
            # This process was stopped or starved itself: what looks like silence may be our own sleep.
            self._family.forgive(now)
        self._turned_at = now
        if now - self._ticked_at < self._tick_s:
            return
        self._ticked_at = now
        self._front.resume()
        self._metrics_server.tick()
        fresh = self._plan is not None or self._family.heartbeats_fresh(now)
        if fresh:
            self._notifier.alive(now)
        if fresh and self._phase.now in (Phase.STARTING, Phase.RECOVERING):
            self._notifier.more_time(START_PATIENCE_S)

    def _advance(self, now: float) -> None:
        if self._plan is not None:
            self._plan.step(now)
            if self._plan.done:
                self._finish()
            return
        if self._note_serving():
            self._family.tell_start()
        if self._phase.now not in READY_PHASES and not self._failure:
            self._phase.move(Phase.RECOVERING if self._family.first_serve() else Phase.STARTING)
        serving = self._family.serving()
        if serving and self._phase.now in (Phase.RECOVERING, Phase.DEGRADED):
            first = self._phase.now is Phase.RECOVERING
            self._phase.move(Phase.SERVING)
            log.info("serving", extra={"after_s": round(now - self._started_at, 3)})
            if first:
                self._notifier.ready()
                if not gc.isenabled():  # as in child.start_collector
                    gc.freeze()
                    gc.enable()
                self._announce(status.greeting(self._resources.run_dir, self._resources.http_address))
        elif not serving and self._phase.now is Phase.SERVING:
            self._phase.move(Phase.DEGRADED)

    def _tell_status(self) -> None:
        self._notifier.status(status.summary(self._phase.now, self._family.children))

    # ---- the daemon as a whole ----

    def _wanted(self, kind: Kind) -> bool:
        """Shall children of that kind run? While stopping, only those that others still need."""
        return self._plan is None or self._plan.needs(kind)

    def _note_serving(self) -> bool:
        try:
            self._family.note_serving()
        except OSError as exc:
            # Serving on would let the next start mistake this run's rings for empty ones.
            self._fail(f"cannot record that the previous run is recovered: {exc}")
            return False
        return True

    def _fail(self, message: str) -> None:
        if not self._failure:
            self._failure = message
            log.error("topicd failed", extra={"reason": message})
        self._stop(time.monotonic())

    def _stop(self, now: float) -> None:
        if self._plan is None:
            self._resources.stop_listening()
            self._plan = StopPlan(self._family.children, self._settings.stop_timeout_s, now)
            self._phase.move(Phase.STOPPING)
            self._notifier.stopping()

    def _finish(self) -> None:
        self._phase.move(Phase.STOPPED)
        self._drained = all(child.exit_code == 0 for child in self._family.children if child.kind.ends_clean)
        if self._drained:
            log.info("stopped")
        else:
            log.warning("stopped; the next start will finish what is left in shared memory")

    def _reload(self) -> None:
        try:
            self._settings, changed = reloading.merge(self._settings, self._reload_settings())
        except ConfigError as exc:
            log.error("settings not reloaded", extra={"error": exc})
            return
        ready = self._phase.now in READY_PHASES
        if ready:
            self._notifier.reloading()
        telemetry.set_level(self._settings.log_level)
        self._front.uids = self._settings.uids
        self._family.settings = self._settings
        self._family.tell({"event": "reload", "settings": self._settings.to_wire()})
        log.info("settings reloaded", extra=changed)
        if ready:
            self._notifier.ready()

    def _answer(self, op: int, body: dict[str, Any]) -> dict[str, Any]:
        """For the front: the map that answers a request."""
        if op == OP_HELLO:
            check_version(body.get("version"))
            shape = status.shard_map(self._resources.identity.instance, self._settings, self._resources.run_dir)
            return {**shape, "state": str(self._phase.now)}
        if op == OP_PING:
            return {}
        if op == OP_STATUS:
            from topicd.ipc.protocol.messages import Status  # a start does without it

            want = Status.from_wire(body)
            if want.settings:
                return {"settings": self._settings.to_wire()}
            return self._told_lately(want.stats)
        if op == OP_DEBUG:
            return self._debug(body)
        raise InvalidRequest(f"op 0x{op:02x} is not known here; topics are served by the delivery shards")

    def _debug(self, body: dict[str, Any]) -> dict[str, Any]:
        """For tests: force the pressure of the daemon, or let it be what it is."""
        from topicd.ipc.protocol.messages import Debug

        want = Debug.from_wire(body)
        if not self._settings.test_clock:
            raise InvalidRequest("debug requests need the test clock")
        if want.pressure_ppm is not None:
            self._governor.force(want.pressure_ppm / 1_000_000, time.monotonic())
        elif want.pressure_off:
            self._governor.force(None, time.monotonic())
        self._told.clear()
        return self._governor.status()

    def _told_lately(self, with_stats: bool) -> dict[str, Any]:
        """Who asks again at once gets the same answer: looking at every process takes milliseconds of this loop."""
        made_at, answer = self._told.get(with_stats, (float("-inf"), {}))
        if time.monotonic() - made_at > STATUS_FRESH_S:
            answer = self._status(self._table, with_stats)
            self._told[with_stats] = (time.monotonic(), answer)
        return answer

    def _status(self, table: status.ProcessTable, with_stats: bool = True) -> dict[str, Any]:
        now = time.monotonic()
        uptime_s = now - self._started_at
        return {
            "state": str(self._phase.now),
            "failure": self._failure,
            "instance": self._resources.identity.instance,
            "run": self._resources.identity.record.run,
            "uptime_s": uptime_s,
            "pressure": self._governor.status(),
            "processes": table.rows(self._family.children, uptime_s, now, with_stats),
        }

    # ---- for the metrics server ----

    def _metrics(self) -> Page:
        # Loaded at the first question: start-up does not need it.
        from topicd import metrics

        return Page(HTTPStatus.OK, metrics.render(self._status(self._scraped)), metrics.CONTENT_TYPE)

    def _health(self) -> Page:
        return Page(HTTPStatus.OK, "ok\n")

    def _ready(self) -> Page:
        standing = status.summary(self._phase.now, self._family.children)
        if self._phase.now is Phase.SERVING:
            return Page(HTTPStatus.OK, f"{standing}\n")
        done = status.recovered_percent(self._family.children)
        return Page(HTTPStatus.SERVICE_UNAVAILABLE, f"{done:.0f} % recovered; {standing}\n")
