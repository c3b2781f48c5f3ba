"""`topicctl wal dump`: what lies in the WAL files, group by group and frame by frame. Only reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import click

from topicd._native.interface import Run
from topicd.cli.app import App, pass_app
from topicd.cli.exits import Exit
from topicd.cli.groups import Group
from topicd.cli.offline.data_dir import (
    Names,
    Offline,
    open_offline,
    read_names,
    scan_past,
)
from topicd.cli.options import data_dir_option
from topicd.cli.show.human import local_time, printable, printable_text
from topicd.cli.show.render import dumps, json_bytes
from topicd.errors import FormatError
from topicd.frames import FrameType, control_body, core, parse_direct, parse_header, parse_producer
from topicd.shards.storage.walfile import Group as WalGroup
from topicd.shards.storage.walfile import LogChunk, LogReader, WalDamage, lsn_at
from topicd.words import counted

wal = Group("wal", help="Look into WAL files.", no_args_is_help=True)

TYPES = click.Choice([kind.name.lower() for kind in FrameType])
EXAMPLES = """
topicctl wal dump
topicctl wal dump --shard 0 --groups
topicctl wal dump --topic orders --type append --json | jq -r .data
topicctl wal dump --data-dir /backup/data --limit 100
"""


@wal.verb("dump", online=False, examples=EXAMPLES, apart=("--groups --topic", "--groups --type"))
@data_dir_option
@click.option("--shard", type=click.IntRange(min=0), metavar="N", help="Only this WAL shard.")
@click.option("--topic", metavar="TOPIC", help="Only frames of this topic (name or id).")
@click.option("--type", "kind", type=TYPES, help="Only frames of this type.")
@click.option("--groups", is_flag=True, help="Print groups instead of frames.")
@click.option("--from-lsn", type=click.IntRange(min=0), default=0, metavar="LSN", help="Begin there.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Stop after N lines.")
@pass_app
def dump(
    app: App,
    data_dir: str | None,
    shard: int | None,
    topic: str | None,
    kind: str | None,
    groups: bool,
    from_lsn: int,
    limit: int | None,
) -> int:
    """Print the frames in the WAL files. Exit code 1 when a part of them cannot be read."""
    offline = open_offline(data_dir)
    names = read_names(offline)
    only = names.find(topic) if topic is not None else None
    dumper = Dumper(offline, names)
    found = False
    lines: Iterator[dict[str, Any]] = (
        line
        for line in (dumper.groups(shard) if groups else dumper.frames(shard))
        if line["lsn"] >= from_lsn
        and (only is None or line.get("topic_id") == only)
        and (kind is None or line.get("type") == kind)
    )
    for line in islice(lines, limit):
        found = True
        if app.json:
            app.out.lines([line])
        else:
            app.out.raw((group_text(line) if groups else frame_text(line)).encode("utf-8", "replace"))
    if not found and not app.json:
        app.out.text("no such frames" if topic is not None or kind is not None or from_lsn else "no frames")
    for damage in dumper.damage:
        click.echo(f"damage: {damage}", err=True)
    return Exit.FAILED if dumper.damage else Exit.OK


class Dumper:
    """Reads the shards one after the other; `damage` is filled on the way."""

    def __init__(self, offline: Offline, names: Names) -> None:
        self._offline = offline
        self._names = names
        self._seed = offline.format.wal_seed
        self.damage: list[WalDamage | str] = []

    def _groups(self, only: int | None) -> Iterator[tuple[int, LogChunk, WalGroup]]:
        for shard in self._offline.wal_shards():
            if only is not None and shard != only:
                continue
            reader = LogReader(self._offline.fs, self._offline.data.wal_shard(shard), self._seed)
            for chunk in reader.chunks():
                for group in chunk.groups:
                    yield shard, chunk, group
            self.damage += reader.end.damage

    def groups(self, only: int | None) -> Iterator[dict[str, Any]]:
        for shard, chunk, group in self._groups(only):
            runs, bad = scan_past(chunk.view, group)
            yield {
                "shard": shard,
                "lsn": group.lsn,
                "file": chunk.path.name,
                "run": group.run,
                "bytes": group.end - group.start,
                "synced_lsn": group.synced_lsn,
                "frames": sum(run.count for run in runs),
                "problem": bad[0].problem if bad else "",
            }

    def frames(self, only: int | None) -> Iterator[dict[str, Any]]:
        for shard, chunk, group in self._groups(only):
            runs, bad = scan_past(chunk.view, group)
            for run in runs:
                for line in self._run(chunk.view, run, lsn_at(group, 0)):
                    yield {"shard": shard, "run": group.run, **line}
            for start, _, problem in bad:
                self.damage.append(f"{chunk.path}: bad frame at LSN {lsn_at(group, start)} ({problem})")

    def _run(self, view: memoryview, run: Run, lsn_of_0: int) -> Iterator[dict[str, Any]]:
        offsets = memoryview(core.frame_offsets(view, run.start, run.end)).cast("I").tolist()
        records = core.decode_frames(view, run.start, run.end) if run.type == FrameType.APPEND else []
        for number, offset in enumerate(offsets):
            start = run.start + offset
            header = parse_header(view, start)
            line: dict[str, Any] = {
                "lsn": lsn_of_0 + start,
                "type": type_name(header.type),
                "topic_id": header.topic_id,
                "topic": self._names.by_id.get(header.topic_id),
                "seq": header.seq,
                "ts": header.ts,
                "bytes": header.size,
            }
            if records:
                _, _, node, tag, meta, data = records[number]
                yield {**line, "tag": tag, "node": node, "meta": unpacked(meta), "data": json_bytes(data)}
            else:
                yield {**line, "body": _body(view, header.type, start, start + header.size)}


def type_name(number: int) -> str:
    try:
        return FrameType(number).name.lower()
    except ValueError:
        return f"unknown-{number}"


def unpacked(meta: bytes | None) -> Any:
    import msgpack

    return {} if meta is None else msgpack.unpackb(meta, strict_map_key=False)


def _body(view: memoryview, kind: int, start: int, end: int) -> Any:
    try:
        if kind == FrameType.PRODUCER:
            keys = ("producer_id", "batch_no", "first_seq", "count")
            return dict(zip(keys, parse_producer(view, start, end), strict=True))
        if kind == FrameType.DIRECT:
            return parse_direct(view, start, end)._asdict()
        return control_body(view, start, end)
    except FormatError as exc:
        return {"unreadable": exc.message}


def frame_text(line: dict[str, Any]) -> str:
    if "body" in line:
        what = printable_text(dumps(line["body"]))
    else:
        data = line["data"]
        what = printable(data.encode()) if isinstance(data, str) else f"base64 {data['base64']}"
        if line["tag"] is not None:
            what = f"[{printable(line['tag'])}]  {what}"
    topic = line["topic"] or line["topic_id"]
    return (
        f"{line['shard']:02d}  {line['lsn']:>12}  {line['type']:<12}  {topic}#{line['seq']}  "
        f"{local_time(line['ts'])}  {what}\n"
    )


def group_text(line: dict[str, Any]) -> str:
    problem = f"  {line['problem']}" if line["problem"] else ""
    return (
        f"{line['shard']:02d}  {line['lsn']:>12}  {line['file']}  run {line['run']}  "
        f"{counted(line['bytes'], 'byte'):>15}  {counted(line['frames'], 'frame'):>13}  "
        f"synced {line['synced_lsn']}{problem}\n"
    )
