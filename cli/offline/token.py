"""`topicctl token`: who may connect over TCP. The file holds digests only; a secret is printed once, when made."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from topicd import tokens
from topicd.cli.app import App, pass_app
from topicd.cli.ask import confirm
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group
from topicd.cli.offline import token_file
from topicd.cli.show.render import Column

token = Group("token", help="Make, list and revoke tokens for clients on other machines.", no_args_is_help=True)

_FILE = click.option(
    "--file",
    "-f",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The daemon's tokens_file [default: as in the settings, else ./tokens.toml].",
)
_HOLDS = "a running daemon learns it with `systemctl reload topicd` (SIGHUP)"


class Moment(click.ParamType[datetime]):
    name = "moment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            found = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no date or time like 2027-01-31 or 2027-01-31T12:00Z", param, ctx)
        return found if found.tzinfo else found.replace(tzinfo=UTC)


@token.verb(
    "create",
    online=False,
    examples="""
    topicctl token create spark --scope read --file /etc/topicd/tokens.toml
    topicctl token create shop --scope read --scope consume --prefix orders. --expires 2027-01-01
    """,
)
@click.argument("name")
@click.option(
    "--scope", "scopes", type=click.Choice(tokens.SCOPES), multiple=True, required=True, help="What it may do; repeat."
)
@click.option("--prefix", "prefixes", multiple=True, metavar="P", help="Only topics that begin so; repeat.")
@click.option("--subject", metavar="USER", help="The user it stands for, in channels and chats.")
@click.option("--expires", type=Moment(), metavar="ISO", help="When it ends; without a zone: UTC.")
@_FILE
@pass_app
def create(
    app: App,
    name: str,
    scopes: tuple[str, ...],
    prefixes: tuple[str, ...],
    subject: str | None,
    expires: datetime | None,
    file: Path | None,
) -> None:
    """Make a token, add its digest to the file and print the secret, once."""
    path = _path(file)
    secret = token_file.create(path, name, scopes, prefixes, expires, subject)
    if app.json:
        app.out.document({"name": name, "token": secret, "file": str(path)})
        return
    app.out.text(secret)
    click.echo(f"added {name} to {path}; the secret is not shown again; {_HOLDS}", err=True)


@token.verb("list", online=False, examples="topicctl token list\ntopicctl token list --file tokens.toml --json")
@_FILE
@pass_app
def list_tokens(app: App, file: Path | None) -> None:
    """Show the tokens of the file; never their secrets, which nobody has."""
    rows = token_file.rows(_path(file))
    if app.json:
        app.out.document([{**row, "expires": _text(row["expires"]) or None} for row in rows])
        return
    columns = [Column("name"), Column("scopes"), Column("prefixes", shrink=True), Column("subject", rank=1)]
    columns += [Column("expires")]
    app.out.table(
        columns,
        [
            (
                *(row["name"], ", ".join(row["scopes"]), ", ".join(row["prefixes"]) or "all"),
                *(row["subject"] or "-", _text(row["expires"]) or "-"),
            )
            for row in rows
        ],
        empty="no tokens",
    )


@token.verb("rotate", online=False, examples="topicctl token rotate spark > spark.token && systemctl reload topicd")
@click.argument("name")
@_FILE
@pass_app
def rotate(app: App, name: str, file: Path | None) -> None:
    """Give a token a new secret and print it, once. With the old one nobody gets in after the next reload."""
    path = _path(file)
    secret = token_file.rotate(path, name)
    if secret is None:
        raise CliError(f"there is no token {name!r} in {path}", Exit.NOT_FOUND, "`topicctl token list` shows all")
    if app.json:
        app.out.document({"name": name, "token": secret, "file": str(path)})
        return
    app.out.text(secret)
    click.echo(f"rotated {name} in {path}; the secret is not shown again; {_HOLDS}", err=True)


@token.verb("revoke", online=False, examples="topicctl token revoke spark\ntopicctl token revoke shop --yes")
@click.argument("name")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@_FILE
@pass_app
def revoke(app: App, name: str, yes: bool, file: Path | None) -> None:
    """Take a token out of the file. Its connections end when the daemon reloads."""
    path = _path(file)
    if name not in {row["name"] for row in token_file.rows(path)}:
        raise CliError(f"there is no token {name!r} in {path}", Exit.NOT_FOUND, "`topicctl token list` shows all")
    confirm(f"Revoke {name} in {path}?", yes)
    token_file.revoke(path, name)
    app.out.either({"name": name, "revoked": True, "file": str(path)}, f"revoked {name}; {_HOLDS}")


def _path(given: Path | None) -> Path:
    if given is not None:
        return given
    from topicd.cli.settings import load

    configured = load(None).settings.tokens_file
    return Path(configured) if configured else Path("tokens.toml")


def _text(moment: datetime | None) -> str:
    return moment.isoformat() if moment else ""
