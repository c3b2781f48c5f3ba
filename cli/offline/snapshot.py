"""`topicctl snapshot`: the metadata snapshots of a data directory. Only reads."""

from __future__ import annotations

from typing import Any

import click

from topicd import paths
from topicd.cli.app import App, pass_app
from topicd.cli.exits import CliError, Exit
from topicd.cli.groups import Group
from topicd.cli.offline.data_dir import Offline, open_offline
from topicd.cli.options import data_dir_option
from topicd.cli.show.human import count, size
from topicd.cli.show.render import Column
from topicd.errors import FormatError
from topicd.shards.storage.snapshot import SnapshotStore, load_snapshot

snapshot = Group("snapshot", help="Look at metadata snapshots.", no_args_is_help=True)


@snapshot.verb("list", online=False, examples="topicctl snapshot list\ntopicctl snapshot list --data-dir /backup/data")
@data_dir_option
@pass_app
def list_snapshots(app: App, data_dir: str | None) -> int:
    """List the snapshots of every shard. Exit code 1 when one cannot be read."""
    offline = open_offline(data_dir)
    rows = [describe(offline, shard, number) for shard, number in _all(offline)]
    if app.json:
        app.out.document(rows)
    elif not rows:
        app.out.text("no snapshots")
    else:
        columns = [
            Column("shard"),
            Column("number", right=True),
            Column("run", right=True),
            Column("shards", right=True, rank=2),
            Column("topics", right=True),
            Column("bytes", right=True, rank=1),
            Column("result", shrink=True),
        ]
        cells = [
            [
                paths.shard_dir_name(row["shard"]),
                str(row["number"]),
                str(row["run"] or "-"),
                str(row["shards"] or "-"),
                "-" if row["topics"] is None else count(row["topics"]),
                size(row["bytes"]),
                row["problem"] or "ok",
            ]
            for row in rows
        ]
        app.out.table(columns, cells, empty="no snapshots")
    return Exit.FAILED if any(row["problem"] for row in rows) else Exit.OK


@snapshot.verb(
    "show",
    online=False,
    examples="""
    topicctl snapshot show --shard 0
    topicctl snapshot show --shard 0 --number 17 --json | jq '.topics[].name'
    """,
)
@data_dir_option
@click.option("--shard", type=click.IntRange(min=0), required=True, metavar="N", help="Which delivery shard's.")
@click.option("--number", type=click.IntRange(min=0), metavar="N", help="Which one [default: the newest].")
@pass_app
def show(app: App, data_dir: str | None, shard: int, number: int | None) -> None:
    """Print the topics in a snapshot."""
    offline = open_offline(data_dir)
    numbers = SnapshotStore(offline.fs, offline.data.snapshots(shard)).numbers()
    if not numbers or (number is not None and number not in numbers):
        there = f"there are {', '.join(map(str, numbers))}" if numbers else "there is none"
        raise CliError(
            f"shard {shard} has no snapshot {'' if number is None else number}".rstrip(), Exit.NOT_FOUND, there
        )
    body = _load(offline, shard, numbers[-1] if number is None else number)
    if app.json:
        app.out.document(body)
        return
    app.out.text(f"run {body['run']}, shard {body['shard']} of {body['shards']}")
    columns = [
        Column("topic", shrink=True),
        Column("id", right=True),
        Column("earliest", right=True),
        Column("head", right=True),
        Column("evict floor", right=True, rank=2),
        Column("consumers", right=True, rank=1),
        Column("durability", rank=3),
    ]
    rows = [
        [
            str(entry["name"]),
            str(entry["id"]),
            str(entry["earliest"]),
            str(entry["head"]),
            str(entry["evict_floor"]),
            count(len(entry["consumers"])),
            str(entry["config"].get("durability", "")),
        ]
        for entry in sorted(body["topics"], key=lambda entry: str(entry["name"]))
    ]
    app.out.table(columns, rows, empty="no topics")


def _all(offline: Offline) -> list[tuple[int, int]]:
    return [
        (shard, number)
        for shard in offline.snapshot_shards()
        for number in SnapshotStore(offline.fs, offline.data.snapshots(shard)).numbers()
    ]


def describe(offline: Offline, shard: int, number: int) -> dict[str, Any]:
    path = offline.data.snapshots(shard) / paths.snapshot_name(number)
    row: dict[str, Any] = {"shard": shard, "number": number, "run": None, "shards": None, "topics": None}
    row["bytes"], row["problem"] = offline.fs.size(path), None
    try:
        body = _load(offline, shard, number)
    except FormatError as exc:
        return {**row, "problem": exc.message}
    except OSError as exc:
        return {**row, "problem": f"cannot be read: {exc.strerror}"}
    return {**row, "run": body["run"], "shards": body["shards"], "topics": len(body["topics"])}


def _load(offline: Offline, shard: int, number: int) -> dict[str, Any]:
    path = offline.data.snapshots(shard) / paths.snapshot_name(number)
    body = load_snapshot(offline.fs, path)
    if not isinstance(body, dict) or not {"run", "shard", "shards", "topics"} <= body.keys():
        raise FormatError(f"{path}: is no snapshot of a delivery shard")
    return body
