"""`topicctl import`: the messages of a file channel into a topic, each once, however often it is run."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from time import monotonic

import click

from topicd.cli.app import App, pass_app, verb
from topicd.cli.exits import CliError, Exit
from topicd.cli.show.human import duration, records_word
from topicd.cli.show.progress import Bar
from topicd.cli.topic_names import complete_topics
from topicd.client.blocking.client import Client
from topicd.client.core.encode import encode
from topicd.client.spool.draining import Drain
from topicd.errors import RecordTooLarge
from topicd.filechannel import Damaged, FileChannel, Gap, NotEnough, Receiver
from topicd.filechannel.inspect import is_channel, overview
from topicd.filechannel.layout import MESSAGE_HEAD
from topicd.limits import MIB
from topicd.model import check_topic_name

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
@click.option("--skip-damage", is_flag=True, help="Go on behind messages that cannot be read; each range is named.")
@click.argument("topic", shell_complete=complete_topics)
@pass_app
def import_channel(app: App, directory: Path, topic: str, skip_damage: bool) -> None:
    """Store every message of the file channel in DIR as a record of TOPIC, in order.

    It may be interrupted and started again, and run again for what came meanwhile: nothing is stored twice. To remember
    how far it is, it stays a receiver of the channel: `FileChannel.remove_receiver` forgets it.
    """
    if not is_channel(directory):
        raise CliError(f"{directory}: no file channel there", Exit.NOT_FOUND)
    check_topic_name(topic)
    found = overview(directory.absolute())
    name = receiver_name(topic)
    began, idle = monotonic(), False
    with app.connect() as client, FileChannel(directory, writer=False) as channel:
        try:
            with (
                channel.receiver(name) as receiver,
                Bar(f"import {topic}", found.end - receiver.offset, "bytes") as bar,
            ):
                begun = receiver.offset
                identity = found.survey.channel_id or b""
                drain = Drain(channel.directory, identity, receiver, name=note_name(name), sync=True)
                try:
                    work = Import(client, topic, receiver, drain, bar, skip_damage)
                    stored = work.run()
                finally:
                    idle = name not in found.positions and receiver.offset == begun and drain.noted is None
                    drain.close()
        except BaseException:
            if idle:
                # Nothing was stored: a receiver that nobody comes back for would keep everything in the channel.
                channel.remove_receiver(name)
                (channel.directory / note_name(name)).unlink(missing_ok=True)
            raise
    _summary(app, topic, stored, work.skipped, monotonic() - began)


class Import:
    def __init__(
        self, client: Client, topic: str, receiver: Receiver[bytes], drain: Drain, bar: Bar, skip_damage: bool
    ) -> None:
        self._client = client
        self._topic = topic
        self._receiver = receiver
        self._drain = drain
        self._bar = bar
        self._skip_damage = skip_damage
        self._stored = 0
        self.skipped: list[Damaged] = []

    def run(self) -> int:
        """How many were stored."""
        while (batch := self._next_batch(self._drain.noted)) is not None:
            payloads, end = batch
            before = self._receiver.offset
            self._drain.store(self._client, {self._topic: (self._encoded(payloads, end), len(payloads))}, end)
            self._receiver.ack(len(payloads))
            self._stored += len(payloads)
            self._bar.advance(end - before, records_word(self._stored))
        return self._stored

    def _encoded(self, payloads: list[bytes], end: int) -> bytearray:
        try:
            return encode(payloads)
        except RecordTooLarge as error:
            where = f"a message between offsets {self._receiver.offset} and {end} does not fit into a record"
            raise CliError(f"{where}: {error.message}; {self._stored} were stored before it", Exit.REFUSED) from None

    def _next_batch(self, noted: int | None) -> tuple[list[bytes], int] | None:
        """Messages that are there now; what was noted before a crash, as it was. None: there are no more."""
        receiver = self._receiver
        receiver.ack_all()  # a gap behind the last batch
        payloads: list[bytes] = []
        end = receiver.offset
        size = 0
        while len(payloads) < BATCH_RECORDS and size < BATCH_BYTES and (noted is None or end < noted):
            try:
                message = receiver.recv(0)
            except NotEnough:
                break
            except Damaged as damage:
                if payloads and noted is None:
                    break  # first what lies before it
                self._step_over(damage)
                end = damage.end
                continue
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

    def _step_over(self, damage: Damaged) -> None:
        where = f"offsets {damage.begin} to {damage.end}"
        if not self._skip_damage:
            raise CliError(
                f"{where} are damaged: {damage.reason}; {records_word(self._stored)} stored before",
                Exit.FAILED,
                "--skip-damage goes on behind it; `topicctl filechannel verify DIR` names all of it",
                damage.code,
            )
        click.echo(f"damage: {where}: {damage.reason}", err=True)
        self._receiver.skip_damage()
        self.skipped.append(damage)


def receiver_name(topic: str) -> str:
    return f"import-{blake2b(topic.encode(), digest_size=8).hexdigest()}"


def note_name(receiver: str) -> str:
    return f"draining.{receiver}"


def _summary(app: App, topic: str, stored: int, skipped: list[Damaged], seconds: float) -> None:
    if app.json:
        spans = [{"begin": damage.begin, "end": damage.end} for damage in skipped]
        app.out.document({"topic": topic, "count": stored, "skipped": spans, "seconds": round(seconds, 6)})
    elif stored or skipped:
        app.out.text(f"{topic}: {records_word(stored)} in {duration(seconds)}")
    else:
        app.out.text("nothing to import: everything is in the topic already")
