"""`topicctl import`: the messages of a file channel into a topic, each once, however often it is run."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import Any

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import CliError, Exit
from topicd.cli.show.human import duration, records_word
from topicd.cli.show.progress import Bar
from topicd.cli.topic_names import complete_topics
from topicd.client.core.encode import encode
from topicd.client.spool.draining import Drain
from topicd.errors import RecordTooLarge
from topicd.filechannel import FileChannel, Gap, NotEnough
from topicd.filechannel.inspect import is_channel, overview
from topicd.filechannel.layout import MESSAGE_HEAD
from topicd.limits import MIB

BATCH_RECORDS = 5_000
BATCH_BYTES = 8 * MIB

EXAMPLES = """
topicctl import --from-filechannel /var/spool/app orders
topicctl import --from-filechannel /var/spool/app orders --json
"""


@verb("import", examples=EXAMPLES)
@click.option(
    "--from-filechannel",
    "directory",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="The directory of the channel.",
)
@click.argument("topic", shell_complete=complete_topics)
@pass_app
def import_channel(app: App, directory: Path, topic: str) -> None:
    """Store every message of the file channel in DIR as a record of TOPIC, in order.

    It may be interrupted and started again, and run again for what came meanwhile: nothing is stored twice. To remember
    how far it is, it stays a receiver of the channel: `FileChannel.remove_receiver` forgets it.
    """
    if not is_channel(directory):
        raise CliError(f"{directory}: no file channel there", Exit.NOT_FOUND)
    found = overview(directory.absolute())
    name = receiver_name(topic)
    stored, began = 0, monotonic()
    with app.connect() as client, FileChannel(directory, writer=False) as channel:
        with channel.receiver(name) as receiver, Bar(f"import {topic}", found.end - receiver.offset, "bytes") as bar:
            drain = Drain(
                channel.directory, found.survey.channel_id or b"", receiver, name=f"draining.{name}", sync=True
            )
            try:
                while (batch := _next_batch(receiver, drain.noted)) is not None:
                    payloads, end = batch
                    before = receiver.offset
                    try:
                        frames = encode(payloads)
                    except RecordTooLarge as error:
                        where = f"a message between offsets {before} and {end} does not fit into a record"
                        raise CliError(
                            f"{where}: {error.message}; {stored} were stored before it", Exit.REFUSED
                        ) from None
                    drain.store(client, {topic: (frames, len(payloads))}, end)
                    receiver.ack(len(payloads))
                    stored += len(payloads)
                    bar.advance(end - before, records_word(stored))
            finally:
                drain.close()
    _summary(app, topic, stored, monotonic() - began)


def receiver_name(topic: str) -> str:
    return f"import-{blake2b(topic.encode(), digest_size=8).hexdigest()}"


def _next_batch(receiver: Any, noted: int | None) -> tuple[list[bytes], int] | None:
    """Messages that are there now; what was noted before a crash, as it was. None: there are no more."""
    receiver.ack_all()  # a gap behind the last batch
    payloads: list[bytes] = []
    end = receiver.offset
    size = 0
    while len(payloads) < BATCH_RECORDS and size < BATCH_BYTES and (noted is None or end < noted):
        try:
            message = receiver.recv(0)
        except NotEnough:
            break
        if isinstance(message, Gap):
            click.echo(f"gap: the full channel had dropped offsets {message.begin} to {message.end}", err=True)
            if payloads:
                break
            receiver.ack()
            end = message.end
            continue
        payloads.append(message)
        size += len(message)
        end += MESSAGE_HEAD + len(message)
    return (payloads, end) if payloads else None


def _summary(app: App, topic: str, stored: int, seconds: float) -> None:
    if app.json:
        app.out.document({"topic": topic, "count": stored, "seconds": round(seconds, 6)})
    elif stored:
        app.out.text(f"{topic}: {records_word(stored)} in {duration(seconds)}")
    else:
        app.out.text("nothing to import: everything is in the topic already")
