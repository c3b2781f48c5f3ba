"""All children: started together, listened to, buried and replaced. What their death means for the daemon
is the loop's affair; it is told through fail().
"""

from __future__ import annotations

import logging
import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from topicd.config import Settings
from topicd.errors import FormatError
from topicd.ipc.control import DELIVERY, WAL, BootInfo
from topicd.supervisor.child import Child
from topicd.supervisor.memory import names
from topicd.supervisor.resources import Resources
from topicd.supervisor.restarts import FAST_CRASHES, FAST_WINDOW_S
from topicd.supervisor.states import ChildState

IDS_RETRY_S = 5.0
log = logging.getLogger(__name__)


class Family:
    def __init__(
        self,
        selector: selectors.BaseSelector,
        resources: Resources,
        settings: Settings,
        commands: Mapping[str, Sequence[str]],
        fail: Callable[[str], None],
    ) -> None:
        self.children: list[Child] = []
        self.settings = settings
        self._selector = selector
        self._resources = resources
        self._commands = commands
        self._fail = fail
        self._ids_at = float("-inf")

    def open(self, now: float) -> None:
        """Start all at once."""
        for kind, index in names(self.settings.wal_shards, self.settings.delivery_shards):
            self.children.append(Child(kind, index, self._resources.page(kind, index)))
        for child in self.children:
            self._start(child, now)

    def close(self) -> None:
        for child in self.children:
            self._ignore(child)
            child.disconnect()

    def serving(self, kind: str | None = None) -> bool:
        """Does everyone (of that kind) serve?"""
        return all(child.state is ChildState.SERVING for child in self.children if kind in (None, child.kind))

    def tell(self, body: Mapping[str, Any]) -> None:
        for child in self.children:
            child.send(body)

    def tell_wal_ready(self) -> None:
        """To each delivery shard once in its life."""
        for child in self.children:
            if child.kind == DELIVERY and child.running and not child.told_wal_ready:
                child.told_wal_ready = child.send({"event": "wal_ready"})

    def next_start(self, wanted: Callable[[str], bool]) -> float | None:
        waiting = (child for child in self.children if child.state is ChildState.BACKOFF and wanted(child.kind))
        return min((child.due for child in waiting), default=None)

    def reap(self, now: float, wanted: Callable[[str], bool]) -> None:
        """Bury the dead; those whose kind is still wanted will be started again."""
        for child in self.children:
            if not child.reap():
                continue
            self._listen_to(child, now)
            self._heed(child, now)
            self._ignore(child)
            facts = {"child": child.name, "pid": child.last_pid, "exit": child.exit_text()}
            if wanted(child.kind) and not child.failed:
                log.error("process died", extra=facts)
                self._retry_or_give_up(child, now, child.exit_text())
            else:
                log.log(logging.WARNING if child.exit_code else logging.DEBUG, "process ended", extra=facts)
                child.gone(None)

    def heartbeats_fresh(self, now: float) -> bool:
        """True if everybody lives; whoever has been silent for too long is killed."""
        fresh = True
        for child in self.children:
            if not child.running:
                fresh = False
            elif (silence := child.silence(now)) > self.settings.heartbeat_timeout_s:
                fresh = False
                facts = {"child": child.name, "pid": child.pid, "silent_s": round(silence, 1)}
                log.error("no heartbeat, killing the process", extra=facts)
                child.kill()
        return fresh

    def forgive(self, now: float) -> None:
        for child in self.children:
            child.forgive(now)

    def start_due(self, now: float, wanted: Callable[[str], bool]) -> None:
        for child in self.children:
            if child.state is ChildState.BACKOFF and child.due <= now and wanted(child.kind):
                child.restarts += 1
                self._start(child, now)

    def answer(self, now: float) -> None:
        for child in self.children:
            self._heed(child, now)
            child.flush()
            if child.wants_ids and now >= self._ids_at:
                self._give_ids(child, now)

    def _start(self, child: Child, now: float) -> None:
        boot = self._boot_info(child)
        try:
            fds = [self._resources.lock_fd, *boot.bell_fds.values()]
            if child.kind == DELIVERY:
                fds.append(boot.listen_fd)
            channel = child.spawn(self._commands[child.kind], boot, fds, now)
        except OSError as exc:
            log.error("process cannot be started", extra={"child": child.name, "error": exc})
            self._retry_or_give_up(child, now, str(exc))
            return
        self._selector.register(channel, selectors.EVENT_READ, lambda mask: self._listen_to(child, time.monotonic()))
        log.debug("process started", extra={"child": child.name, "pid": child.pid})

    def _boot_info(self, child: Child) -> BootInfo:
        resources, identity = self._resources, self._resources.identity
        first_id, end_id = self._ids_for(child)
        return BootInfo(
            kind=child.kind,
            index=child.index,
            instance=identity.instance,
            run=identity.record.run,
            wal_shards=self.settings.wal_shards,
            delivery_shards=self.settings.delivery_shards,
            settings=self.settings.to_wire(),
            bell_fds=resources.bells,
            wal_seed=resources.wal_seed,
            power_lost=identity.power_lost and child.restarts == 0,
            old_instance=resources.old_instance if child.kind == WAL else None,
            first_id=first_id,
            end_id=end_id,
            listen_fd=resources.listen_fd(child.index) if child.kind == DELIVERY else -1,
        )

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
        try:
            start, end = self._resources.identity.take_ids()
        except OSError as exc:
            self._ids_at = now + IDS_RETRY_S
            log.error("topic ids cannot be reserved", extra={"child": child.name, "error": exc})
            return
        child.wants_ids = False
        child.send({"event": "ids", "start": start, "end": end})

    def _listen_to(self, child: Child, now: float) -> None:
        try:
            open_still = child.collect(now)
        except FormatError as exc:
            log.error("process sends nonsense, killing it", extra={"child": child.name, "error": exc})
            child.kill()
            open_still = False
        if not open_still:
            self._ignore(child)

    def _ignore(self, child: Child) -> None:
        """Stop watching its channel: a closed one would wake the loop for ever."""
        if child.channel is not None and child.channel.fileno() in self._selector.get_map():
            self._selector.unregister(child.channel)

    def _heed(self, child: Child, now: float) -> None:
        while (message := child.next_message()) is not None:
            match message.get("event"):
                case "progress":
                    child.progress(message.get("percent"), message.get("what"))
                case "serving":
                    child.serving(now)
                case "need_ids":
                    child.wants_ids = True
                case "failed":
                    child.failed = True
                    self._fail(f"{child.name}: {message.get('message', 'no reason given')}")
                case other:
                    log.warning("unknown message from a child", extra={"child": child.name, "event": other})

    def _retry_or_give_up(self, child: Child, now: float, reason: str) -> None:
        delay = child.policy.crashed(now, child.served_s(now))
        if delay is not None:
            child.gone(now + delay)
            return
        child.gone(None)
        self._fail(f"{child.name} died {FAST_CRASHES} times within {FAST_WINDOW_S:g} s ({reason}); giving up")
