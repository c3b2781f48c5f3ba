"""`topicctl segment`: what lies in a topic's segment files. Only reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from topicd.cli.app import App, pass_app
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group
from topicd.cli.offline.check import Checked, check_topic
from topicd.cli.offline.data_dir import Offline, open_offline, read_names
from topicd.cli.offline.segment_check import DAMAGE, SegmentReport
from topicd.cli.offline.wal import unpacked
from topicd.cli.options import data_dir_option
from topicd.cli.show.human import count, local_time, printable, size
from topicd.cli.show.progress import Bar
from topicd.cli.show.render import Column, json_bytes
from topicd.disk.cold import ColdMissing
from topicd.errors import FormatError
from topicd.frames import core
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.deletions import parse_marks
from topicd.shards.storage.segment.names import COLD, DATA, DEL, topic_id_of
from topicd.shards.storage.segment.places import list_segments, resolve
from topicd.shards.storage.segment.reindex import reindex
from topicd.words import counted

segment = Group("segment", help="Look into segment files and verify them.", no_args_is_help=True)


@segment.verb(
    "dump",
    online=False,
    examples="""
    topicctl segment dump orders
    topicctl segment dump orders --from 5000 --limit 10
    topicctl segment dump 0000000000000401 --deleted --json
    """,
)
@data_dir_option
@click.argument("topic")
@click.option(
    "--from", "from_seq", type=click.IntRange(min=0), default=0, metavar="SEQ", help="Records above this seq."
)
@click.option("--deleted", is_flag=True, help="Also records that are marked deleted.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@pass_app
def dump(app: App, data_dir: str | None, topic: str, from_seq: int, deleted: bool, limit: int | None) -> int:
    """Print the records in the segments of TOPIC (a name or an id). Records still in the WAL are not among them.

    Exit code 1 when some cannot be read.
    """
    offline = open_offline(data_dir)
    directory = offline.data.topic(read_names(offline).find(topic))
    damage: list[str] = []
    lines = stored_records(offline, directory, from_seq, deleted, damage)
    for line in islice(lines, limit):
        if app.json:
            app.out.lines([line])
        else:
            app.out.raw(_text(line).encode("utf-8", "replace"))
    for text in damage:
        click.echo(f"damage: {text}", err=True)
    return Exit.FAILED if damage else Exit.OK


def stored_records(
    offline: Offline, directory: Path, from_seq: int, deleted: bool, damage: list[str]
) -> Iterator[dict[str, Any]]:
    """Every frame that can be believed, in order of seq."""
    for first, parts in list_segments(offline.fs, directory).items():
        place = resolve(directory, first)
        try:
            if place.lies(offline.fs) is None and COLD in parts:
                continue  # it is being removed
            content = place.load(offline.fs, DATA)
        except FileNotFoundError:
            damage.append(f"{place.file(DATA)} is missing")
            continue
        except (ColdMissing, FormatError) as error:
            damage.append(f"{place.file(COLD)}: {error}")
            continue
        dead = _dead(offline, directory, first) if DEL in parts else Ranges()
        damage += [f"{resolve(directory, first).file(DATA)}: {part}" for part in content.bad]
        view = content.view
        rebuilt = reindex(view, first, topic_id_of(directory), None)
        for a, b in rebuilt.damaged:
            damage.append(f"{resolve(directory, first).file(DATA)}: records {a} to {b} cannot be read")
        bad = Ranges(rebuilt.damaged)
        for seq, ts, node, tag, meta, data in _decoded(view, rebuilt.entries, first, bad):
            if seq <= from_seq or (seq in dead and not deleted):
                continue
            line = {"seq": seq, "ts": ts, "tag": tag, "node": node, "meta": unpacked(meta), "data": json_bytes(data)}
            yield {**line, "segment": first, "deleted": seq in dead}


def _decoded(view: memoryview, entries: bytes, first: int, bad: Ranges) -> Iterator[Any]:
    from topicd.shards.storage.segment.index import entry_at, entry_count

    for a, b in bad.missing(first, first + entry_count(entries) - 1):
        start = entry_at(entries, a - first).offset
        last = entry_at(entries, b - first)
        yield from core.decode_frames(view, start, last.offset + last.length)


def _dead(offline: Offline, directory: Path, first: int) -> Ranges:
    return parse_marks(bytes(resolve(directory, first).load(offline.fs, DEL).view), first).ranges


def _text(line: dict[str, Any]) -> str:
    tag = f"[{printable(line['tag'])}]  " if line["tag"] is not None else ""
    data = line["data"]
    what = printable(data.encode()) if isinstance(data, str) else f"base64 {data['base64']}"
    state = "deleted  " if line["deleted"] else ""
    return f"{line['seq']:>6}  {local_time(line['ts'])}  {state}{tag}{what}\n"


@segment.verb(
    "verify", online=False, examples="topicctl segment verify\ntopicctl segment verify orders payments --json"
)
@data_dir_option
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@pass_app
def verify(app: App, data_dir: str | None, topics: tuple[str, ...]) -> int:
    """Read every frame, index, seal and mark of the segments of TOPICs, of all topics if none is named.

    Exit code 1 when damage was found. While the daemon runs, its newest segments may look unfinished.
    """
    offline = open_offline(data_dir)
    checked = Checked(names=read_names(offline))
    ids = [checked.names.find(topic) for topic in topics] or offline.topic_ids()
    reports: list[tuple[str, SegmentReport]] = []
    with Bar("verify", len(ids), "topics") as bar:
        for topic_id in ids:
            if topics and not offline.fs.exists(offline.data.topic(topic_id)):
                raise CliError(f"topic {checked.names.show(topic_id)} has no segments", Exit.NOT_FOUND)
            reports += [(checked.names.show(topic_id), r) for r in check_topic(offline, topic_id, checked)]
            bar.advance(1)
    if app.json:
        app.out.document([_report_body(topic, report) for topic, report in reports])
    else:
        app.out.table(COLUMNS, [_report_row(topic, report) for topic, report in reports], empty="no segments")
        if reports:
            app.out.text(_total(reports))
        for finding in checked.findings:
            app.out.text(f"{finding.severity}: {finding}")
    return Exit.FAILED if checked.damaged else Exit.OK


COLUMNS = [
    Column("topic", shrink=True),
    Column("first seq", right=True),
    Column("seqs", right=True),
    Column("bytes", right=True),
    Column("sealed", rank=1),
    Column("deleted", right=True, rank=2),
    Column("tags", right=True, rank=3),
    Column("result"),
]


def _total(reports: list[tuple[str, SegmentReport]]) -> str:
    segments = counted(len(reports), "segment")
    seqs, data_bytes = (sum(getattr(report, name) for _, report in reports) for name in ("count", "data_bytes"))
    damaged = sum(report.damaged for _, report in reports)
    result = f"{count(damaged)} damaged" if damaged else "all ok"
    return f"{segments}, {counted(seqs, 'seq')}, {size(data_bytes)}: {result}"


def _report_row(topic: str, report: SegmentReport) -> list[str]:
    return [
        topic,
        str(report.first_seq),
        count(report.count),
        size(report.data_bytes),
        "yes" if report.sealed else "no",
        count(report.deleted),
        count(report.tags),
        "damaged" if report.damaged else "ok",
    ]


def _report_body(topic: str, report: SegmentReport) -> dict[str, Any]:
    return {
        "topic": topic,
        "first_seq": report.first_seq,
        "count": report.count,
        "data_bytes": report.data_bytes,
        "sealed": report.sealed,
        "deleted": report.deleted,
        "tags": report.tags,
        "damaged": report.damaged,
        "findings": [
            {
                "severity": f.severity,
                "path": str(f.path),
                "what": f.what,
                "first_seq": f.first_seq,
                "last_seq": f.last_seq,
            }
            for f in report.findings
            if f.severity == DAMAGE or f.what
        ],
    }
