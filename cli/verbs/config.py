"""`topicctl config`: which settings hold, and where they come from."""

from __future__ import annotations

from typing import Any

import click

from topicd import config as settings
from topicd.cli.app import App, pass_app
from topicd.cli.groups import Group
from topicd.cli.settings import load
from topicd.cli.show.render import Column

config = Group("config", help="Show and check the daemon's settings.", no_args_is_help=True)

_FILE = click.option(
    "--config", "-c", "file", metavar="FILE", help=f"Settings file ({settings.CONFIG_ENV}, {settings.SYSTEM_FILE})."
)


@config.verb("show", online=False, examples="topicctl config show\ntopicctl config show --config ./topicd.toml --json")
@click.option("--changed", is_flag=True, help="Only what differs from the default.")
@_FILE
@pass_app
def show(app: App, changed: bool, file: str | None) -> None:
    """Print every setting, its value and where it comes from."""
    loaded = load(file)
    plain = loaded.settings.to_wire()
    names = [name for name, field in settings.FIELDS.items() if not field.metadata.get("hidden")]
    if changed:
        names = [name for name in names if loaded.sources[name] != "default"]
    if app.json:
        app.out.document({name: {"value": plain[name], "source": loaded.sources[name]} for name in names})
        return
    columns = [Column("setting"), Column("value", shrink=True), Column("source", shrink=True), Column("what", rank=1)]
    rows = [
        (
            name,
            settings.format_value(name, getattr(loaded.settings, name)) or "-",
            loaded.sources[name],
            str(settings.FIELDS[name].metadata["help"]),
        )
        for name in names
    ]
    app.out.table(columns, rows, empty="every setting has its default")


@config.verb("check", online=False, examples="topicctl config check --config /etc/topicd/topicd.toml")
@_FILE
@pass_app
def check(app: App, file: str | None) -> None:
    """Say whether the settings can be used; exit code 2 if not."""
    loaded = load(file)
    found: dict[str, Any] = {"ok": True, "file": str(loaded.file) if loaded.file else None}
    app.out.either(found, f"settings are fine ({found['file'] or 'no file'})")
