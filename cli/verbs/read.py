"""`topicctl read`: what a topic holds, oldest first, and on request what comes after."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import CliError, Exit, exit_of, hint_of
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
from topicd.cli.topic_names import complete_topics, known_topic
from topicd.cli.verbs.following import Merged, follow_on
from topicd.errors import StorageCorrupt
from topicd.limits import FETCH_BYTES_MAX, FETCH_RECORDS_MAX
from topicd.patterns import check_pattern, covers, is_pattern, prefix_of

if TYPE_CHECKING:
    from topicd.cli.show.records import RecordPrinter
    from topicd.client.blocking.client import Client

FOLLOWED = 16  # topics at once; each has a connection
EXAMPLES = """
topicctl read orders --from 0
topicctl read orders --last 10
topicctl read orders --from 15m --tag created
topicctl read orders --json | jq -r .data
topicctl read orders --json --parse | jq .data.id     # data that is JSON, parsed
topicctl read orders --from 2026-01-31T12:00 --limit 100 --follow
topicctl read images --limit 1 --raw > logo.png
topicctl read orders --from 2h --until 1h --grep 'id": 7'
topicctl read orders 'payments.*' --format '{topic} {seq} {tag} {data}'
topicctl tail orders                                  # the last ten, then what comes
"""


APART = (
    *("--from --last", "--until --follow", FILTERS_APART, FORMS_APART),
    *(f"--meta-only {other}" for other in ("--data", "--raw", "--format", "--grep", "--follow")),
)


@verb("read", examples=EXAMPLES, apart=APART, needs=(FORMS_NEED,))
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option("--from", "start", type=PLACE, metavar="PLACE", help=f"Where to begin: {PLACE_RULE} [default: earliest].")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="The last N of these records.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("--until", type=PLACE, metavar="PLACE", help="Where to end, a place like those of --from; included.")
@layout_options
@filter_options
@click.option("--meta-only", is_flag=True, help="Seq, time, tag and node without the data.")
@form_options
@click.option("--follow", "-f", is_flag=True, help="Go on with records as they are stored.")
@pass_app
def read(
    app: App,
    topics: tuple[str, ...],
    start: int | str | datetime | None,
    last: int | None,
    limit: int | None,
    until: int | str | datetime | None,
    grep: str | None,
    layout: str | None,
    tag: str | None,
    tag_prefix: str | None,
    nodes: tuple[str, ...],
    meta_only: bool,
    form: str | None,
    parse: bool,
    follow: bool,
) -> None:
    """Print the records of TOPICs that are stored now, oldest first, topic by topic.

    A TOPIC may be a pattern: 'orders.*' for all that begin so, 'a.*.b' for any one part, 'a.>' for all parts behind.
    """
    from topicd.cli.show.records import RecordPrinter

    check_grep(grep, limit)
    with app.connect() as client:
        names = expanded(client, topics)
        several = len(names) > 1
        if follow and len(names) > FOLLOWED:
            raise click.UsageError(f"--follow goes with up to {FOLLOWED} topics; `topicctl watch` follows any number")
        printer = RecordPrinter(
            *(app.out, form or "line"), with_topic=several, parse=parse, meta_only=meta_only, grep=grep, layout=layout
        )
        filters: dict[str, Any] = {"match": match_of(tag, tag_prefix), "exclude_nodes": list(nodes) or None}
        left, places = limit, []
        for name in names:
            with known_topic(client, name):
                reader = TopicReader(client, name, printer, {**filters, "metadata_only": meta_only})
                begin = reader.position(start, last)
                quiet = start in (None, "earliest")
                at, left = reader.stored(begin, left, quiet_gap=quiet, until=until)
                places.append((name, at))
        if follow and left != 0:
            _follow(client, places, printer, left, filters)


def _follow(
    client: Client, places: list[tuple[str, int]], printer: RecordPrinter, left: int | None, filters: dict[str, Any]
) -> None:
    """Goes on in each topic behind what was printed of it."""
    with ExitStack() as stack:
        watches = [stack.enter_context(client.watch(name, at, gaps=True, **filters)) for name, at in places]
        follow_on(watches[0] if len(watches) == 1 else Merged(watches), printer, left)


def check_grep(grep: str | None, limit: int | None) -> None:
    if grep is not None and limit is not None:
        raise click.UsageError("--limit counts what is read, not what --grep leaves; `| head -n N` counts lines")


def expanded(client: Client, given: tuple[str, ...]) -> list[str]:
    """Names, with each pattern replaced by the topics that it means now."""
    found: list[str] = []
    for text in given:
        if not is_pattern(text):
            found.append(text)
            continue
        check_pattern(text)
        meant = [info.topic for info in client.topics(prefix_of(text)) if covers(text, info.topic)]
        if not meant:
            raise CliError(f"no topic is meant by {text!r}", Exit.NOT_FOUND, "`topicctl topic list` shows all topics")
        found += meant
    return list(dict.fromkeys(found))


@verb(
    "tail",
    examples="""
    topicctl tail orders
    topicctl tail orders --last 100 --no-follow
    topicctl tail 'app.*' --grep error
    """,
    apart=(FILTERS_APART, FORMS_APART),
    needs=(FORMS_NEED,),
)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topics)
@click.option(
    "--last", type=click.IntRange(min=1), default=10, metavar="N", help="The last N of these records [default: 10]."
)
@click.option("--no-follow", is_flag=True, help="End there.")
@layout_options
@filter_options
@form_options
@click.pass_context
def tail(ctx: click.Context, /, topics: tuple[str, ...], last: int, no_follow: bool, **given: Any) -> None:
    """Print the last records of each of TOPICs that exist now and go on: `read --last 10 --follow`."""
    ctx.invoke(
        read,
        topics=topics,
        start=None,
        last=last,
        limit=None,
        until=None,
        meta_only=False,
        follow=not no_follow,
        **given,
    )


class TopicReader:
    def __init__(self, client: Client, topic: str, printer: RecordPrinter, filters: dict[str, Any]) -> None:
        self._client = client
        self._topic = topic
        self._printer = printer
        self._filters = filters

    def position(self, start: int | str | datetime | None, last: int | None) -> int | datetime:
        if last is not None:
            return self._before_the_last(last)
        if start == "latest":
            return self._client.state(self._topic).head_seq
        if start is None or isinstance(start, str):
            return 0
        return start

    def _before_the_last(self, wanted: int) -> int:
        """The seq behind which so many records are left, of those that were asked for. Looks back in steps that grow:
        any number of seqs may be deleted, or other records'."""
        state = self._client.state(self._topic)
        top, step = state.head_seq, wanted
        while True:
            begin = max(top - step, state.earliest_seq - 1, 0)
            found = self._seqs_between(begin, top, wanted)
            if len(found) == wanted:
                return found[0] - 1
            if begin < state.earliest_seq:
                # All there are; what is told of seqs before them is what was lost among the last ones.
                return max(0, min(begin, state.head_seq - wanted))
            wanted -= len(found)
            top, step = begin, 4 * step

    def _seqs_between(self, begin: int, top: int, most: int) -> deque[int]:
        """The last ones of those up to top."""
        found: deque[int] = deque(maxlen=most)
        given = {**self._filters, "metadata_only": True}
        while begin < top:
            try:
                batch = self._client.fetch(self._topic, begin, limit=FETCH_RECORDS_MAX, **given)
            except StorageCorrupt:
                return found  # it is told when it is read
            found.extend(record.seq for record in batch.records if record.seq <= top)
            begin = batch.next_from_seq
            if batch.caught_up:
                break
        return found

    def stored(
        self,
        begin: int | datetime,
        limit: int | None,
        *,
        quiet_gap: bool,
        until: int | str | datetime | None = None,
    ) -> tuple[int, int | None]:
        """Prints up to what was newest at the first answer, or to `until`. Where it stopped, and what is left of
        limit."""
        until_ts = int(until.timestamp() * 1000) if isinstance(until, datetime) else None
        given = dict(self._filters)
        at = 0
        if isinstance(begin, datetime):
            given["from_time"] = begin
        else:
            at = begin
        end: int | None = None
        left = limit
        while left != 0:
            wanted = FETCH_RECORDS_MAX if left is None else min(left, FETCH_RECORDS_MAX)
            try:
                batch = self._client.fetch(self._topic, at, limit=wanted, max_bytes=FETCH_BYTES_MAX, **given)
            except StorageCorrupt as exc:
                raise damaged(exc) from exc
            given = {**self._filters, "epoch": batch.topic_id}
            if end is None:
                end = min(batch.head_seq, until) if isinstance(until, int) else batch.head_seq
            if until_ts is not None and len(batch) and batch.records[-1].ts > until_ts:
                wanted_ones = [record for record in batch.records if record.ts <= until_ts and record.seq <= end]
                self._printer.records(wanted_ones)
                return end, None if left is None else left - len(wanted_ones)
            quiet = quiet_gap and batch.gap is not None and batch.gap.first_seq <= 1
            if len(batch) and batch.next_from_seq > end:
                self._printer.records(record for record in batch.records if record.seq <= end)
                return end, left
            self._printer.batch(batch, skip_gap=quiet)
            left = None if left is None else left - len(batch)
            at = batch.next_from_seq
            if batch.caught_up or at >= end:
                break
        return at, left


def damaged(error: StorageCorrupt) -> CliError:
    """Says how to get past it."""
    last = error.detail.get("last_seq")
    behind = f"`--from {last}` reads on behind it; " if isinstance(last, int) else ""
    return CliError(error.message, exit_of(error), behind + hint_of(error), error.code)
