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
from topicd.ipc.control import BootInfo, process_name
from topicd.supervisor.child import Child
from topicd.supervisor.kinds import Kind, names_of
from topicd.supervisor.resources import Resources
from topicd.supervisor.restarts import FAST_CRASHES, FAST_WINDOW_S
from topicd.supervisor.states import ChildState
from topicd.supervisor.template import Template

IDS_RETRY_S = 5.0
WORKING_PATIENCE = 12  # times heartbeat_timeout_s: one that works and says nothing is not dead, but it may be lost
log = logging.getLogger(__name__)


class Family:
    def __init__(
        self,
        selector: selectors.BaseSelector,
        resources: Resources,
        settings: Settings,
        kinds: Sequence[Kind],
        fail: Callable[[str], None],
        pressed: Callable[[float], None] = lambda now: None,
        template: Template | None = None,
    ) -> None:
        self.children: list[Child] = []
        self.settings = settings
        self._selector = selector
        self._resources = resources
        self._kinds = kinds
        self._fail = fail
        self._pressed = pressed
        self._ids_at = float("-inf")
        self.template = template

    def open(self, now: float) -> None:
        """Start all at once."""
        for kind, index in names_of(self._kinds, self.settings):
            self.children.append(Child(kind, index, self._resources.page(process_name(kind.name, index))))
        for child in self.children:
            self._start(child, now)

    def close(self) -> None:
        for child in self.children:
            self._ignore(child)
            child.disconnect()
        if self.template is not None:
            self.template.close()

    def serving(self) -> bool:
        """Does everyone?"""
        return all(child.state is ChildState.SERVING for child in self.children)

    def kind_serves(self, name: str) -> bool:
        return all(child.state is ChildState.SERVING for child in self.children if child.kind.name == name)

    def first_serve(self) -> bool:
        """Do those serve that wait for nobody?"""
        return all(self.kind_serves(kind.name) for kind in self._kinds if not kind.starts_after)

    def note_serving(self) -> None:
        """What is to be done when all of a kind serve."""
        for kind in self._kinds:
            if kind.note_serving is not None and self.kind_serves(kind.name):
                kind.note_serving(self._resources)

    def tell(self, body: Mapping[str, Any]) -> None:
        for child in self.children:
            child.send(body)

    def tell_start(self) -> None:
        """To each child once in its life, when everybody serves that it waits for."""
        for child in self.children:
            needed = child.kind.starts_after
            if needed and child.running and not child.told_start and all(map(self.kind_serves, needed)):
                child.told_start = child.send({"event": "start"})

    def next_start(self, wanted: Callable[[Kind], bool]) -> float | None:
        waiting = (child for child in self.children if child.state is ChildState.BACKOFF and wanted(child.kind))
        return min((child.due for child in waiting), default=None)

    def reap(self, now: float, wanted: Callable[[Kind], bool]) -> None:
        """Bury the dead; those whose kind is still wanted will be started again."""
        if self.template is not None:
            self.template.reap()
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
        """True if everybody lives; whoever has been silent for too long is killed: one that does nothing soon, one that
        works only when that is no work any more."""
        fresh = True
        patience = self.settings.heartbeat_timeout_s
        for child in self.children:
            if not child.running:
                fresh = False
            elif (silence := child.silence(now)) > patience / 2:
                if (child.works() and silence <= WORKING_PATIENCE * patience) or silence <= patience:
                    continue
                fresh = False
                facts = {"child": child.name, "pid": child.pid, "silent_s": round(silence, 1)}
                log.error("no heartbeat, killing the process", extra=facts)
                child.kill()
        return fresh

    def forgive(self, now: float) -> None:
        for child in self.children:
            child.forgive(now)

    def start_due(self, now: float, wanted: Callable[[Kind], bool]) -> None:
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
        identity = self._resources.identity
        try:
            handed = child.kind.hand(self._resources, self.settings, child.index, child.restarts)
            boot = BootInfo(
                kind=child.kind.name,
                index=child.index,
                instance=identity.instance,
                run=identity.record.run,
                settings=self.settings.to_wire(),
                extras=dict(handed.extras),
            )
            channel = child.spawn(boot, handed.fds, now, self.template)
        except OSError as exc:
            log.error("process cannot be started", extra={"child": child.name, "error": exc})
            self._retry_or_give_up(child, now, str(exc))
            return
        self._selector.register(channel, selectors.EVENT_READ, lambda mask: self._listen_to(child, time.monotonic()))
        log.debug("process started", extra={"child": child.name, "pid": child.pid})

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
                case "pressed":
                    self._pressed(now)
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
