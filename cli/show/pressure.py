"""The pressure of the daemon, as STATUS tells it, in words and columns."""

from __future__ import annotations

from typing import Any

from topicd.cli.show.human import count
from topicd.cli.show.render import Column
from topicd.words import counted

STEP_COLUMNS = [
    Column("step"),
    Column("in force"),
    Column("from", right=True),
    Column("until", right=True),
    Column("began", right=True, rank=1),
    Column("effect", wrap=True),
]
INPUT_COLUMNS = [
    Column("shard"),
    Column("pressure", right=True),
    Column("waiting", right=True),
    Column("turn after", right=True),
    Column("threads", right=True),
    Column("ring", right=True),
    Column("backlog", right=True),
    Column("paused", right=True, rank=1),
]


def pressure_line(pressure: dict[str, Any]) -> str:
    """Its value, and the names of the steps that are in force."""
    if "value" not in pressure:
        return "-"
    active = [str(step["name"]) for step in pressure.get("steps") or [] if step["active"]]
    forced = ", forced" if pressure.get("forced") else ""
    return f"{pressure['value']:.2f} ({', '.join(active) or 'healthy'}{forced})"


def step_row(step: dict[str, Any]) -> list[str]:
    active = "yes" if step["active"] else "no"
    return [
        str(step["name"]),
        active,
        f"> {step['above']:g}",
        f"< {step['below']:g}",
        counted(step["times"], "time"),
        str(step["effect"]),
    ]


def input_row(shard: dict[str, Any]) -> list[str]:
    return [
        str(shard["name"]),
        f"{shard['pressure']:.2f}",
        count(shard["depth"]),
        f"{shard['latency_ms']:.1f} ms",
        *(f"{100 * shard[name]:.0f}%" for name in ("pool", "ring", "backlog", "paused")),
    ]
