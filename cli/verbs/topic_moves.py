"""`topicctl topic copy`, `rename`, `purge`, `export`, `import`: a topic's records as a whole. Promise: data,
tag, node and meta arrive as they were; a source is deleted only after everything of it is stored elsewhere.

An export is NDJSON: a line `{"topicd_export": 1, "topic", "config", "count"}`, a line for each record with its data in
`text` or, if it is no UTF-8, in `base64`, and a last line `{"end": N}` without which it is known to be torn.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, cast

import click

from topicd.cli.app import App, pass_app
from topicd.cli.ask import confirm
from topicd.cli.exits import CliError, Exit
from topicd.cli.show.human import records_word
from topicd.cli.show.progress import Bar
from topicd.cli.topic_names import complete_topics, known_topic
from topicd.cli.verbs.topic import topic
from topicd.errors import TopicFull, TopicNotFound
from topicd.model import TopicConfig

if TYPE_CHECKING:
    from topicd.client.blocking.client import Client
    from topicd.client.core.answers import TopicState
    from topicd.client.core.records import Published, Record

VERSION = 1
PIECE = 1_000  # records of one write

_NAME = click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
_YES = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


@topic.verb("copy", examples="topicctl topic copy orders orders.test")
@_NAME
@click.argument("target", metavar="NEW")
@click.option("--append", is_flag=True, help="Into a topic that exists, behind what it holds.")
@pass_app
def copy(app: App, name: str, target: str, append: bool) -> None:
    """Copy the records of TOPIC that are stored now, and its configuration, to the topic NEW.

    Records get seqs and times of their own there; data, tag, node and meta stay as they are.
    """
    with app.connect() as client, known_topic(client, name):
        state = client.state(name, touch=False)
        _make_target(client, target, state, append)
        moved = _copied(client, state, target)
    _say(app, f"copied {records_word(len(moved))} of {name} to {target}", topic=name, target=target, count=len(moved))


@topic.verb("rename", examples="topicctl topic rename ordres orders --yes")
@_NAME
@click.argument("target", metavar="NEW")
@_YES
@pass_app
def rename(app: App, name: str, target: str, yes: bool) -> None:
    """Copy TOPIC with its configuration and its consumers to NEW, then delete it.

    Records get seqs and times of their own; consumers go on at the same record. If anything was written to TOPIC
    meanwhile, it is not deleted.
    """
    with app.connect() as client, known_topic(client, name):
        state = client.state(name, touch=False)
        confirm(f"rename topic {name!r} with {records_word(state.count)} to {target!r}?", yes)
        _make_target(client, target, state, append=False)
        moved = _copied(client, state, target)
        for consumer in client.consumers(name):
            seen = [new for old, new in moved.items() if old <= consumer.acked_seq]
            client.open_consumer(target, consumer.name, max(seen, default=0))
        if client.state(name, touch=False).head_seq != state.head_seq:
            raise CliError(
                f"{name} was written to meanwhile: {target} has {records_word(len(moved))}, and {name} is still there",
                Exit.REFUSED,
                f"stop who writes, `topicctl topic delete {target}`, and rename again",
            )
        client.delete_topic(name)
    _say(app, f"renamed {name} to {target}: {records_word(len(moved))}", topic=name, target=target, count=len(moved))


@topic.verb("purge", examples="topicctl topic purge orders --yes")
@_NAME
@_YES
@pass_app
def purge(app: App, name: str, yes: bool) -> None:
    """Delete every record of TOPIC; the topic, its configuration and its consumers stay."""
    with app.connect() as client, known_topic(client, name):
        state = client.state(name, touch=False)
        confirm(f"delete all {records_word(state.count)} of topic {name!r}?", yes)
        deleted = client.delete(name, before_seq=state.head_seq + 1).deleted if state.count else 0
    _say(app, f"deleted {records_word(deleted)} of {name}", topic=name, deleted=deleted)


@topic.verb("export", examples="topicctl topic export orders orders.ndjson.gz\ntopicctl topic export orders - | wc -l")
@_NAME
@click.argument("file", metavar="FILE")
@pass_app
def export(app: App, name: str, file: str) -> None:
    """Write TOPIC with its configuration to FILE (.gz is compressed, - is stdout), for `topic import`."""
    with app.connect() as client, known_topic(client, name):
        state = client.state(name, touch=False)
        with _writing(file) as out:
            _line(
                out, {"topicd_export": VERSION, "topic": name, "config": state.config.to_fields(), "count": state.count}
            )
            written = 0
            with Bar(f"export {name}", state.count) as bar:
                for record in client.read(name, to_seq=state.head_seq):
                    _line(out, _body(record))
                    written += 1
                    bar.advance(1)
            _line(out, {"end": written})
    if file != "-":
        _say(app, f"wrote {records_word(written)} of {name} to {file}", topic=name, file=file, count=written)


@topic.verb("import", examples="topicctl topic import orders orders.ndjson.gz")
@_NAME
@click.argument("file", metavar="FILE")
@click.option("--append", is_flag=True, help="Into a topic that exists, behind what it holds.")
@pass_app
def import_(app: App, name: str, file: str, append: bool) -> None:
    """Store the records of FILE, as `topic export` wrote it, in TOPIC, with their configuration if TOPIC is new."""
    with app.connect() as client, _reading(file) as stream:
        head = _header(file, stream)
        config = TopicConfig.from_stored(head["config"])
        if _exists(client, name) and not append:
            raise _there_already(name)
        if not _exists(client, name):
            client.configure(name, **cast(Any, _changed(config)))
        stored = 0
        with Bar(f"import {name}", head.get("count")) as bar:
            for piece in _pieces(_imported(file, stream)):
                stored += _publish(client, name, piece, stored).count
                bar.advance(len(piece))
    _say(app, f"stored {records_word(stored)} in {name}", topic=name, file=file, count=stored)


# ---- copying ----


def _make_target(client: Client, target: str, state: TopicState, append: bool) -> None:
    if target == state.topic:
        raise click.UsageError("a topic cannot be copied to itself")
    if _exists(client, target):
        if not append:
            raise _there_already(target)
        return
    client.configure(target, **cast(Any, _changed(state.config)))


def _there_already(name: str) -> CliError:
    return CliError(f"topic {name!r} exists already", Exit.REFUSED, "--append stores behind what it holds")


def _exists(client: Client, name: str) -> bool:
    try:
        client.state(name, touch=False)
    except TopicNotFound:
        return False
    return True


def _changed(config: TopicConfig) -> dict[str, Any]:
    plain = TopicConfig().to_fields()
    return {name: value for name, value in config.to_fields().items() if value != plain[name]}


def _copied(client: Client, state: TopicState, target: str) -> dict[int, int]:
    """The new seq of each record, by its old one."""
    moved: dict[int, int] = {}
    with Bar(f"copy {state.topic}", state.count) as bar:
        for piece in _pieces(client.read(state.topic, to_seq=state.head_seq)):
            first = _publish(client, target, piece, len(moved)).first_seq
            moved |= {record.seq: first + at for at, record in enumerate(piece)}
            bar.advance(len(piece))
    return moved


def _publish(client: Client, name: str, piece: list[Record], before: int) -> Published:
    try:
        return client.publish_many(name, piece)
    except TopicFull as exc:
        raise CliError(f"{exc.message}; {records_word(before)} before it were stored", Exit.REFUSED) from None


def _pieces(records: Iterator[Record]) -> Iterator[list[Record]]:
    piece: list[Record] = []
    for record in records:
        piece.append(record)
        if len(piece) == PIECE:
            yield piece
            piece = []
    if piece:
        yield piece


# ---- files ----


@contextmanager
def _writing(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdout.buffer
        return
    if os.path.exists(file):
        raise CliError(f"{file} exists already", Exit.REFUSED)
    part = f"{file}.part"
    with gzip.open(part, "wb") if file.endswith(".gz") else open(part, "wb") as out:
        yield cast("IO[bytes]", out)
    os.link(part, file)  # never over a file that came meanwhile
    os.unlink(part)


@contextmanager
def _reading(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    with gzip.open(file, "rb") if file.endswith(".gz") else open(file, "rb") as stream:
        yield cast("IO[bytes]", stream)


def _line(out: IO[bytes], body: dict[str, Any]) -> None:
    out.write(json.dumps(body, separators=(",", ":")).encode() + b"\n")


def _body(record: Record) -> dict[str, Any]:
    data, tag, node, meta = record.raw
    body: dict[str, Any] = {"seq": record.seq, "ts": record.ts}
    for name, value in (("tag", tag), ("node", node), ("meta", meta)):
        if value is not None:
            body[name] = (
                base64.b64encode(value).decode() if name == "meta" else value.decode("utf-8", "surrogateescape")
            )
    try:
        body["text"] = data.decode()
    except UnicodeDecodeError:
        body["base64"] = base64.b64encode(data).decode()
    return body


def _header(file: str, stream: IO[bytes]) -> dict[str, Any]:
    try:
        head = json.loads(stream.readline())
        version = head["topicd_export"]
    except (ValueError, KeyError, TypeError, OSError):
        raise CliError(f"{file} is no export of a topic", Exit.USAGE, "`topicctl topic export` makes one") from None
    if version != VERSION:
        raise CliError(f"{file} is an export of version {version!r}, this program reads {VERSION}", Exit.REFUSED)
    return cast("dict[str, Any]", head)


def _imported(file: str, stream: IO[bytes]) -> Iterator[Record]:
    import msgpack

    import topicd

    number, ended = 0, False
    for number, line in enumerate(stream):
        try:
            body = json.loads(line)
            if "end" in body:
                ended = body["end"] == number
                break
            data = body["text"].encode() if "text" in body else base64.b64decode(body["base64"], validate=True)
            tag, node = (body[n].encode("utf-8", "surrogateescape") if n in body else None for n in ("tag", "node"))
            meta = msgpack.unpackb(base64.b64decode(body["meta"])) if "meta" in body else None
        except (ValueError, KeyError, TypeError, AttributeError) as exc:
            raise CliError(f"{file}: record {number + 1} is malformed: {exc}", Exit.FAILED) from None
        yield topicd.Record(data, tag=tag, node=node, meta=meta)
    if not ended:
        raise CliError(f"{file} is torn: it ends behind record {number}, without its last line", Exit.FAILED)


def _say(app: App, text: str, **body: Any) -> None:
    app.out.either(body, text)
