"""`topicctl filechannel`: look into the directory of an embedded file channel, verify, follow and compact it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from topicd.cli.app import App, pass_app
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group
from topicd.cli.show.human import count, printable, size
from topicd.cli.show.progress import Bar
from topicd.cli.show.render import Column, json_bytes
from topicd.filechannel import Damaged, FileChannel, Gap, NotEnough
from topicd.filechannel.inspect import Overview, check_offset, is_channel, overview, walk
from topicd.filechannel.survey import Damage, Segment
from topicd.words import counted

filechannel = Group("filechannel", help="Look into embedded file channels and look after them.", no_args_is_help=True)
_DIRECTORY = click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")


def _channel(directory: Path) -> Path:
    if not is_channel(directory):
        raise CliError(f"{directory}: no file channel there", Exit.NOT_FOUND)
    return directory.absolute()


@filechannel.verb(
    "info", online=False, examples="topicctl filechannel info /var/spool/app\ntopicctl filechannel info . --json"
)
@_DIRECTORY
@pass_app
def info(app: App, directory: Path) -> int:
    """Show the segments, receivers and damage of the channel in DIR. Exit code 1 when there is damage."""
    found = overview(_channel(directory))
    if app.json:
        app.out.document(_body(found))
    else:
        _show(app, found)
    return Exit.FAILED if found.survey.damage else Exit.OK


def _body(found: Overview) -> dict[str, Any]:
    survey = found.survey
    return {
        "begin": survey.begin,
        "end": found.end,
        "disk_bytes": sum(segment.file_bytes for segment in survey.segments),
        "writer_pid": found.writer,
        "channel_id": survey.channel_id.hex() if survey.channel_id else None,
        "dropped_before": found.dropped,
        "torn_bytes": survey.torn.bytes if survey.torn else 0,
        "segments": [_segment_body(segment) for segment in survey.segments],
        "receivers": [
            {
                "name": name,
                "offset": position.offset if position else None,
                "lag_bytes": max(found.end - position.offset, 0) if position else None,
                "temporary": bool(position and position.temporary),
                "damaged_slots": position.damaged_slots if position else 2,
            }
            for name, position in found.positions.items()
        ],
        "damage": [lost._asdict() for lost in survey.damage],
    }


def _segment_body(segment: Segment) -> dict[str, Any]:
    return {
        "id": segment.segment_id,
        "begin": segment.begin,
        "end": segment.end,
        "compressed": segment.packed,
        "file_bytes": segment.file_bytes,
        "synced": segment.synced,
    }


def _show(app: App, found: Overview) -> None:
    survey = found.survey
    app.out.fields(
        [
            ("offsets", f"{survey.begin} to {found.end}"),
            ("on disk", size(sum(segment.file_bytes for segment in survey.segments))),
            ("writer", f"process {found.writer}" if found.writer else "none"),
            ("dropped", f"everything before {found.dropped}" if found.dropped else "nothing"),
        ]
    )
    columns = [
        Column("segment", right=True),
        Column("begin", right=True),
        Column("end", right=True),
        Column("file", right=True),
        Column("kind"),
        Column("sends", rank=1),
    ]
    rows = [
        (
            str(segment.segment_id),
            str(segment.begin),
            str(segment.end),
            size(segment.file_bytes),
            "compressed" if segment.packed else "plain",
            "synced" if segment.synced else "not synced",
        )
        for segment in survey.segments
    ]
    app.out.table(columns, rows, empty="no segments")
    if found.positions:
        receivers = [
            (
                name,
                str(position.offset),
                size(max(found.end - position.offset, 0)),
                "temporary" if position.temporary else "",
            )
            if position
            else (name, "damaged", "-", "reset_receiver() says where it goes on")
            for name, position in found.positions.items()
        ]
        names = [
            Column("receiver", shrink=True),
            Column("offset", right=True),
            Column("behind", right=True),
            Column(""),
        ]
        app.out.table(names, receivers)
    for lost in survey.damage:
        app.out.text(f"damage: offsets {lost.begin} to {lost.end}: {lost.reason}")


_FROM = click.option("--from", "begin", type=click.IntRange(min=0), metavar="OFFSET", help="Begin behind this offset.")


@filechannel.verb(
    "dump",
    online=False,
    examples="""
    topicctl filechannel dump /var/spool/app
    topicctl filechannel dump /var/spool/app --from 4096 --limit 10 --json
    """,
)
@_DIRECTORY
@_FROM
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N messages.")
@pass_app
def dump(app: App, directory: Path, begin: int | None, limit: int | None) -> int:
    """Print the messages in DIR with the offset behind each. Exit code 1 when some cannot be read."""
    found = overview(_channel(directory))
    first = found.survey.begin if begin is None else max(begin, found.survey.begin)
    if begin is not None:
        check_offset(directory.absolute(), first, found.end)
    damaged = False
    for line in islice(_lines(directory, first, found.end), limit):
        damaged = damaged or "damage" in line
        _print(app, line)
    return Exit.FAILED if damaged else Exit.OK


def _lines(directory: Path, begin: int, end: int) -> Iterator[dict[str, Any]]:
    for item in walk(directory.absolute(), begin, end):
        yield _line(item)


def _line(item: tuple[int, bytes] | Damaged | Gap) -> dict[str, Any]:
    if isinstance(item, Gap):
        return {"gap": {"begin": item.begin, "end": item.end}}
    if isinstance(item, Damaged):
        return {"damage": {"begin": item.begin, "end": item.end, "reason": item.reason}}
    return {"offset": item[0], "data": item[1]}


def _print(app: App, line: dict[str, Any]) -> None:
    if app.json:
        app.out.lines([{**line, "data": json_bytes(line["data"])} if "data" in line else line])
    elif "data" in line:
        app.out.raw(f"{line['offset']:>10}  {printable(line['data'])}\n".encode("utf-8", "replace"))
    else:
        ((kind, span),) = line.items()
        reason = f": {span['reason']}" if "reason" in span else ""
        click.echo(f"{kind}: offsets {span['begin']} to {span['end']}{reason}", err=True)


@filechannel.verb("verify", online=False, examples="topicctl filechannel verify /var/spool/app")
@_DIRECTORY
@pass_app
def verify(app: App, directory: Path) -> int:
    """Read every message in DIR and check it. Exit code 1 when damage was found."""
    found = overview(_channel(directory))
    messages = 0
    lost: list[dict[str, Any]] = []
    last = found.survey.begin
    with Bar("verify", found.end - last, "bytes") as bar:
        for item in walk(directory.absolute(), last, found.end):
            end = item[0] if isinstance(item, tuple) else item.end
            if isinstance(item, Damaged):
                lost.append({"begin": item.begin, "end": item.end, "reason": item.reason})
            messages += isinstance(item, tuple)
            bar.advance(end - last, counted(messages, "message"))
            last = end
    lost += _unseen(found, lost)
    slots = {name: position.damaged_slots if position else 2 for name, position in found.positions.items()}
    broken = {name: number for name, number in slots.items() if number}
    if app.json:
        app.out.document({"messages": messages, "damage": lost, "damaged_slots": broken})
    else:
        for span in lost:
            app.out.text(f"damage: offsets {span['begin']} to {span['end']}: {span['reason']}")
        for name, number in broken.items():
            app.out.text(f"receiver {name}: {number} of 2 slots are damaged")
        app.out.text(f"{counted(messages, 'message')}, {counted(len(lost), 'damaged range')}")
    return Exit.FAILED if lost or broken else Exit.OK


def _unseen(found: Overview, lost: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Damage that reading from the oldest message on does not meet."""
    spans = [span for span in found.survey.damage if not any(_touch(span, other) for other in lost)]
    first = found.survey.begin
    behind = [position.offset for position in found.positions.values() if position is not None]
    if behind and min(behind) < first and found.dropped < first:
        spans.append(Damage(min(behind), first, "no segment has them, and a receiver has not acknowledged them"))
    return [span._asdict() for span in spans]


def _touch(span: Damage, other: dict[str, Any]) -> bool:
    return bool(span.begin < other["end"] and other["begin"] < span.end)


@filechannel.verb(
    "tail",
    online=False,
    examples="""
    topicctl filechannel tail /var/spool/app
    topicctl filechannel tail /var/spool/app --all --json
    """,
)
@_DIRECTORY
@click.option("--all", "everything", is_flag=True, help="Begin with the oldest message that is there.")
@click.option("--idle", type=click.FloatRange(min=0), metavar="SECONDS", help="Stop when nothing came for so long.")
@pass_app
def tail(app: App, directory: Path, everything: bool, idle: float | None) -> int:
    """Print messages of DIR as they are sent, until Ctrl-C. Takes nothing from its receivers.

    Exit code 1 when some could not be read."""
    damaged = False
    with FileChannel(_channel(directory), writer=False) as channel:
        name = f"topicctl-tail-{os.getpid()}"
        start: Any = "oldest" if everything else "newest"
        with channel.receiver(name, auto_ack=True, temporary=True, start=start) as receiver:
            while True:
                try:
                    message = receiver.recv(idle)
                except NotEnough:
                    return Exit.FAILED if damaged else Exit.OK
                except Damaged as damage:
                    damaged = True
                    _print(app, _line(damage))
                    receiver.skip_damage()
                    continue
                _print(app, _line(message if isinstance(message, Gap) else (receiver.offset, message)))


@filechannel.verb("compact", online=False, examples="topicctl filechannel compact /var/spool/app")
@_DIRECTORY
@pass_app
def compact(app: App, directory: Path) -> None:
    """Remove segments in DIR that every receiver has left and compress the others, the last one excepted.

    Refused while a process writes to the channel: that one does it by itself, with compress=True.
    """
    found = overview(_channel(directory))
    before = sum(segment.file_bytes for segment in found.survey.segments)
    # As it was written before: otherwise a new segment would begin.
    synced = bool(found.survey.segments) and found.survey.segments[-1].synced
    with FileChannel(directory, durability="fsync" if synced else "os") as channel:
        plain = [segment for segment in channel.sealed() if not segment.packed]
        with Bar("compact", sum(segment.end - segment.begin for segment in plain), "bytes") as bar:
            removed, packed = channel.compress_all(bar.advance)
        after = channel.stats().disk_bytes
    app.out.either(
        {"removed": removed, "compressed": packed, "bytes_before": before, "bytes_after": after},
        f"{counted(removed, 'segment')} removed, {count(packed)} compressed: "
        f"{size(before)} before, {size(after)} after",
    )
