"""`topicctl consumer`: named consumers, whose position the daemon remembers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import App, pass_app
from topicd.cli.ask import confirm
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group, did_you_mean
from topicd.cli.options import (
    FILTERS_APART,
    FORMS_NEED,
    PLACE,
    PLACE_RULE,
    filter_options,
    form_options,
    match_of,
)
from topicd.cli.show.human import count, local_time
from topicd.cli.show.render import Column
from topicd.cli.topic_names import complete_topics, known_topic
from topicd.cli.verbs.read import TopicReader
from topicd.errors import ConsumerNotFound
from topicd.limits import MIB

if TYPE_CHECKING:
    from topicd.cli.show.records import RecordPrinter
    from topicd.client.blocking.client import Client
    from topicd.client.blocking.consumer import Consumer
    from topicd.client.core.answers import ConsumerInfo

consumer = Group("consumer", help="Read as, show, move and remove named consumers.", no_args_is_help=True)

_TOPIC = click.argument("topic", shell_complete=complete_topics)
_NAME = click.argument("name")
COLUMNS = [
    Column("topic", shrink=True),
    Column("consumer", shrink=True),
    Column("acked", right=True),
    Column("lag", right=True),
    Column("last ack", rank=1),
]


@consumer.verb("list", examples="topicctl consumer list\ntopicctl consumer list orders --json")
@click.argument("topic", required=False, shell_complete=complete_topics)
@pass_app
def list_consumers(app: App, topic: str | None) -> None:
    """List the consumers of TOPIC, of all topics if none is named."""
    with app.connect() as client:
        if topic is not None:
            with known_topic(client, topic):
                found = [(topic, one) for one in client.consumers(topic)]
        else:
            found = [(one.topic, info) for one in client.topics() for info in client.consumers(one.topic)]
    if app.json:
        app.out.document([{"topic": name, **asdict(info)} for name, info in found])
    elif not found:
        app.out.text("no consumers")
    else:
        rows = [
            (name, info.name, str(info.acked_seq), count(info.lag), local_time(info.updated_ts)) for name, info in found
        ]
        app.out.table(COLUMNS, rows)


@consumer.verb("show", examples="topicctl consumer show orders billing")
@_TOPIC
@_NAME
@pass_app
def show(app: App, topic: str, name: str) -> None:
    """Show how far consumer NAME of TOPIC is."""
    with app.connect() as client, known_consumer(client, topic, name):
        _say(app, topic, find(client, topic, name))


@consumer.verb(
    "read",
    examples="""
    topicctl consumer read orders billing               # what is new for it, then acknowledge
    topicctl consumer read orders billing --limit 10 --json
    topicctl consumer read orders billing --no-ack      # look without moving
    topicctl consumer read orders billing --follow
    """,
    apart=(FILTERS_APART, "--data --raw --json"),
    needs=(FORMS_NEED,),
)
@_TOPIC
@_NAME
@click.option(
    "--from", "start", type=PLACE, default="earliest", metavar="PLACE", help=f"Where a new one begins: {PLACE_RULE}."
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--no-ack", is_flag=True, help="Do not acknowledge what was printed.")
@click.option("--takeover", is_flag=True, help="Take the place of whoever reads as this consumer.")
@click.option("--follow", "-f", is_flag=True, help="Go on with records as they are stored.")
@filter_options
@form_options
@pass_app
def read(
    app: App,
    topic: str,
    name: str,
    start: int | str | datetime,
    limit: int | None,
    no_ack: bool,
    takeover: bool,
    follow: bool,
    tag: str | None,
    tag_prefix: str | None,
    nodes: tuple[str, ...],
    form: str | None,
    parse: bool,
) -> None:
    """Print what consumer NAME of TOPIC has not acknowledged yet, then acknowledge it.

    A consumer that does not exist is created. What was printed when the command is interrupted may come again.
    """
    from topicd.cli.show.records import RecordPrinter

    if follow and no_ack:
        raise click.UsageError("--follow acknowledges; `topicctl watch` does not")
    printer = RecordPrinter(app.out, form or "line", parse=parse)
    filters: dict[str, Any] = {"match": match_of(tag, tag_prefix), "exclude_nodes": list(nodes) or None}
    with app.connect() as client, known_topic(client, topic):
        client.state(topic, touch=False)  # a consumer of a topic that does not exist would create it
        if no_ack:
            at = client.open_consumer(topic, name, start)
            TopicReader(client, topic, printer, filters).stored(at, limit, quiet_gap=False)
            return
        given = {"gaps": True, "takeover": takeover, "batch_bytes": MIB if follow else 1, **filters}
        with client.consumer(topic, name, start, auto_ack=follow, **given) as found:
            if follow:
                _follow(found, printer, limit)
                return
            # What is stored is read page by page; it is held so that nobody else reads as this consumer.
            reader = TopicReader(client, topic, printer, filters)
            at, _ = reader.stored(found.acked_seq, limit, quiet_gap=False)
            if at > found.acked_seq:
                found.ack_to(at)


def _follow(found: Consumer[Any], printer: RecordPrinter, limit: int | None) -> None:
    from topicd.client.core.records import Gap

    left = limit
    while left != 0:
        event = next(found)
        if isinstance(event, Gap):
            printer.gap(event)
            continue
        printer.records([event])
        left = None if left is None else left - 1


@consumer.verb("ack", examples="topicctl consumer ack orders billing 1500")
@_TOPIC
@_NAME
@click.argument("seq", type=click.IntRange(min=0))
@pass_app
def ack(app: App, topic: str, name: str, seq: int) -> None:
    """Acknowledge every record up to SEQ. An older SEQ changes nothing; `reset` goes back."""
    with app.connect() as client, known_consumer(client, topic, name):
        find(client, topic, name)
        client.ack_consumer(topic, name, seq)
        _say(app, topic, find(client, topic, name))


@consumer.verb(
    "reset",
    examples="""
    topicctl consumer reset orders billing earliest
    topicctl consumer reset orders billing 1000 --yes    # next it gets record 1001
    topicctl consumer reset orders billing 2h
    """,
)
@_TOPIC
@_NAME
@click.argument("place", type=PLACE)
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_app
def reset(app: App, topic: str, name: str, place: int | str | datetime, yes: bool) -> None:
    """Move consumer NAME to PLACE, back or forth: a seq, earliest, latest, a time or an age."""
    with app.connect() as client, known_consumer(client, topic, name):
        before = find(client, topic, name)
        confirm(f"move consumer {name!r} of {topic!r} from seq {before.acked_seq} to {place}?", yes)
        client.reset_consumer(topic, name, place)
        _say(app, topic, find(client, topic, name))


@consumer.verb("remove", examples="topicctl consumer remove orders billing --yes")
@_TOPIC
@_NAME
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@pass_app
def remove(app: App, topic: str, name: str, yes: bool) -> None:
    """Forget consumer NAME of TOPIC and its position."""
    with app.connect() as client, known_consumer(client, topic, name):
        known = find(client, topic, name)
        confirm(f"remove consumer {name!r} of {topic!r}, which is at seq {known.acked_seq}?", yes)
        client.remove_consumer(topic, name)
    app.out.either({"topic": topic, "name": name, "removed": True}, f"removed {name}")


def find(client: Client, topic: str, name: str) -> ConsumerInfo:
    known = client.consumers(topic)
    for one in known:
        if one.name == name:
            return one
    near = did_you_mean(name, [one.name for one in known])
    hint = f"`topicctl consumer list {topic}` shows all"
    raise CliError(f"topic {topic!r} has no consumer {name!r}{near}", Exit.NOT_FOUND, hint)


@contextmanager
def known_consumer(client: Client, topic: str, name: str) -> Iterator[None]:
    """Names that do not exist become errors that name similar ones."""
    with known_topic(client, topic):
        try:
            yield
        except ConsumerNotFound:
            find(client, topic, name)
            raise


def _say(app: App, topic: str, info: ConsumerInfo) -> None:
    if app.json:
        app.out.document({"topic": topic, **asdict(info)})
        return
    app.out.fields(
        [
            ("topic", topic),
            ("consumer", info.name),
            ("acked", str(info.acked_seq)),
            ("lag", count(info.lag)),
            ("last ack", local_time(info.updated_ts)),
        ]
    )
