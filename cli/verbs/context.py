"""`topicctl context`: daemons by name."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from topicd.cli.app import App, pass_app
from topicd.cli.contexts import Context, Contexts
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group
from topicd.cli.show.render import Column

context = Group("context", help="Name daemons, and choose the one that is meant.", no_args_is_help=True)


@context.verb(
    "add",
    online=False,
    examples="""
    topicctl context add prod tls://topics.example.org:7410 --token-file ~/.config/topicd/prod.token --ca-file ca.pem
    topicctl context add here /run/topicd
    topicctl --context prod status
    """,
)
@click.argument("name")
@click.argument("target")
@click.option("--token-file", metavar="FILE", default="", help="Holds the token; read at each use.")
@click.option("--ca-file", metavar="FILE", default="", help="Certificates to trust instead of the system's.")
@click.option("--force", is_flag=True, help="Replace a context of that name.")
@click.option("--use", "choose", is_flag=True, help="Make it the current one.")
@pass_app
def add(app: App, name: str, target: str, token_file: str, ca_file: str, force: bool, choose: bool) -> None:
    """Remember the daemon at TARGET (socket, run directory, tcp:// or tls://) as NAME."""
    from topicd.client.core.daemon import candidates

    found = Contexts.load()
    if name in found.known and not force:
        raise CliError(f"context {name!r} exists already", Exit.REFUSED, "--force replaces it")
    candidates(target, {})  # raises for what is no target
    for file in (token_file, ca_file):
        if file and not Path(file).expanduser().is_file():
            raise CliError(f"{file}: no such file", Exit.NOT_FOUND)
    paths = [str(Path(file).expanduser().absolute()) if file else "" for file in (token_file, ca_file)]
    found.known[name] = Context(name, target if "://" in target else str(Path(target).absolute()), *paths)
    if choose or not found.current:
        found.current = name
    found.save()
    _say(app, found, name, f"context {name} is {target}{', and current' if found.current == name else ''}")


@context.verb("use", online=False, examples="topicctl context use prod")
@click.argument("name")
@pass_app
def use(app: App, name: str) -> None:
    """Make NAME the daemon that is meant when nothing else is said."""
    found = Contexts.load()
    found.get(name)
    found.current = name
    found.save()
    _say(app, found, name, f"{name} is current")


@context.verb("remove", online=False, examples="topicctl context remove prod")
@click.argument("name")
@pass_app
def remove(app: App, name: str) -> None:
    """Forget NAME. Its token file stays."""
    found = Contexts.load()
    found.get(name)
    del found.known[name]
    found.current = "" if found.current == name else found.current
    found.save()
    app.out.either({"name": name, "removed": True}, f"removed {name}")


@context.verb("list", online=False, examples="topicctl context list")
@pass_app
def list_contexts(app: App) -> None:
    """Show all, and which is current."""
    found = Contexts.load()
    if app.json:
        app.out.document([{**asdict(one), "current": one.name == found.current} for one in found.known.values()])
    elif not found.known:
        app.out.text("no contexts; `topicctl context add NAME TARGET` makes one")
    else:
        rows = [
            ("*" if one.name == found.current else "", one.name, one.target, one.token_file or "-")
            for one in found.known.values()
        ]
        app.out.table(
            [Column(""), Column("context"), Column("target", shrink=True), Column("token file", rank=1)], rows
        )


def _say(app: App, found: Contexts, name: str, text: str) -> None:
    app.out.either({**asdict(found.known[name]), "current": found.current == name}, text)
