"""The verbs of `topicctl chat` that look after the store: figures, digests, other stores, what is too old, the log."""

from __future__ import annotations

import os
import time
from typing import Any

import click

from topicd.cli.app import App, Verb, pass_app, verb
from topicd.cli.ask import confirm
from topicd.cli.exits import CliError, Exit
from topicd.cli.show.human import count, duration, local_time, parse_age, size
from topicd.cli.show.render import Column
from topicd.client.core.address import CA_FILE_ENV
from topicd.words import counted

TOKEN_ENV = "TOPICD_SYNC_TOKEN"


@verb("stats", examples="topicctl chat stats")
@pass_app
def stats(app: App) -> None:
    """Show the tables of the chat store with their rows, and its figures."""
    with app.connect() as client:
        found = client.chat.stats()
    if app.json:
        app.out.document(found)
        return
    app.out.table([Column("table"), Column("rows", right=True)], [(n, count(v)) for n, v in found["tables"].items()])
    app.out.text("")
    app.out.fields(
        [
            ("log", f"{count(found['applied_seq'])} of {count(found['head_seq'])} applied, {size(found['log_bytes'])}"),
            ("on disk", size(found["sst_bytes"])),
            ("in memory", size(found["memtable_bytes"])),
            ("kept from", local_time(found["cutoff_ms"]) if found["cutoff_ms"] else "the beginning"),
            ("listeners", count(found["listeners"])),
            ("taken from other stores", count(found["synced_in"])),
            *([("not understood", counted(found["unreadable"], "entry", "entries"))] if found["unreadable"] else []),
        ]
    )


@verb("digest", examples="topicctl chat digest\ntopicctl chat digest --fresh   # made anew from the tables")
@click.option("--fresh", is_flag=True, help="Make it anew instead of taking the one that is kept.")
@pass_app
def digest(app: App, fresh: bool) -> None:
    """Show the digests of messages, members and identities: two stores with the same ones hold the same."""
    with app.connect() as client:
        found = client.chat.digest(fresh=fresh)
    if app.json:
        app.out.document(found)
        return
    rows = [(name, count(one["count"]), one["root"]) for name, one in found["domains"].items()]
    app.out.table([Column("domain"), Column("records", right=True), Column("digest")], rows)


@verb(
    "sync",
    examples=f"""
    {TOKEN_ENV}=tpd_… topicctl chat sync tls://other:4001
    topicctl chat sync tls://other:4001 --watch --every 30s
    topicctl chat sync tcp://127.0.0.1:4001 --method digest --json
    """,
    needs=("--every --watch",),
)
@click.argument("target")
@click.option("--token", metavar="TOKEN", help=f"With the scope sync, for the other store ({TOKEN_ENV}).")
@click.option(
    "--ca-file",
    type=click.Path(),
    metavar="FILE",
    help=f"Certificates to trust, on the machine of the daemon ({CA_FILE_ENV}, if that is this one).",
)
@click.option("--method", type=click.Choice(["negentropy", "digest"]), default="negentropy", show_default=True)
@click.option("--watch", is_flag=True, help="Again and again, until it is interrupted.")
@click.option("--every", metavar="AGE", default="10s", show_default=True, help="With --watch: how often.")
@pass_app
def sync(app: App, target: str, token: str | None, ca_file: str | None, method: str, watch: bool, every: str) -> int:
    """Make the chat store and the one at TARGET equal, in both directions."""
    pause = parse_age(every)
    if pause is None:
        raise click.UsageError(f"--every {every!r} is no time like 10s, 5m")
    from topicd.errors import Conflict, TopicdError, Unauthorized

    token = token or os.environ.get(TOKEN_ENV)
    if ca_file is None and target.startswith("tls://") and "?" not in target and not app.remote:
        found_here = os.environ.get(CA_FILE_ENV)
        ca_file = os.path.abspath(found_here) if found_here else None
    with app.connect() as client:
        while True:
            try:
                found = client.chat.sync(target, token=token, method=method, ca_file=ca_file)
                _say_sync(app, found)
                if not watch:
                    return Exit.OK if found["equal"] else Exit.TRY_AGAIN
            except Unauthorized as exc:
                # It is the other store that refuses, which has tokens and certificates of its own.
                hint = f"{TOKEN_ENV} or --token holds its token, {CA_FILE_ENV} or --ca-file the certificates to trust"
                raise CliError(exc.message, Exit.REFUSED, hint, exc.code) from None
            except TopicdError as exc:
                if not (watch and (exc.retriable or isinstance(exc, Conflict))):
                    raise
                click.echo(f"topicctl: {exc.message}; trying again", err=True)
            time.sleep(pause.total_seconds())


def _say_sync(app: App, found: dict[str, Any]) -> None:
    if app.json:
        app.out.document(found)
        return
    parts = [f"{one['sent']} sent, {one['received']} taken ({name})" for name, one in found["domains"].items()]
    refused = sum(one["refused"] for one in found["domains"].values())
    if found["equal"]:
        how = "equal now"
    elif refused:
        how = f"not equal: {counted(refused, 'record')} refused, too old or of a time more than a day ahead"
    else:
        how = "not equal: somebody wrote meanwhile"
    if found["cutoff_ms"]:
        how += f" (messages after {local_time(found['cutoff_ms'])}; one of the two keeps no older ones)"
    carried = f"{size(found['bytes_out'])} out, {size(found['bytes_in'])} in, {counted(found['rounds'], 'request')}"
    app.out.text(f"{how}; {', '.join(parts)}; {carried}, {duration(found['seconds'])}")


@verb(
    "retain",
    examples="""
    topicctl chat retain --older-than 90d --dry-run
    topicctl chat retain --older-than 90d --yes
    """,
)
@click.option("--older-than", metavar="AGE", required=True, help="Messages older than this go: 90d, 12h.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_app
def retain(app: App, older_than: str, dry_run: bool, yes: bool) -> None:
    """Remove old messages for good; no other store brings them back."""
    age = parse_age(older_than)
    if age is None:
        raise click.UsageError(f"--older-than {older_than!r} is no age like 90d, 12h")
    with app.connect() as client:
        if not dry_run and not yes:
            planned = client.chat.retain(older_than=age, dry_run=True)
            confirm(f"remove {_messages(planned)} for good?", yes)
        found = client.chat.retain(older_than=age, dry_run=dry_run)
    if app.json:
        app.out.document(found)
        return
    what = "to be removed" if dry_run else "removed"
    app.out.text(f"{what}: {_messages(found)}, {size(found['bytes'])}, all up to {local_time(found['cutoff_ms'])}")


def _messages(found: dict[str, Any]) -> str:
    return f"{counted(found['messages'], 'message')} of {counted(found['chats'], 'chat')}"


@verb("verify", examples="topicctl chat verify")
@pass_app
def verify(app: App) -> int:
    """Make the store anew from its log, beside it, and compare the two row by row. Exit code 1 if they differ."""
    with app.connect() as client:
        found = client.chat.verify()
    if app.json:
        app.out.document(found)
    else:
        differing = found["differences"]
        how = "all as the log says" if not differing else f"{len(differing)} or more differ from what the log says"
        app.out.text(f"{count(found['rows'])} rows up to seq {count(found['seq'])}: {how}")
        for one in differing:
            app.out.text(f"  {one['table']} {one['key']}: {one['stored'] or 'nothing'}, not {one['log'] or 'nothing'}")
    return Exit.FAILED if found["differences"] else Exit.OK


@verb("rebuild", examples="topicctl chat rebuild --yes")
@click.option("--over-holes", is_flag=True, help="Entries of the log are missing or damaged: go on without them.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_app
def rebuild(app: App, over_holes: bool, yes: bool) -> None:
    """Make the store anew from its log and use that. Nobody notices but for a moment at the end."""
    confirm("go on without what is missing?" if over_holes else "make the chat store anew from its log?", yes)
    with app.connect() as client:
        found = client.chat.rebuild(over_holes=over_holes)
    app.out.either(found, f"{count(found['rows'])} rows up to seq {count(found['seq'])}")


VERBS: tuple[Verb, ...] = (stats, digest, sync, retain, verify, rebuild)
