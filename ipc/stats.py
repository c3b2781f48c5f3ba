"""The page on which a process says how it is: heartbeat, state, counters, gauges. One writer, any reader.

Promise: a reader gets the last whole page, also while it is written and after the writer died. The heartbeat
is CLOCK_MONOTONIC in seconds, which all processes of a machine share; injected clocks do not apply to it.
"""

from __future__ import annotations

import os
import time
from typing import Any

import msgpack

from topicd import paths, telemetry
from topicd.ipc import shm, slots

PAYLOAD_MAX = 16 * 1024  # a delivery shard's lists of topics, consumers and routers, all names of full length, take 8


class StatsPage:
    def __init__(self, page: slots.Slots, process: str) -> None:
        self._page = page
        self._process = process
        self._pid = os.getpid()
        self.state = "starting"

    @classmethod
    def create(cls, instance: str, process: str) -> StatsPage:
        """For the supervisor."""
        name = paths.stats_shm(instance, process)
        return cls(slots.Slots(slots.create(name, PAYLOAD_MAX, instance, shm.RegionKind.STATS)), process)

    @classmethod
    def attach(cls, instance: str, process: str) -> StatsPage:
        name = paths.stats_shm(instance, process)
        return cls(slots.Slots.attach(name, instance, shm.RegionKind.STATS), process)

    def publish(self, values: dict[str, Any]) -> None:
        """Replace the page. values: numbers or lists of them; pid, name, state, heartbeat and warnings are added.
        FormatError if the page would exceed PAYLOAD_MAX bytes."""
        body = {
            "pid": self._pid,
            "name": self._process,
            "state": self.state,
            "heartbeat": time.monotonic(),
            "warnings": telemetry.recent(),
            **values,
        }
        self._page.write(msgpack.packb(body, use_bin_type=True))

    def read(self) -> dict[str, Any] | None:
        """The last page, None before the first."""
        raw = self._page.read()
        if raw is None:
            return None
        body: dict[str, Any] = msgpack.unpackb(raw, raw=False)
        return body

    def close(self) -> None:
        self._page.close()
