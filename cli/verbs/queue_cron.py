"""`topicctl queue cron`: jobs at times."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import App, pass_app
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group
from topicd.cli.show.human import local_time, printable
from topicd.cli.show.render import Column
from topicd.cli.verbs.queue import NAME, SHOWN, known_queue, opened
from topicd.limits import PRIORITY_DEFAULT

if TYPE_CHECKING:
    from topicd.client.core.queue_answers import Schedule

cron = Group("cron", help="Put jobs at times: add, list and remove schedules.", no_args_is_help=True)

COLUMNS = [
    Column("name", shrink=True),
    Column("schedule"),
    Column("timezone", rank=1),
    Column("next"),
    Column("last", rank=1),
    Column("data", shrink=True),
]


@cron.verb(
    "add",
    examples="""
    topicctl queue cron add thumbs nightly "0 3 * * *" '{"all": true}'
    topicctl queue cron add thumbs tick "*/5 * * * *" --timezone Europe/Berlin --priority 2
    """,
)
@NAME
@click.argument("schedule_name", metavar="NAME")
@click.argument("schedule")
@click.argument("data", default="")
@click.option("--timezone", default="UTC", metavar="ZONE", help="In which the fields are meant.")
@click.option("--tag", default="", metavar="TAG", help="Tag of the jobs; for workers, the task.")
@click.option("--priority", type=click.IntRange(0, 9), default=PRIORITY_DEFAULT, metavar="0-9", help="9 goes first.")
@click.option("--group", default="", metavar="TEXT", help="Groups are served in turn.")
@pass_app
def add(app: App, /, name: str, schedule_name: str, schedule: str, data: str, **how: Any) -> None:
    """Put a job into QUEUE at each time of SCHEDULE: minute hour day month weekday. One called NAME is replaced."""
    with app.connect() as client, known_queue(client, name):
        made = client.queue(name).add_cron(schedule_name, schedule, os.fsencode(data), **how)
    app.out.either(_fields(made), f"{made.name}: next {local_time(made.next_ts)}")


@cron.verb("list", examples="topicctl queue cron list thumbs --json")
@NAME
@pass_app
def list_crons(app: App, name: str) -> None:
    """List the schedules of QUEUE."""
    with opened(app, name) as jobs:
        found = jobs.crons()
    if app.json:
        app.out.document([_fields(one) for one in found])
    elif not found:
        app.out.text("no schedules")
    else:
        app.out.table(COLUMNS, [_row(one) for one in found])


def _row(one: Schedule) -> list[str]:
    times = (local_time(one.next_ts), local_time(one.last_ts))
    return [one.name, one.schedule, one.timezone, *times, printable(one.data[:SHOWN])]


def _fields(one: Schedule) -> dict[str, Any]:
    return {**asdict(one), "data": one.data.decode("utf-8", "backslashreplace")}


@cron.verb("remove", examples="topicctl queue cron remove thumbs nightly")
@NAME
@click.argument("schedule_name", metavar="NAME")
@pass_app
def remove(app: App, name: str, schedule_name: str) -> None:
    """End schedule NAME of QUEUE."""
    with opened(app, name) as jobs:
        removed = jobs.remove_cron(schedule_name)
    if not removed:
        hint = f"`topicctl queue cron list {name}` shows all"
        raise CliError(f"queue {name!r} has no schedule {schedule_name!r}", Exit.NOT_FOUND, hint)
    app.out.either({"queue": name, "name": schedule_name, "removed": True}, f"removed {schedule_name}")
