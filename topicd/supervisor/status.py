"""What the supervisor tells about itself and its children: the shard map and the table of processes."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicd import __version__, limits, telemetry
from topicd.config import Settings
from topicd.ipc.protocol.wire import PROTOCOL_VERSION
from topicd.paths import RunDir
from topicd.supervisor.child import Child
from topicd.supervisor.states import ChildState, Phase

if TYPE_CHECKING:
    import psutil

LIMITS = {
    "max_data_and_meta": limits.MAX_DATA_AND_META,
    "max_tag": limits.MAX_TAG,
    "max_node": limits.MAX_NODE,
    "max_meta": limits.MAX_META,
    "max_meta_keys": limits.MAX_META_KEYS,
    "max_batch_records": limits.MAX_BATCH_RECORDS,
    "max_batch_bytes": limits.MAX_BATCH_BYTES,
    "max_message": limits.MAX_MESSAGE,
    "max_control_message": limits.MAX_CONTROL_MESSAGE,
}


def shard_map(instance: str, settings: Settings, run: RunDir) -> dict[str, Any]:
    """The answer to HELLO, but for the state of the daemon."""
    return {
        "version": PROTOCOL_VERSION,
        "server": f"topicd/{__version__}",
        "instance": instance,
        "role": "supervisor",
        "shard": None,
        "wal_shards": settings.wal_shards,
        "delivery_shards": settings.delivery_shards,
        "shards": [str(run.delivery_socket(shard)) for shard in range(settings.delivery_shards)],
        "chat": settings.chat,
        "limits": LIMITS,
    }


def summary(phase: Phase, children: Sequence[Child]) -> str:
    """One line for systemd."""
    away = [child for child in children if child.state is not ChildState.SERVING]
    if not away:
        return f"{phase}: {len(children)} processes"
    return f"{phase}: {', '.join(_standing(child) for child in away)}"


def recovered_percent(children: Sequence[Child]) -> float:
    """Of all shards together."""
    return sum(child.percent for child in children) / len(children) if children else 0.0


def _standing(child: Child) -> str:
    percent = f" {child.percent:.0f} %" if child.state is ChildState.RECOVERING else ""
    return f"{child.name} {child.state}{percent}"


def greeting(run: RunDir, http: str = "") -> str:
    """What somebody sees who starts it by hand; the commands work in any directory and any shell."""
    web = f"\ndashboard: {http}/\nHTTP: curl {http}/v0/topics" if http else ""
    usual = [Path("/run/topicd"), Path(os.environ.get("XDG_RUNTIME_DIR", "/nowhere")) / "topicd"]
    where = "" if run.root in usual else f"\n  export TOPICD_SOCKET={shlex.quote(str(run.socket))}"
    beside = Path(sys.executable).parent / "topicctl"
    topicctl = "topicctl" if shutil.which("topicctl") or not beside.exists() else shlex.quote(str(beside))
    return f"""topicd {__version__} listens on {run.socket}{web}
try in another terminal:{where}
  {topicctl} publish orders hello
  {topicctl} read orders
  {topicctl} watch orders"""


class ProcessTable:
    """Rows for STATUS. CPU is the share of one core since the row was asked for last."""

    def __init__(self) -> None:
        self._known: dict[int, psutil.Process] = {}

    def rows(
        self, children: Iterable[Child], own_uptime_s: float, now: float, with_stats: bool
    ) -> list[dict[str, Any]]:
        own = {
            "name": "supervisor",
            "state": "serving",
            "restarts": 0,
            "uptime_s": own_uptime_s,
            "percent": 100.0,
            "what": "",
            "stats": None,
            "warnings": telemetry.recent(),
            **self._usage(os.getpid()),
        }
        found = [own, *(self._row(child, now, with_stats) for child in children)]
        alive = {row["pid"] for row in found}
        self._known = {pid: process for pid, process in self._known.items() if pid in alive}
        return found

    def _row(self, child: Child, now: float, with_stats: bool) -> dict[str, Any]:
        return {
            "name": child.name,
            "state": str(child.state),
            "restarts": child.restarts,
            "uptime_s": now - child.spawned_at if child.running else 0.0,
            "percent": child.percent,
            "what": child.what,
            "stats": child.stats() if with_stats else None,
            **self._usage(child.pid),
        }

    def _usage(self, pid: int) -> dict[str, Any]:
        usage = {"pid": pid, "rss": 0, "cpu": 0.0, "cpu_s": 0.0}
        if not pid:
            return usage
        # Loaded at the first question: start-up does not need it.
        import psutil

        try:
            process = self._known.get(pid) or psutil.Process(pid)
            self._known[pid] = process
            usage["rss"] = process.memory_info().rss
            usage["cpu"] = process.cpu_percent(None)
            times = process.cpu_times()
            usage["cpu_s"] = times.user + times.system
        except psutil.Error:
            self._known.pop(pid, None)
        return usage
