"""`topicctl stages`: what writers have staged, and commits that somebody left half-way."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from topicd.cli.app import App, pass_app
from topicd.cli.ask import confirm
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group
from topicd.cli.show.human import count, duration, parse_age, records_word, size
from topicd.cli.show.render import Column
from topicd.clock import SystemClock
from topicd.words import counted

if TYPE_CHECKING:
    from topicd.client.staging.stages import Abandoned
    from topicd.client.staging.sweep import StageInfo, Unfinished

stages = Group("stages", help="List, finish, abandon and drop what writers have staged.", no_args_is_help=True)

DEFAULT_AGE = "24h"
_STAGES = [
    Column("query", shrink=True),
    Column("batch", right=True),
    Column("partition", right=True, rank=1),
    Column("records", right=True),
    Column("bytes", right=True),
    Column("idle", right=True),
    Column("state"),
]
_UNFINISHED = [
    Column("query", shrink=True),
    Column("key", rank=1),
    Column("batch", right=True),
    Column("stages", right=True),
    Column("records", right=True),
]

_FINISHED = [*_UNFINISHED, Column("outcome", shrink=True)]
_ABANDONED = [
    Column("topic", shrink=True),
    Column("batch", right=True),
    Column("records", right=True),
    Column("published", right=True),
    Column("taken back", right=True),
    Column("left in place", shrink=True),
]


@stages.verb("list", examples="topicctl stages list\ntopicctl stages list --json")
@pass_app
def list_all(app: App) -> None:
    """List stages, and commits that are decided but not published to their end."""
    from topicd.client.staging import sweep

    with app.connect() as client:
        left = sweep.unfinished(client)
        found = sweep.list_stages(client, SystemClock().now_ms())
    if app.json:
        app.out.document({"stages": [asdict(one) for one in found], "unfinished": [asdict(one) for one in left]})
        return
    if not found and not left:
        app.out.text("no stages")
    if found:
        app.out.table(_STAGES, [_row(one) for one in found])
    if left:
        app.out.text("unfinished commits; `topicctl stages finish` publishes them:")
        app.out.table(_UNFINISHED, [_left_row(one) for one in left])


@stages.verb(
    "finish",
    examples="""
    topicctl stages finish                               # everything that is decided
    topicctl stages finish 3fa2b6c09d11e5a47c80f2d9
    """,
)
@click.argument("query", required=False)
@pass_app
def finish(app: App, query: str | None) -> None:
    """Publish what was decided and left half-way, of QUERY (its name or key) or of all. Nothing is stored twice.

    What cannot be published is reported and does not keep the others from it; the exit code is 1 then.
    """
    from topicd.client.staging import sweep

    with app.connect() as client:
        done = sweep.finish(client, query)
    if app.json:
        app.out.document([{**asdict(one.commit), "error": one.error} for one in done])
    elif not done:
        app.out.text("nothing is unfinished")
    else:
        app.out.table(_FINISHED, [(*_left_row(one.commit), one.error or "published") for one in done])
    if refused := sum(one.error is not None for one in done):
        hint = "mend what they say and finish again, or give one up with `topicctl stages abandon`"
        raise CliError(f"not finished: {refused} of {counted(len(done), 'commit')}", Exit.FAILED, hint)


@stages.verb(
    "abandon",
    examples="""
    topicctl stages abandon 3fa2b6c09d11e5a47c80f2d9           # as if it had never been decided
    topicctl stages abandon 3fa2b6c09d11e5a47c80f2d9 --keep    # what was published stays
    """,
)
@click.argument("query")
@click.option("--keep", is_flag=True, help="Leave what was published; the rest of the batch is given up.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_app
def abandon(app: App, query: str, keep: bool, yes: bool) -> None:
    """Give up what QUERY (its name or key) has decided and not published to its end.

    What was published of it is deleted again, and a stream decides the batch anew when it is started; with --keep it
    stays, the batch is over, and the rest of its records is gone. The daemon logs it.
    """
    from topicd.client.staging import sweep

    with app.connect() as client:
        left = [one for one in sweep.unfinished(client) if query in (one.key, one.query)]
        if not left:
            raise CliError(
                f"{query!r} has no unfinished commit", Exit.NOT_FOUND, "`topicctl stages list` shows what there is"
            )
        what = "keep what was published" if keep else "delete what was published"
        records = sum(one.records for one in left)
        confirm(f"give up {counted(len(left), 'commit')} with {records_word(records)}, and {what}?", yes)
        parts = sweep.abandon(client, query, take_back=not keep)
    if app.json:
        app.out.document([part._asdict() for part in parts])
    else:
        app.out.table(_ABANDONED, [_abandoned_row(part) for part in parts])


@stages.verb(
    "drop",
    examples="""
    topicctl stages drop --expired                       # idle for more than a day
    topicctl stages drop --expired --older-than 1h
    topicctl stages drop 3fa2b6c09d11e5a47c80f2d9 --yes  # everything that query has not committed
    """,
    apart=("KEY --expired",),
    needs=("--older-than --expired",),
)
@click.argument("key", required=False)
@click.option("--expired", is_flag=True, help="Those that are idle for --older-than.")
@click.option("--older-than", metavar="AGE", default=DEFAULT_AGE, show_default=True, help="Like 90s, 30m, 24h, 7d.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_app
def drop(app: App, key: str | None, expired: bool, older_than: str, yes: bool) -> None:
    """Drop stages that nobody has committed: the expired ones, or all of the query with that KEY.

    What is decided stays until it is published.
    """
    from topicd.client.staging import sweep

    if key is None and not expired:
        raise click.UsageError("say which: --expired or the key of a query (`topicctl stages list` shows them)")
    age = parse_age(older_than)
    if age is None:
        raise click.BadParameter(f"{older_than!r} is not an age like 90s, 30m, 24h or 7d", param_hint="--older-than")
    now = SystemClock().now_ms()
    with app.connect() as client:
        if key is not None:
            mine = [one for one in sweep.list_stages(client, now) if one.key == key and not one.decided]
            if not mine:
                hint = "`topicctl stages list` shows what there is"
                raise CliError(f"no stage of {key!r} is undecided", Exit.NOT_FOUND, hint)
            confirm(f"drop {counted(len(mine), 'stage')} of {key}, still open to writers?", yes)
            sweep.drop(client, mine)
        else:
            mine = sweep.drop_expired(client, now, int(age.total_seconds() * 1000))
    app.out.either([asdict(one) for one in mine], f"dropped {counted(len(mine), 'stage')}")


def _row(one: StageInfo) -> tuple[str, ...]:
    state = "decided" if one.decided else "staged"
    idle = duration(one.idle_ms / 1000)
    return one.key, str(one.batch), str(one.partition), count(one.records), size(one.bytes), idle, state


def _left_row(one: Unfinished) -> tuple[str, ...]:
    return one.query, one.key, str(one.batch), str(one.stages), count(one.records)


def _abandoned_row(part: Abandoned) -> tuple[str, ...]:
    stays = ", ".join(f"{first}-{last}" for first, last in part.seqs) if part.published > part.taken_back else "nothing"
    numbers = (part.batch, part.records, part.published, part.taken_back)
    return part.topic, *(count(number) for number in numbers), stays
