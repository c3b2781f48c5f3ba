"""`topicctl status`: how the daemon and its processes are."""

from __future__ import annotations

from typing import Any

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import Exit
from topicd.cli.show.human import count, duration, records_word, size
from topicd.cli.show.pressure import INPUT_COLUMNS, STEP_COLUMNS, input_row, pressure_line, step_row
from topicd.cli.show.process import note, troubles
from topicd.cli.show.queues import COLUMNS as QUEUE_COLUMNS
from topicd.cli.show.queues import queue_lines
from topicd.cli.show.queues import row as queue_row
from topicd.cli.show.render import Column


@verb(
    "status",
    examples="""
    topicctl status
    topicctl status --pressure
    topicctl status --json | jq '.processes[] | {name, state}'
    """,
)
@click.option("--pressure", "only_pressure", is_flag=True, help="Show what presses, and which steps are in force.")
@pass_app
def status(app: App, only_pressure: bool) -> int:
    """Show how the daemon and its processes are.

    Exit code 1 unless all of it serves, takes writes, has found no damage, and snapshots succeed.
    """
    with app.connect() as client:
        found = client.status()
        found["queues"] = queue_lines(client, found)
    if only_pressure:
        show_pressure(app, found.get("pressure") or {})
    elif app.json:
        app.out.document(found)
    else:
        app.out.fields(headline(found))
        app.out.text("")
        app.out.table(COLUMNS, [row(process) for process in found["processes"]])
        if found.get("queues"):
            app.out.text("")
            app.out.table(QUEUE_COLUMNS, [queue_row(stats) for stats in found["queues"]])
        for line in notes(found):
            app.out.text(app.out.styled(line, "yellow"))
    return Exit.OK if healthy(found) else Exit.FAILED


COLUMNS = [
    Column("process"),
    Column("state"),
    Column("pid", right=True, rank=1),
    Column("uptime", right=True, rank=2),
    Column("restarts", right=True),
    Column("cpu", right=True, rank=3),
    Column("memory", right=True, rank=3),
]


def healthy(status: dict[str, Any]) -> bool:
    """All of it serves, takes writes, has found no damage, and snapshots succeed."""
    if status.get("state") != "serving":
        return False
    return all(p["state"] == "serving" and not troubles(p.get("stats") or {}) for p in status["processes"])


def headline(status: dict[str, Any]) -> list[tuple[str, str]]:
    stats = [process.get("stats") or {} for process in status["processes"]]
    total = {name: sum(s.get(name, 0) for s in stats) for name in ("topics", "records", "stored_bytes", "sessions")}
    return [
        ("state", status["state"] + (f": {status['failure']}" if status.get("failure") else "")),
        ("uptime", duration(status["uptime_s"])),
        ("instance", f"{status['instance']}, run {status['run']}"),
        ("topics", count(total["topics"])),
        ("stored", size(total["stored_bytes"])),
        ("appended", f"{records_word(total['records'])} since the start"),
        ("connections", count(total["sessions"])),
        ("pressure", pressure_line(status.get("pressure") or {})),
    ]


def row(process: dict[str, Any]) -> list[str]:
    return [
        process["name"],
        process["state"],
        str(process["pid"] or "-"),
        duration(process["uptime_s"]) if process["pid"] else "-",
        str(process["restarts"]),
        f"{process['cpu']:.0f}%",
        size(process["rss"]),
    ]


def notes(status: dict[str, Any]) -> list[str]:
    """A line for each process that has something to say, and what it has found damaged."""
    found = []
    for process in status["processes"]:
        if text := note(process):
            found.append(f"{process['name']}: {text}")
        found += [f"  {what}" for what in (process.get("stats") or {}).get("damaged") or []]
    return found


def show_pressure(app: App, pressure: dict[str, Any]) -> None:
    if app.json:
        app.out.document(pressure)
        return
    app.out.fields([("pressure", pressure_line(pressure))])
    app.out.text("")
    app.out.table(STEP_COLUMNS, [step_row(step) for step in pressure.get("steps") or []])
    app.out.text("")
    app.out.table(INPUT_COLUMNS, [input_row(shard) for shard in pressure.get("shards") or []])
