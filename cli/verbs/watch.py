"""`topicctl watch`: records of any number of topics as they are stored."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import CliError, Exit
from topicd.cli.options import (
    FILTERS_APART,
    FORMS_APART,
    FORMS_NEED,
    PLACE,
    PLACE_RULE,
    filter_options,
    form_options,
    layout_options,
    match_of,
)
from topicd.cli.topic_names import complete_topics, near_topics
from topicd.cli.verbs.following import Merged, follow_on
from topicd.cli.verbs.read import check_grep
from topicd.errors import InvalidRequest, TopicNotFound
from topicd.patterns import check_pattern, covers, is_pattern

if TYPE_CHECKING:
    from topicd.client.blocking.client import Client

EXAMPLES = """
topicctl watch orders
topicctl watch orders payments --from 15m
topicctl watch 'orders.*' --from earliest --json | jq -r .data
topicctl watch orders --tag-prefix eu/ --limit 1
topicctl watch 'app.*' --grep error --format '{topic} {seq} {data}'
"""


@verb("watch", examples=EXAMPLES, apart=(FILTERS_APART, FORMS_APART), needs=(FORMS_NEED,))
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option(
    "--from",
    "start",
    type=PLACE,
    default="latest",
    metavar="PLACE",
    help=f"Where to begin: {PLACE_RULE} [default: latest].",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@layout_options
@filter_options
@form_options
@click.option("--create", is_flag=True, help="Watch a topic that does not exist yet although a similar one does.")
@pass_app
def watch(
    app: App,
    topics: tuple[str, ...],
    start: int | str | datetime,
    limit: int | None,
    grep: str | None,
    layout: str | None,
    tag: str | None,
    tag_prefix: str | None,
    nodes: tuple[str, ...],
    form: str | None,
    parse: bool,
    create: bool,
) -> None:
    """Print records of TOPICs as they are stored, until interrupted.

    A TOPIC may be a pattern: 'orders.*' for all that begin so, 'a.*.b' for any one part, 'a.>' for all parts
    behind; topics that are created later are included.
    """
    from topicd.cli.show.records import RecordPrinter

    check_grep(grep, limit)
    names, patterns = simplified(topics)
    if create and not names:
        raise click.UsageError("--create is for names; patterns find topics that are created later by themselves")
    several = bool(patterns) or len(names) > 1
    printer = RecordPrinter(app.out, form or "line", with_topic=several, parse=parse, grep=grep, layout=layout)
    given: dict[str, Any] = {"match": match_of(tag, tag_prefix), "exclude_nodes": list(nodes) or None}
    with app.connect() as client:
        for name in names:
            _expect(client, name, create)
        wanted: list[str | list[str]] = [*([names] if names else []), *patterns]
        with ExitStack() as stack:
            watches = [stack.enter_context(client.watch(one, start, gaps=True, **given)) for one in wanted]
            follow_on(watches[0] if len(watches) == 1 else Merged(watches), printer, limit)


def simplified(given: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """(names, patterns) without those that a wider pattern covers: no record comes twice."""
    stars = sorted({check_pattern(text) for text in given if is_pattern(text)}, key=lambda text: (len(text), text))
    patterns: list[str] = []
    for star in stars:
        wider = [other for other in patterns if is_beginning(other) and star.startswith(other[:-1])]
        if not wider:
            patterns.append(star)
    if len(patterns) > 1 and not all(map(is_beginning, patterns)):
        raise InvalidRequest("patterns with * or > for parts are watched one at a time: a record might come twice")
    names = [name for name in dict.fromkeys(given) if not is_pattern(name)]
    return [name for name in names if not any(covers(p, name) for p in patterns)], patterns


def is_beginning(pattern: str) -> bool:
    """One star, at the end."""
    return pattern.endswith("*") and not is_pattern(pattern[:-1])


def _expect(client: Client, name: str, create: bool) -> None:
    try:
        client.state(name, touch=False)
    except TopicNotFound as exc:
        near = near_topics(client, name)
        if near and not create:
            hint = "--create watches it all the same"
            raise CliError(f"there is no topic {name!r}{near}", Exit.NOT_FOUND, hint, exc.code) from None
        click.echo(f"note: topic {name!r} does not exist yet, waiting for its first record", err=True)
