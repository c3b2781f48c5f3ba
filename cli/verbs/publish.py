"""`topicctl publish`: from the command line, a file or a pipe into a topic."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from typing import TYPE_CHECKING, Any

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import CliError, Exit, as_cli_error
from topicd.cli.options import meta_option
from topicd.cli.topic_names import complete_topics, near_topics
from topicd.errors import TopicdError, TopicNotFound
from topicd.limits import MAX_BATCH_RECORDS

if TYPE_CHECKING:
    from topicd.cli.sources import ReadBatch
    from topicd.client.blocking.client import Client

EXAMPLES = """
topicctl publish orders hello
topicctl publish orders '{"id": 7}' --tag created --meta '{"trace": "a1"}'
topicctl publish orders hello --key 2026-01-31/7      # stored once, however often it runs
topicctl publish orders --from-file events.ndjson     # a record per line
tail -f app.log | topicctl publish logs -             # as lines arrive
topicctl read orders --json | topicctl publish copy - --ndjson
topicctl publish images --from-file logo.png --raw    # the whole file as one record
"""


@verb("publish", examples=EXAMPLES, apart=("--lines --ndjson --raw",))
@click.argument("topic", shell_complete=complete_topics)
@click.argument("data", required=False)
@click.option("--from-file", "-f", type=click.Path(), metavar="FILE", help="Take records from a file; - is stdin.")
@click.option("--lines", "form", flag_value="lines", help="A record per line (the default for files and stdin).")
@click.option("--ndjson", "form", flag_value="ndjson", help="A JSON object per line, as `read --json` prints it.")
@click.option("--raw", "form", flag_value="raw", help="The whole input as one record.")
@click.option("--tag", metavar="TAG", help="Tag of every record that brings none.")
@click.option("--node", metavar="NODE", help="Origin of every record that brings none.")
@meta_option
@click.option("--key", metavar="KEY", help="Store one record only if this key is new.")
@pass_app
def publish(
    app: App,
    topic: str,
    data: str | None,
    from_file: str | None,
    form: str | None,
    tag: str | None,
    node: str | None,
    meta: dict[str, Any] | None,
    key: str | None,
) -> None:
    """Store records in TOPIC. DATA is one record; - reads records from stdin."""
    if (data is None) == (from_file is None):
        raise click.UsageError("give DATA, - for stdin, or --from-file FILE")
    path = from_file or (data if data == "-" else None)
    if path is None:
        if form is not None:
            raise click.UsageError(f"--{form} is for --from-file and -")
        _publish_one(app, topic, os.fsencode(data or ""), {"tag": tag, "node": node, "meta": meta, "key": key})
        return
    if key is not None and form != "raw":
        raise click.UsageError("--key is for one record: DATA or --raw")
    with _opened(path) as stream:
        if form == "raw":
            from topicd.cli.sources import whole

            content = next(whole(stream)).records[0]
            _publish_one(app, topic, content, {"tag": tag, "node": node, "meta": meta, "key": key})
        else:
            _publish_all(app, topic, stream, form == "ndjson", {"tag": tag, "node": node}, meta)


@contextmanager
def _opened(path: str) -> Iterator[BufferedReader]:
    if path == "-":
        yield sys.stdin.buffer  # type: ignore[misc]
        return
    if not os.path.exists(path):
        raise CliError(f"{path}: no such file", Exit.NOT_FOUND)
    with open(path, "rb") as stream:
        yield stream


def _publish_one(app: App, topic: str, data: bytes, given: dict[str, Any]) -> None:
    with app.connect() as client:
        seq = client.publish(topic, data, **given)
        app.out.either({"topic": topic, "seq": seq}, f"{topic}#{seq}")
        _note_new_topic(client, topic, seq)


def _publish_all(
    app: App,
    topic: str,
    stream: BufferedReader,
    ndjson: bool,
    labels: dict[str, str | None],
    meta: dict[str, Any] | None,
) -> None:
    from topicd.cli.show.human import records_word
    from topicd.cli.show.progress import Bar
    from topicd.cli.sources import envelope, lines, pieces

    chunks = lines(stream, envelope if ndjson else None)
    first = last = stored = 0
    beside = sum(len(os.fsencode(label)) for label in labels.values() if label)
    typed = stream.isatty()  # a bar would run over what is typed
    shown = False if typed else None
    with app.connect() as client, Bar(f"publish {topic}", bytes_to_come(stream), "bytes", shown=shown) as bar:
        most, most_bytes = _largest_write(client, topic)
        began = time.monotonic()
        try:
            for records, consumed in _with_meta(chunks, meta):
                for piece in pieces(records, most, most_bytes, beside):
                    done = client.publish_many(topic, piece, tag=labels["tag"], node=labels["node"])
                    first, last, stored = first or done.first_seq, done.last_seq, stored + done.count
                bar.advance(consumed, records_word(stored))
        except (TopicdError, CliError) as exc:
            error = as_cli_error(exc) if isinstance(exc, TopicdError) else exc
            before = f"; {records_word(stored)} stored before it, up to seq {last}" if stored else ""
            raise CliError(error.message + before, error.exit_code, error.hint) from exc
        except KeyboardInterrupt:
            upto = f", up to seq {last}" if stored else ""
            # Behind the ^C of the terminal; the end of the line comes with the exit code.
            click.echo(f"\ninterrupted: {records_word(stored)} stored{upto}", err=True, nl=False)
            raise
        _summary(app, topic, first, last, stored, time.monotonic() - began)
        if stored:
            _note_new_topic(client, topic, first)


def _largest_write(client: Client, topic: str) -> tuple[int, int]:
    """(records, bytes) that the topic takes at once; 0 bytes: no bound. A write must not exceed the cap."""
    try:
        config = client.state(topic, touch=False).config
    except TopicNotFound:
        return MAX_BATCH_RECORDS, 0
    return min(config.cap_records or MAX_BATCH_RECORDS, MAX_BATCH_RECORDS), config.cap_bytes


def _with_meta(chunks: Iterator[ReadBatch], meta: dict[str, Any] | None) -> Iterator[tuple[list[Any], int]]:
    for chunk in chunks:
        records = chunk.records
        if meta:
            records = [
                (*record[:3], record[3] or meta) if isinstance(record, tuple) else (record, None, None, meta)
                for record in records
            ]
        yield records, chunk.consumed


def bytes_to_come(stream: BufferedReader) -> int | None:
    """As far as one can know."""
    try:
        found = os.fstat(stream.fileno())
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _summary(app: App, topic: str, first: int, last: int, stored: int, seconds: float) -> None:
    from topicd.cli.show.human import count, duration, records_word

    if app.json:
        body = {"topic": topic, "count": stored, "first_seq": first or None, "last_seq": last or None}
        app.out.document({**body, "seconds": round(seconds, 6)})
    elif not stored:
        app.out.text("nothing to publish: the input is empty")
    else:
        rate = f", {count(stored / seconds)}/s" if seconds > 0.1 else ""
        app.out.text(f"{topic}#{first}..{last}  {records_word(stored)} in {duration(seconds)}{rate}")


def _note_new_topic(client: Client, topic: str, seq: int) -> None:
    """Record 1 of a topic whose name is nearly that of another: perhaps a typo made it."""
    if seq == 1 and sys.stderr.isatty():
        near = near_topics(client, topic)
        if near:
            click.echo(f"note: {topic!r} is a new topic{near}", err=True)
