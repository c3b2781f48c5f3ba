"""`topicctl ping`, `shards`, `metrics`, `version`: questions to the daemon about itself."""

from __future__ import annotations

import time
from typing import Any

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.show.human import count, duration, short_count, size
from topicd.cli.show.process import fullest_ring
from topicd.cli.show.render import Column


@verb(
    "ping",
    examples="topicctl ping\ntopicctl ping --count 5\ntopicctl ping --timeout 2 || echo down",
    needs=("--interval --count",),
)
@click.option("--count", "times", type=click.IntRange(min=1), default=1, metavar="N", help="Ask N times.")
@click.option("--interval", type=click.FloatRange(min=0), default=1.0, metavar="SECONDS", help="Pause between.")
@pass_app
def ping(app: App, times: int, interval: float) -> None:
    """Ask the daemon for a sign of life; exit code 3 when there is none."""
    with app.connect() as client:
        for number in range(times):
            if number:
                time.sleep(interval)
            seconds = client.ping()
            if app.json:
                app.out.lines([{"ok": True, "ms": round(seconds * 1000, 3)}])
            else:
                app.out.text(f"pong in {duration(seconds)}")


@verb("metrics", examples="topicctl metrics\ntopicctl metrics | grep wal_syncs")
@pass_app
def metrics(app: App) -> None:
    """Print the daemon's counters as Prometheus text (with --json, as the daemon sent them)."""
    from topicd.metrics import render

    with app.connect() as client:
        status = client.status()
    if app.json:
        app.out.document(status)
    else:
        app.out.raw(render(status).encode())


@verb("version", online=False, examples="topicctl version")
@pass_app
def version(app: App) -> None:
    """Print the version of this program."""
    import platform

    import topicd
    from topicd import compiled
    from topicd._native import is_native, why_pure

    facts = {
        "version": topicd.__version__,
        "python": platform.python_version(),
        "core": "native" if is_native else f"pure ({why_pure})",
        "modules": "compiled" if not compiled.why_not_used else f"interpreted ({compiled.why_not_used})",
    }
    app.out.either(facts, "topicctl {version} (Python {python}, {core} core, {modules} modules)".format(**facts))


@verb("shards", examples="topicctl shards\ntopicctl shards --json | jq '.wal[].synced_lsn'")
@pass_app
def shards(app: App) -> None:
    """Show the counters of each WAL and delivery shard."""
    with app.connect() as client:
        found = client.status()["processes"]
    wal = [process for process in found if process["name"].startswith("wal-")]
    delivery = [process for process in found if process["name"].startswith("dlv-")]
    if app.json:
        app.out.document({"wal": [flat(p) for p in wal], "delivery": [flat(p) for p in delivery]})
        return
    app.out.table(WAL_COLUMNS, [wal_row(process) for process in wal])
    app.out.text("")
    app.out.table(DELIVERY_COLUMNS, [delivery_row(process) for process in delivery])


def flat(process: dict[str, Any]) -> dict[str, Any]:
    own = {name: process[name] for name in ("name", "state", "pid", "restarts")}
    return {**own, **{k: v for k, v in (process.get("stats") or {}).items() if k not in ("name", "state", "pid")}}


WAL_COLUMNS = [
    Column("WAL shard"),
    Column("state"),
    Column("groups", right=True),
    Column("bytes", right=True),
    Column("syncs", right=True),
    Column("mean sync", right=True, rank=2),
    Column("rotations", right=True, rank=3),
    Column("failures", right=True),
    Column("unsynced", right=True, rank=1),
    Column("ring", right=True),
    Column("LSN", right=True, rank=4),
]

DELIVERY_COLUMNS = [
    Column("shard"),
    Column("state"),
    Column("topics", right=True),
    Column("conns", right=True),
    Column("records", right=True),
    Column("stored", right=True),
    Column("tail", right=True, rank=1),
    Column("in flight", right=True, rank=2),
    Column("evicted", right=True, rank=4),
    Column("deleted", right=True, rank=4),
    Column("lagged", right=True, rank=1),
    Column("loop lag", right=True, rank=2),
    Column("checkpoints", right=True, rank=5),
    Column("damage", right=True, rank=3),
]


def wal_row(process: dict[str, Any]) -> list[str]:
    stats = process.get("stats") or {}
    syncs = stats.get("syncs", 0)
    return [
        process["name"],
        process["state"],
        short_count(stats.get("groups", 0)),
        size(stats.get("bytes", 0)),
        short_count(syncs),
        duration(stats.get("sync_seconds_total", 0) / syncs) if syncs else "-",
        count(stats.get("rotations", 0)),
        count(stats.get("failures", 0)),
        size(stats.get("lsn", 0) - stats.get("synced_lsn", 0)),
        f"{100 * fullest_ring(stats):.0f}%",
        count(stats.get("lsn", 0)),
    ]


def delivery_row(process: dict[str, Any]) -> list[str]:
    stats = process.get("stats") or {}
    return [
        process["name"],
        process["state"],
        count(stats.get("topics", 0)),
        count(stats.get("sessions", 0)),
        short_count(stats.get("records", 0)),
        size(stats.get("stored_bytes", 0)),
        size(stats.get("tail_bytes", 0)),
        size(stats.get("in_flight_bytes", 0)),
        short_count(stats.get("evicted", 0)),
        short_count(stats.get("deleted", 0)),
        short_count(stats.get("lagged", 0)),
        f"{stats.get('loop_lag_ms', 0):.1f} ms",
        short_count(stats.get("checkpoints", 0)),
        count(stats.get("damage", 0)),
    ]
