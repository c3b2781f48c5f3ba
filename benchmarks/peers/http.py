"""topicd with its HTTP face: the same daemon with a gateway, measured through HTTP and, beside it, natively."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.model import HTTP
from benchmarks.peers.base import Driver
from benchmarks.peers.topicd import Topicd
from topicd.bench.load import Load
from topicd.paths import RunDir


class Http(Topicd):
    name = HTTP
    flags = ("--http", "--http-listen=127.0.0.1:0")
    has_sessions = False  # the sync check of its durable appends is that of topicd

    @property
    def port(self) -> int:
        return int(RunDir(Path(self._address.socket).parent).http_port.read_text())

    @property
    def gateway_pid(self) -> int:
        with self.client() as client:
            rows = client.status()["processes"]
        return next(int(row["pid"]) for row in rows if row["name"].startswith("gateway"))

    def drivers(self, test: str, load: Load) -> Mapping[str, Driver]:
        from benchmarks.drivers import http as drivers

        return drivers.drivers(f"{test}.{load.kind}", load) if test == HTTP else {}
