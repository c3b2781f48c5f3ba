"""The whole command line of `topicd`: without a command it runs the daemon; `topicd config show|check` looks at
the settings. A start with plain flags does not come through here, see main.py.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from topicd import __version__, config
from topicd.config import ConfigError, Loaded
from topicd.supervisor import daemon
from topicd.supervisor.flags import setting_flags


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="topicd", message="%(prog)s %(version)s")
@setting_flags
@click.pass_context
def command(context: click.Context, /, **flags: Any) -> None:
    """Durable, ordered, replayable topics for every program on this machine.

    Every flag can also be a TOPICD_ environment variable or a key in the TOML file; flags win, then the
    environment, then the file.

    Exit codes: 0 clean stop, 1 failed, 2 wrong usage or settings, 3 the data directory is in use.
    """
    context.obj = flags
    if context.invoked_subcommand is None:
        sys.exit(daemon.run(_load_or_exit(flags), flags))


@command.group("config")
def config_group() -> None:
    """Look at the settings."""


@config_group.command("show")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@setting_flags
@click.pass_obj
def show(given: dict[str, Any], /, as_json: bool, **flags: Any) -> None:
    """Print every setting, its value and where it comes from."""
    loaded = _load_or_exit(_merged(given, flags))
    wire = loaded.settings.to_wire()
    visible = [name for name, f in config.FIELDS.items() if not f.metadata.get("hidden")]
    if as_json:
        rows = {name: {"value": wire[name], "source": loaded.sources[name]} for name in visible}
        click.echo(json.dumps(rows, indent=2))
        return
    for name in visible:
        value = config.format_value(name, getattr(loaded.settings, name))
        click.echo(f"{name:<28} {value or '(empty)':<24} {loaded.sources[name]}")


@config_group.command("check")
@click.option("--json", "as_json", is_flag=True, help="Machine-readable.")
@setting_flags
@click.pass_obj
def check(given: dict[str, Any], /, as_json: bool, **flags: Any) -> None:
    """Say whether the settings can be used; exit code 2 if not."""
    try:
        loaded = daemon.load(_merged(given, flags))
    except ConfigError as exc:
        if as_json:
            click.echo(json.dumps({"ok": False, "error": str(exc)}))
            sys.exit(2)
        raise click.UsageError(str(exc)) from None
    file = str(loaded.file) if loaded.file else None
    click.echo(json.dumps({"ok": True, "file": file}) if as_json else f"settings are fine ({file or 'no file'})")


def _merged(outer: dict[str, Any], inner: dict[str, Any]) -> dict[str, Any]:
    """Flags may stand before and after the command; the later one wins."""
    return {**outer, **{name: value for name, value in inner.items() if value is not None}}


def _load_or_exit(flags: dict[str, Any]) -> Loaded:
    try:
        return daemon.load(flags)
    except ConfigError as exc:
        raise click.UsageError(str(exc)) from None
