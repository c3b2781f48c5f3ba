"""Schedules that fire. Promise: a tick and its job are one batch of the log, so it happens once whatever restarts; of
ticks that were missed while nothing ran, one is made up for.
"""

from __future__ import annotations

import logging

from topicd.errors import TopicdError
from topicd.frames import core
from topicd.ipc.protocol.wire import APPEND
from topicd.shards.delivery.queues import schedule
from topicd.shards.delivery.queues.crons import Cron
from topicd.shards.delivery.queues.options import Asked, Options
from topicd.shards.delivery.queues.service import QueueService
from topicd.shards.delivery.queues.tools import Tools
from topicd.shards.delivery.topic.flight import InFlight, Waiter
from topicd.shards.delivery.writing.append import Appender

log = logging.getLogger(__name__)

_AGAIN_MS = 1_000  # after a refusal


class Ticking:
    def __init__(self, tools: Tools, appender: Appender) -> None:
        self._tools = tools
        self._appender = appender
        tools.tick = self.tick

    def tick(self, service: QueueService, cron: Cron, now_ms: int) -> None:
        """It is due: its job, for the time that was named."""
        next_ms = schedule.parse(cron.schedule, cron.timezone).next_after(now_ms)
        if next_ms is None:
            return
        topic = service.topic
        options = Options(0, 1)
        options.priority, options.group = cron.priority, cron.group
        asked = Asked([options], "drop", (cron.name, cron.next_ms, next_ms))
        frames = core.encode_batch([cron.data], [cron.tag.encode()] if cron.tag else None, None, None)
        body = APPEND.pack(topic.id, 0, 0, 1) + frames
        told = _Told(service, cron.name)
        try:
            self._appender.append(told, 0, 0, memoryview(body), asked)
        except TopicdError as exc:
            told.append_refused(0, exc)
        self._tools.agenda.start_turn()


class _Told:
    """Waits for one tick (topic.flight.Replier)."""

    def __init__(self, service: QueueService, name: str) -> None:
        self._service = service
        self._name = name

    def appended(self, waiter: Waiter, head: int, entry: InFlight) -> None:
        self._service.ticked(self._name, 0)

    def append_refused(self, request_id: int, error: TopicdError) -> None:
        topic = self._service.topic
        log.warning("tick refused", extra={"topic": topic.name, "schedule": self._name, "error": str(error)})
        self._service.ticked(self._name, self._service.tools.clock.now_ms() + _AGAIN_MS)

    def run_appended(self, request_ids: bytes, first_seq: int, head: int) -> None:
        raise AssertionError("a tick is one batch")

    def deduped(self, waiter: Waiter, head: int) -> None:
        raise AssertionError("a tick has no number")
