"""The supervisor's loop. Promise: READY only when every shard serves; a dead or silent child is replaced
while the others go on; a stop ends within stop_timeout_s; when idle, one wake-up a second.

turn() is one round and reads as its steps. Exit codes: 0 clean, 1 failed, 2 configuration, 3 lock held.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topicd import telemetry
from topicd.config import ConfigError, Settings
from topicd.errors import InvalidRequest
from topicd.ipc.control import DELIVERY, WAL, BootInfo
from topicd.ipc.protocol import Op
from topicd.supervisor import reloading, status
from topicd.supervisor.child import COMMANDS, Child
from topicd.supervisor.front import Front
from topicd.supervisor.memory import Memory, names
from topicd.supervisor.notify import Notifier
from topicd.supervisor.resources import Resources
from topicd.supervisor.restarts import FAST_CRASHES, FAST_WINDOW_S
from topicd.supervisor.signals import STOP, SignalQueue
from topicd.supervisor.states import PHASES, ChildState, Machine, Phase
from topicd.supervisor.stopping import StopPlan

OK, FAILED, BAD_CONFIG, LOCK_HELD = 0, 1, 2, 3
TICK_S = 1.0
START_PATIENCE_S = 30.0
IDS_RETRY_S = 5.0

log = logging.getLogger(__name__)


class Supervisor:
    def __init__(
        self,
        settings: Settings,
        reload: Callable[[], Settings],
        announce: Callable[[str], None],
        commands: Mapping[str, Sequence[str]] = COMMANDS,
    ) -> None:
        self._settings = settings
        self._reload_settings = reload
        self._announce = announce
        self._commands = commands
        self._resources = Resources(settings)
        self._signals = SignalQueue()
        self._notifier = Notifier(os.environ)
        self._selector = selectors.DefaultSelector()
        self._front = Front(self._selector, self._answer, settings.uids)
        self._table = status.ProcessTable()
        self._phase = Machine(PHASES, Phase.STARTING)
        self._children: list[Child] = []
        self._plan: StopPlan | None = None
        self._failure = ""
        self._clean = True
        self._tick_s = min(TICK_S, settings.heartbeat_timeout_s / 4)
        self._started_at = self._turned_at = time.monotonic()
        self._checked_at = self._ids_at = float("-inf")

    def run(self) -> int:
        try:
            self.open()
            while self._phase.now is not Phase.STOPPED:
                self.turn()
        except BaseException:
            # Children may be at work in the rings; they leave by themselves when their channels close.
            self._clean = self._clean and not self._children
            raise
        finally:
            self.close()
        return FAILED if self._failure or not self._clean else OK

    def open(self) -> None:
        self._resources.take_lock()
        self._signals.open()
        self._selector.register(self._signals, selectors.EVENT_READ, None)
        self._notifier.open()
        self._resources.open()
        self._front.open(self._resources.listen(os.environ))
        now = time.monotonic()
        pages = self._memory.pages
        shards = names(self._settings.wal_shards, self._settings.delivery_shards)
        self._children = [
            Child(kind, index, pages[name]) for (kind, index), name in zip(shards, pages, strict=True)
        ]
        for child in self._children:
            self._start(child, now)

    def close(self) -> None:
        self._front.close()
        for child in self._children:
            child.disconnect()
        self._resources.close(self._clean)
        self._notifier.close()
        self._signals.close()
        self._selector.close()

    def turn(self) -> None:
        self._wait()
        now = time.monotonic()
        self._obey_signals(now)
        self._reap(now)
        self._check_heartbeats(now)
        self._restart_due(now)
        self._answer_children(now)
        self._advance(now)
        self._tell_systemd(now)

    # ---- the steps of a turn ----

    def _wait(self) -> None:
        now = time.monotonic()
        moments = [now + self._tick_s]
        moments += [child.due for child in self._children if child.state is ChildState.BACKOFF]
        if self._plan is not None and (at := self._plan.next_at(now)) is not None:
            moments.append(at)
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

    def _reap(self, now: float) -> None:
        for child in self._children:
            if child.reap():
                self._listen_to(child, now)
                self._heed(child, now)
                self._bury(child, now)

    def _check_heartbeats(self, now: float) -> None:
        if now - self._turned_at > self._settings.heartbeat_timeout_s / 2:
            # This process was stopped or starved itself: what looks like silence may be our own sleep.
            for child in self._children:
                child.forgive(now)
        self._turned_at = now
        if now - self._checked_at < self._tick_s or self._plan is not None:
            return
        self._checked_at = now
        for child in self._children:
            if child.running and child.silence(now) > self._settings.heartbeat_timeout_s:
                log.error("no heartbeat, killing the process", extra={"child": child.name, "pid": child.pid})
                child.kill()

    def _restart_due(self, now: float) -> None:
        for child in self._children:
            if child.state is ChildState.BACKOFF and child.due <= now and self._wanted(child):
                child.restarts += 1
                self._start(child, now)

    def _answer_children(self, now: float) -> None:
        for child in self._children:
            self._heed(child, now)
            if child.wants_ids:
                self._give_ids(child, now)

    def _advance(self, now: float) -> None:
        if self._plan is not None:
            self._plan.step(now)
            if self._plan.done:
                self._finish()
            return
        if all(child.state is ChildState.SERVING for child in self._children if child.kind == WAL):
            self._wal_is_ready(now)
        elif self._phase.now is Phase.RECOVERING:
            self._phase.move(Phase.STARTING)
        if self._failure:
            return
        serving = all(child.state is ChildState.SERVING for child in self._children)
        if serving and self._phase.now is not Phase.SERVING:
            first = self._phase.now is Phase.RECOVERING
            self._phase.move(Phase.SERVING)
            log.info("serving", extra={"after_s": round(now - self._started_at, 3)})
            if first:
                self._notifier.ready()
                self._announce(status.greeting(self._resources.run_dir))
        elif not serving and self._phase.now is Phase.SERVING:
            self._phase.move(Phase.DEGRADED)

    def _tell_systemd(self, now: float) -> None:
        fresh = all(
            child.running and child.silence(now) <= self._settings.heartbeat_timeout_s
            for child in self._children
        )
        if fresh or self._plan is not None:
            self._notifier.alive(now)
        if fresh and self._phase.now in (Phase.STARTING, Phase.RECOVERING):
            self._notifier.more_time(START_PATIENCE_S)
        self._notifier.status(status.summary(self._phase.now, self._children))

    # ---- children ----

    @property
    def _memory(self) -> Memory:
        if self._resources.memory is None:
            raise RuntimeError("not open")
        return self._resources.memory

    def _start(self, child: Child, now: float) -> None:
        try:
            boot = self._boot_info(child)
            fds = [self._resources.lock_fd, *boot.bell_fds.values()]
            child.spawn(self._commands[child.kind], boot, fds, now)
        except OSError as exc:
            log.error("process cannot be started", extra={"child": child.name, "error": exc})
            self._retry_or_give_up(child, now, str(exc))
            return
        if child.channel is not None:
            self._selector.register(
                child.channel, selectors.EVENT_READ, lambda mask: self._listen_to(child, time.monotonic())
            )
        log.debug("process started", extra={"child": child.name, "pid": child.pid})

    def _boot_info(self, child: Child) -> BootInfo:
        first_id, end_id = self._ids_for(child)
        return BootInfo(
            kind=child.kind,
            index=child.index,
            instance=self._resources.identity.instance,
            run=self._resources.identity.record.run,
            wal_shards=self._settings.wal_shards,
            delivery_shards=self._settings.delivery_shards,
            settings=self._settings.to_wire(),
            bell_fds=self._memory.bells,
            wal_seed=self._resources.wal_seed,
            old_instance=self._resources.old_instance if child.kind == WAL else None,
            first_id=first_id,
            end_id=end_id,
        )

    def _listen_to(self, child: Child, now: float) -> None:
        if not child.collect(now) and child.channel is not None:
            self._forget_channel(child)

    def _forget_channel(self, child: Child) -> None:
        if child.channel is not None and child.channel.fileno() in self._selector.get_map():
            self._selector.unregister(child.channel)

    def _heed(self, child: Child, now: float) -> None:
        while (message := child.next_message()) is not None:
            self._on_message(child, message, now)

    def _on_message(self, child: Child, message: dict[str, Any], now: float) -> None:
        match message.get("event"):
            case "progress":
                child.progress(float(message.get("percent", 0.0)), str(message.get("what", "")))
            case "serving":
                child.serving(now)
            case "need_ids":
                child.wants_ids = True
            case "failed":
                self._fail(f"{child.name}: {message.get('message', 'failed')}", now)
            case other:
                log.warning("unknown message from a child", extra={"child": child.name, "event": other})

    def _bury(self, child: Child, now: float) -> None:
        self._forget_channel(child)
        if not self._wanted(child):
            if child.exit_code != 0:
                log.warning("process ended badly", extra={"child": child.name, "exit": child.exit_text()})
                self._clean = self._clean and child.kind != WAL
            child.gone(None)
            return
        log.error(
            "process died", extra={"child": child.name, "pid": child.last_pid, "exit": child.exit_text()}
        )
        self._retry_or_give_up(child, now, child.exit_text())

    def _retry_or_give_up(self, child: Child, now: float, reason: str) -> None:
        delay = child.policy.crashed(now, child.served_s(now))
        child.gone(None if delay is None else now + delay)
        if delay is None:
            # What its rings hold is for the next start.
            self._clean = self._clean and child.kind != WAL
            self._fail(
                f"{child.name} died {FAST_CRASHES} times within {FAST_WINDOW_S:g} s ({reason}); giving up",
                now,
            )

    def _wanted(self, child: Child) -> bool:
        """Shall it run? While stopping, only those that others still need."""
        return self._plan is None or self._plan.restarts(child.kind)

    def _ids_for(self, child: Child) -> tuple[int, int]:
        """The block it starts with; empty if the disk refuses: a shard can serve its topics without ids."""
        if child.kind != DELIVERY:
            return 0, 0
        if child.restarts == 0:
            return self._resources.first_ids(child.index)
        try:
            return self._resources.identity.take_ids()
        except OSError as exc:
            log.error("topic ids cannot be reserved", extra={"child": child.name, "error": exc})
            return 0, 0

    def _give_ids(self, child: Child, now: float) -> None:
        if now < self._ids_at:
            return
        try:
            start, end = self._resources.identity.take_ids()
        except OSError as exc:
            self._ids_at = now + IDS_RETRY_S
            log.error("topic ids cannot be reserved", extra={"child": child.name, "error": exc})
            return
        child.wants_ids = False
        child.send({"event": "ids", "start": start, "end": end})

    def _wal_is_ready(self, now: float) -> None:
        try:
            self._resources.forget_old_instance()
        except OSError as exc:
            # Serving on would let the next start mistake this run's rings for empty ones.
            self._fail(f"cannot record that the previous run is recovered: {exc}", now)
            return
        if self._phase.now is Phase.STARTING:
            self._phase.move(Phase.RECOVERING)
        for child in self._children:
            if child.kind == DELIVERY and child.running and not child.told_wal_ready:
                child.told_wal_ready = child.send({"event": "wal_ready"})

    # ---- the daemon as a whole ----

    def _fail(self, message: str, now: float) -> None:
        if not self._failure:
            self._failure = message
            log.error("topicd failed", extra={"reason": message})
        self._stop(now)

    def _stop(self, now: float) -> None:
        if self._plan is None:
            self._plan = StopPlan(self._children, self._settings.stop_timeout_s, now)
            self._phase.move(Phase.STOPPING)
            self._notifier.stopping()

    def _finish(self) -> None:
        self._phase.move(Phase.STOPPED)
        if self._clean:
            log.info("stopped")
        else:
            log.warning("stopped; the next start will finish what is left in shared memory")

    def _reload(self) -> None:
        try:
            self._settings, changed = reloading.merge(self._settings, self._reload_settings())
        except ConfigError as exc:
            log.error("settings not reloaded", extra={"error": exc})
            return
        ready = self._phase.now in (Phase.SERVING, Phase.DEGRADED)
        if ready:
            self._notifier.reloading()
        telemetry.set_level(self._settings.log_level)
        self._front.uids = self._settings.uids
        for child in self._children:
            child.send({"event": "reload", "settings": self._settings.to_wire()})
        log.info("settings reloaded", extra=changed)
        if ready:
            self._notifier.ready()

    def _answer(self, op: int, body: dict[str, Any]) -> dict[str, Any]:
        now = time.monotonic()
        if op == Op.HELLO:
            status.check_hello(body)
            found = status.shard_map(
                self._resources.identity.instance,
                self._settings.wal_shards,
                self._settings.delivery_shards,
                self._resources.run_dir,
            )
            return {**found, "state": str(self._phase.now)}
        if op == Op.PING:
            return {}
        if op == Op.STATUS:
            return {
                "state": str(self._phase.now),
                "instance": self._resources.identity.instance,
                "run": self._resources.identity.record.run,
                "uptime_s": now - self._started_at,
                "processes": self._table.rows(self._children, now - self._started_at, now),
            }
        raise InvalidRequest(f"op 0x{op:02x} is not known here; topics are served by the delivery shards")
