"""Command-line flags, made from the declaration of the settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from topicd import config, values

F = TypeVar("F", bound=Callable[..., Any])


def setting_flags(command: F) -> F:
    """Adds --config and one flag per setting. Values stay text: config.load parses them all alike."""
    for name, f in reversed(config.FIELDS.items()):
        rule = f.metadata
        option = "--" + name.replace("_", "-")
        shared: dict[str, Any] = {"help": _help(name), "hidden": bool(rule.get("hidden")), "default": None}
        if rule["kind"] == "flag":
            decorate = click.option(f"{option}/--no-{option[2:]}", name, **shared)
        else:
            decorate = click.option(option, name, metavar=_metavar(rule["kind"]), **shared)
        command = decorate(command)
    file = click.option("--config", "config_file", metavar="FILE", help="TOML file with settings.")
    return file(command)


def _metavar(kind: str) -> str:
    return {
        "size": "SIZE",
        "count": "N",
        "us": "US",
        "ms": "MS",
        "seconds": "SECONDS",
        "path": "DIR",
        "file": "FILE",
        "address": "HOST:PORT",
        "listen": "HOST:PORT",
    }.get(kind, "TEXT")


def _help(name: str) -> str:
    f = config.FIELDS[name]
    default = f.metadata.get("auto") or config.format_value(name, f.default) or "empty"
    allowed = values.range_text(f.metadata)
    return f"{f.metadata['help']} [default: {default}{'; ' + allowed if allowed else ''}]"
