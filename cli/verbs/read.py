"""`topicctl read`: what a topic holds, oldest first, and on request what comes after."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import CliError, exit_of, hint_of
from topicd.cli.options import PLACE, PLACE_RULE, filter_options, form_options, match_of
from topicd.cli.topic_names import complete_topics, known_topic
from topicd.errors import StorageCorrupt
from topicd.limits import FETCH_BYTES_MAX, FETCH_RECORDS_MAX

if TYPE_CHECKING:
    from topicd.cli.show.records import RecordPrinter
    from topicd.client.blocking.client import Client

EXAMPLES = """
topicctl read orders --from 0
topicctl read orders --last 10
topicctl read orders --from 15m --tag created
topicctl read orders --json | jq -r .data
topicctl read orders --json --parse | jq .data.id     # data that is JSON, parsed
topicctl read orders --from 2026-01-31T12:00 --limit 100 --follow
topicctl read images --limit 1 --raw > logo.png
"""


@verb("read", examples=EXAMPLES)
@click.argument("topic", shell_complete=complete_topics)
@click.option("--from", "start", type=PLACE, metavar="PLACE", help=f"Where to begin: {PLACE_RULE} [default: earliest].")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Begin N records before the end.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@filter_options
@click.option("--meta-only", is_flag=True, help="Seq, time, tag and node without the data.")
@form_options
@click.option("--follow", "-f", is_flag=True, help="Go on with records as they are stored.")
@pass_app
def read(
    app: App,
    topic: str,
    start: int | str | datetime | None,
    last: int | None,
    limit: int | None,
    tag: str | None,
    tag_prefix: str | None,
    nodes: tuple[str, ...],
    meta_only: bool,
    form: str | None,
    parse: bool,
    follow: bool,
) -> None:
    """Print the records of TOPIC that are stored now, oldest first."""
    from topicd.cli.show.records import RecordPrinter

    if start is not None and last is not None:
        raise click.UsageError("--from and --last exclude each other")
    if meta_only and (form or follow):
        raise click.UsageError("--meta-only does not go with --data, --raw or --follow")
    printer = RecordPrinter(app.out, form or "line", parse=parse, meta_only=meta_only)
    filters: dict[str, Any] = {"match": match_of(tag, tag_prefix), "nodes": list(nodes) or None}
    with app.connect() as client, known_topic(client, topic):
        reader = TopicReader(client, topic, printer, {**filters, "metadata_only": meta_only})
        begin = reader.position(start, last)
        at, left = reader.stored(begin, limit, quiet_gap=start in (None, "earliest"))
        if follow and left != 0:
            with client.watch(topic, at, **filters) as events:
                follow_on(events, printer, left)


class TopicReader:
    def __init__(self, client: Client, topic: str, printer: RecordPrinter, filters: dict[str, Any]) -> None:
        self._client = client
        self._topic = topic
        self._printer = printer
        self._filters = filters

    def position(self, start: int | str | datetime | None, last: int | None) -> int | datetime:
        if last is not None:
            return max(0, self._client.state(self._topic).head_seq - last)
        if start == "latest":
            return self._client.state(self._topic).head_seq
        if start is None or isinstance(start, str):
            return 0
        return start

    def stored(self, begin: int | datetime, limit: int | None, *, quiet_gap: bool) -> tuple[int, int | None]:
        """Prints up to what was newest at the first answer. Where it stopped, and what is left of limit."""
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
                batch = self._client.read(self._topic, at, limit=wanted, max_bytes=FETCH_BYTES_MAX, **given)
            except StorageCorrupt as exc:
                raise damaged(exc) from exc
            given = {**self._filters, "epoch": batch.topic_id}
            end = batch.head_seq if end is None else end
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
    return CliError(error.message, exit_of(error), behind + hint_of(error))


def follow_on(events: Any, printer: RecordPrinter, limit: int | None) -> None:
    """Prints what a watch brings until limit records came."""
    left = limit
    for batch in events.batches():
        if left is not None and len(batch) >= left:
            printer.records(batch.records[:left])
            return
        printer.batch(batch)
        left = None if left is None else left - len(batch)
