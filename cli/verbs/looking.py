"""`topicctl settings` and `connections`: what the running daemon goes by, and who uses it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from topicd import config
from topicd.cli.app import App, pass_app, verb
from topicd.cli.show.human import local_time, size
from topicd.cli.show.render import Column


@verb(
    "settings",
    examples="topicctl settings\ntopicctl settings --changed\ntopicctl settings --json | jq .fsync_interval_ms",
)
@click.option("--changed", is_flag=True, help="Only what differs from the default.")
@pass_app
def settings(app: App, changed: bool) -> None:
    """Show the settings in force in the running daemon; `topicctl config show` is what a start here would load."""
    with app.connect() as client:
        found = client.settings()
    plain = config.Settings().to_wire()
    names = [n for n, f in config.FIELDS.items() if n in found and not f.metadata.get("hidden")]
    if changed:
        names = [name for name in names if str(found[name]) != str(plain.get(name))]
    if app.json:
        app.out.document({name: found[name] for name in names})
        return
    rows = [
        (name, _text(found[name]), _text(plain.get(name)), str(config.FIELDS[name].metadata["help"])) for name in names
    ]
    columns = [Column("setting"), Column("value", shrink=True), Column("default", shrink=True), Column("what", rank=1)]
    app.out.table(columns, rows, empty="every setting has its default")


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if value not in ("", None) else "-"


@verb("connections", examples="topicctl connections\ntopicctl connections --json | jq '.[] | select(.topics > 0)'")
@pass_app
def connections(app: App) -> None:
    """Show who is connected to each shard, since when, what it watches, and how much went through."""
    with app.connect() as client:
        found = client.connections()
    if app.json:
        app.out.document([asdict(row) for row in found])
        return
    columns = [
        *(Column("shard", right=True), Column("who"), Column("client", rank=1), Column("token", rank=1)),
        *(Column("since", rank=1), Column("in", right=True), Column("out", right=True), Column("watches", shrink=True)),
    ]
    rows = []
    for row in found:
        more = row.topics - len(row.subscriptions)
        watched = ", ".join(row.subscriptions) + (f" and {more} more" if more > 0 else "")
        sizes = (size(row.bytes_in), size(row.bytes_out))
        rows.append(
            (str(row.shard), row.who, row.client, row.token or "-", local_time(row.since_ts), *sizes, watched or "-")
        )
    app.out.table(columns, rows)
