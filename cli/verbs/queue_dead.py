"""`topicctl queue dead`: jobs that were given up."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import App, pass_app
from topicd.cli.ask import confirm
from topicd.cli.groups import Group
from topicd.cli.show.human import count, local_time, printable, printable_text
from topicd.cli.show.render import Column
from topicd.cli.verbs.queue import NAME, SHOWN, opened
from topicd.words import counted

if TYPE_CHECKING:
    from topicd.client.blocking.queue import Queue
    from topicd.client.core.queue_answers import DeadLetter, Redriven

dead = Group("dead", help="List, redrive and discard dead letters.", no_args_is_help=True)

FIELDS = ("reason", "tag", "deliveries", "data")
_RULE = re.compile(rf"({'|'.join(FIELDS)})(=|~)(.*)", re.S)
COLUMNS = [
    Column("seq", right=True),
    Column("job", right=True),
    Column("deliveries", right=True),
    Column("died", rank=1),
    Column("tag", rank=2, shrink=True),
    Column("reason", shrink=True),
    Column("data", shrink=True),
]


class WhereType(click.ParamType[tuple[str, str, str]]):
    """`--where`: FIELD=TEXT for just that, FIELD~TEXT for what contains it."""

    name = "where"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str, str]:
        if isinstance(value, tuple):
            return value
        found = _RULE.fullmatch(str(value))
        if found is None:
            self.fail(f"{value!r} is not FIELD=TEXT or FIELD~TEXT with a field of {', '.join(FIELDS)}", param, ctx)
        return found[1], found[2], found[3]


_WHERE = click.option(
    "--where", type=WhereType(), multiple=True, metavar="FIELD~TEXT", help="Only these; = is equal, ~ contains."
)
_LIMIT = click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N.")


def chosen(jobs: Queue, where: tuple[tuple[str, str, str], ...]) -> Iterator[DeadLetter]:
    def text_of(letter: DeadLetter, field: str) -> str:
        value = getattr(letter, field)
        return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value or "")

    for letter in jobs.dead():
        if all(text == got if how == "=" else text in got for f, how, text in where for got in (text_of(letter, f),)):
            yield letter


@dead.verb(
    "list",
    examples="""
    topicctl queue dead list thumbs
    topicctl queue dead list thumbs --where reason~timeout --limit 20
    topicctl queue dead list thumbs --json | jq -r .reason | sort | uniq -c
    """,
)
@NAME
@_WHERE
@_LIMIT
@pass_app
def list_dead(app: App, name: str, where: tuple[tuple[str, str, str], ...], limit: int | None) -> None:
    """List the dead letters of QUEUE, oldest first. With --json, one object per line."""
    with opened(app, name) as jobs:
        found = islice(chosen(jobs, where), limit)
        if app.json:
            for letter in found:
                app.out.lines([_fields(letter)])
            return
        rows = [_row(letter) for letter in found]
    if rows:
        app.out.table(COLUMNS, rows)
    else:
        app.out.text("no dead letters")


def _fields(letter: DeadLetter) -> dict[str, Any]:
    return {
        "seq": letter.seq,
        "queue": letter.queue,
        "job_seq": letter.job_seq,
        "deliveries": letter.deliveries,
        "reason": letter.reason,
        "first_ts": letter.first_ts,
        "last_ts": letter.last_ts,
        "died_ts": letter.record.ts,
        "tag": letter.tag,
        "meta": letter.meta,
        "data": letter.data.decode("utf-8", "backslashreplace"),
    }


def _row(letter: DeadLetter) -> list[str]:
    return [
        str(letter.seq),
        str(letter.job_seq),
        str(letter.deliveries),
        local_time(letter.record.ts),
        printable_text(letter.tag or ""),
        printable_text(letter.reason),
        printable(letter.data[:SHOWN]) + ("…" if len(letter.data) > SHOWN else ""),
    ]


def _seqs(
    jobs: Queue, seqs: tuple[int, ...], everything: bool, where: tuple[tuple[str, str, str], ...]
) -> list[int] | None:
    """None: all."""
    if not (seqs or everything or where):
        raise click.UsageError("name SEQs, or --where what is meant, or --all")
    if everything:
        return None
    return list(seqs) or [letter.seq for letter in chosen(jobs, where)]


_SEQS = click.argument("seqs", nargs=-1, type=click.IntRange(min=1), metavar="[SEQ]...")
_ALL = click.option("--all", "everything", is_flag=True, help="All of this queue.")


@dead.verb(
    "redrive",
    examples="""
    topicctl queue dead redrive thumbs 17 18
    topicctl queue dead redrive thumbs --where reason~timeout
    topicctl queue dead redrive thumbs --all
    """,
    apart=("SEQ --where --all",),
)
@NAME
@_SEQS
@_WHERE
@_ALL
@pass_app
def redrive(
    app: App, name: str, seqs: tuple[int, ...], where: tuple[tuple[str, str, str], ...], everything: bool
) -> None:
    """Put dead letters back into QUEUE, each once."""
    with opened(app, name) as jobs:
        wanted = _seqs(jobs, seqs, everything, where)
        _say(app, name, jobs.redrive(wanted), "redriven")


@dead.verb("discard", examples="topicctl queue dead discard thumbs 17 --yes", apart=("SEQ --where --all",))
@NAME
@_SEQS
@_WHERE
@_ALL
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_app
def discard(
    app: App, name: str, seqs: tuple[int, ...], where: tuple[tuple[str, str, str], ...], everything: bool, yes: bool
) -> None:
    """Delete dead letters of QUEUE for good."""
    with opened(app, name) as jobs:
        wanted = _seqs(jobs, seqs, everything, where)
        what = "all dead letters" if wanted is None else counted(len(wanted), "dead letter")
        confirm(f"delete {what} of {name!r}?", yes)
        _say(app, name, jobs.discard(wanted), "discarded")


def _say(app: App, name: str, done: Redriven, word: str) -> None:
    if app.json:
        found = {"redriven": done.redriven, "discarded": done.discarded, "skipped": done.skipped}
        app.out.document({"queue": name, **found})
        return
    text = f"{count(done.redriven + done.discarded)} {word}"
    app.out.text(text + (f", {count(len(done.skipped))} are none of this queue or gone" if done.skipped else ""))
