"""Who is in which channel, by the files and by the daemon. Promise: every metadata.bin is read and compared with what
the daemon answers; a difference is told only if it is still there when both are looked at again; nothing is written.

Executors must see the data directory under the same path, be allowed to read it, and reach the daemon.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from topicd.cli.offline.data_dir import open_offline
from topicd.client.blocking.client import Client
from topicd.disk.fs import RealFs
from topicd.errors import ChannelNotFound, FormatError, StorageCorrupt
from topicd.paths import METADATA_FILE
from topicd.shards.storage import channel_file
from topicd.spark import connection
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines import place
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark, run_here
from topicd.words import counted

if TYPE_CHECKING:
    from pyspark import SparkContext

COLUMNS = ("channel", "owner", "type", "members", "live", "verdict")
LOOKS = 3  # at a channel whose file and daemon differ: somebody may be joining
SHOWN = 10  # users of a difference
CHANNELS_PER_TASK = 500


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    data_dir: str | None = None  # None: as the daemon's settings say
    dry_run: bool = False


class Found(NamedTuple):
    """What was found in one directory."""

    directory: str
    channel: str = ""
    owner: str | None = None
    type: str = ""
    members: tuple[str, ...] = ()
    live: tuple[str, ...] | None = None  # None: the daemon does not serve it
    problem: str = ""

    @property
    def verdict(self) -> str:
        if self.problem:
            return "corrupt"
        if self.live is None:
            return "not served"
        return "same" if self.live == self.members else "differs"


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    offline = open_offline(options.data_dir)
    directories = [str(offline.data.channels / name) for name in sorted(offline.fs.listdir(offline.data.channels))]
    report = Report("membership-audit", COLUMNS, dry_run=options.dry_run)
    if options.dry_run:
        report.summary = f"would read {counted(len(directories), 'channel')} in {offline.data.channels}"
        return report
    client = place.client(options.place)
    if spark.is_needless(len(directories), 0):
        found = run_here("membership-audit", directories, lambda one: look(client, Path(one)), progress)
    else:
        found = spark.run_tasks("membership-audit", lambda context: _look(context, options, directories), progress)
    return told(report, found)


def _look(context: SparkContext, options: Options, directories: list[str]) -> list[Found]:
    where = options.place
    slices = max(1, -(-len(directories) // CHANNELS_PER_TASK))
    found: list[Found] = (
        context.parallelize(directories, slices).map(lambda one: look(connection.client(where), Path(one))).collect()
    )
    return found


def look(client: Client, directory: Path) -> Found:
    """Again, if file and daemon differ: a change that was saved may not be applied yet."""
    for _ in range(LOOKS - 1):
        found = look_once(client, directory)
        if found.verdict == "same":
            return found
    return look_once(client, directory)


def look_once(client: Client, directory: Path) -> Found:
    try:
        state = channel_file.load(RealFs(), directory / METADATA_FILE)
    except FileNotFoundError:
        return Found(str(directory), problem="there is no metadata.bin in it")
    except (FormatError, OSError) as exc:
        return Found(str(directory), problem=str(exc))
    try:
        live: tuple[str, ...] | None = tuple(client.channels.members(state.handler).users)
    except (ChannelNotFound, StorageCorrupt):
        live = None
    return Found(str(directory), state.handler, state.owner, state.type, state.members, live)


def told(report: Report, found: list[Found]) -> Report:
    for one in found:
        live = None if one.live is None else len(one.live)
        row = {"channel": one.channel or one.directory, "owner": one.owner, "type": one.type}
        report.rows.append({**row, "members": len(one.members), "live": live, "verdict": one.verdict})
        if one.problem:
            report.notes.append(f"{one.directory}: {one.problem}")
        elif one.verdict == "differs":
            report.notes.append(f"{one.channel}: {_difference(one)}")
    bad = [one for one in found if one.verdict != "same"]
    users = {user for one in found for user in one.members}
    report.failed = bool(bad)
    report.totals = {"channels": len(found), "users": len(users), "different": len(bad)}
    report.summary = f"{counted(len(found), 'channel')} with {counted(len(users), 'user')}: " + (
        f"{len(bad):,} are not what the daemon answers" if bad else "files and daemon agree"
    )
    return report


def _difference(one: Found) -> str:
    ours, theirs = set(one.members), set(one.live or ())
    parts = []
    for what, users in (("only in the file", ours - theirs), ("only in the daemon", theirs - ours)):
        if users:
            more = f" and {len(users) - SHOWN} more" if len(users) > SHOWN else ""
            parts.append(f"{what}: {', '.join(sorted(users)[:SHOWN])}{more}")
    return "; ".join(parts)
