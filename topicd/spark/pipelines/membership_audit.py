"""Who is in which channel, by the files and by the daemon. Promise: every metadata.bin is read and compared with what
the daemon answers, and every persistent channel that the daemon serves has one; a difference is told only if it is
still there when both are looked at again a little later; nothing is written.

Executors must see the data directory under the same path, be allowed to read it, and reach the daemon.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from topicd.channel import channel_hash
from topicd.cli.offline.data_dir import open_offline
from topicd.client.blocking.client import Client
from topicd.client.core.channels import Members
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
# Between looks at a channel whose file and daemon differ: somebody may be joining, and a save waits for its syncs.
PAUSES_S = (0.05, 0.2, 0.8)
MISSING = "there is no metadata.bin in it"
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
    live_owner: str | None = None
    problem: str = ""
    stored: bool = True

    @property
    def doubtful(self) -> bool:
        """May it be another way in a moment? A file that cannot be read stays so."""
        return self.verdict != "same" and (self.problem == MISSING or bool(self.channel))

    @property
    def verdict(self) -> str:
        if self.problem:
            return "corrupt"
        if not self.stored:
            return "not stored"
        if self.live is None:
            return "not served"
        return "same" if (self.live, self.live_owner) == (self.members, self.owner) else "differs"


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    offline = open_offline(options.data_dir)
    directories = [str(offline.data.channels / name) for name in sorted(offline.fs.listdir(offline.data.channels))]
    report = Report("membership-audit", COLUMNS, dry_run=options.dry_run)
    if options.dry_run:
        report.summary = f"would read {counted(len(directories), 'channel')} in {offline.data.channels}"
        return report
    client = place.client(options.place)
    if spark.is_needless(len(directories), 0):
        found = run_here("membership-audit", directories, lambda one: look_once(client, Path(one)), progress)
    else:
        found = spark.run_tasks("membership-audit", lambda context: _look(context, options, directories), progress)
    by_directory = {one.directory: one for one in found}
    whole = {one.directory for one in found if one.problem != MISSING}
    by_directory.update((one.directory, one) for one in unfiled(client, offline.data.channels, whole))
    return told(report, again(client, list(by_directory.values())))


def unfiled(client: Client, root: Path, known: set[str]) -> list[Found]:
    """Persistent channels that the daemon serves and whose file was not there."""
    served = ((root / channel_hash(row.channel), row.channel) for row in client.channels.list() if row.persist)
    return [look_once(client, directory, handler) for directory, handler in served if str(directory) not in known]


def _look(context: SparkContext, options: Options, directories: list[str]) -> list[Found]:
    where = options.place
    slices = max(1, -(-len(directories) // CHANNELS_PER_TASK))
    found: list[Found] = (
        context.parallelize(directories, slices)
        .map(lambda one: look_once(connection.client(where), Path(one)))
        .collect()
    )
    return found


def again(client: Client, found: list[Found]) -> list[Found]:
    """What is as it was at the second, third and fourth look: a change that was saved may not be applied yet."""
    for pause_s in PAUSES_S:
        doubtful = [at for at, one in enumerate(found) if one.doubtful]
        if not doubtful:
            break
        time.sleep(pause_s)
        for at in doubtful:
            found[at] = look_once(client, Path(found[at].directory), found[at].channel)
    return [one for one in found if one.channel or one.problem]


def look_once(client: Client, directory: Path, handler: str = "") -> Found:
    """handler: of a channel that the daemon serves, or did a moment ago. One that is gone from both has no name."""
    where = str(directory)
    try:
        state = channel_file.load(RealFs(), directory / METADATA_FILE)
    except FileNotFoundError:
        live = _live(client, handler) if handler else None
        if live is not None:
            return Found(where, handler, live.owner, "", (), tuple(live.users), live.owner, stored=False)
        return Found(where, problem=MISSING if directory.exists() else "")
    except (FormatError, OSError) as exc:
        return Found(where, problem=str(exc))
    live = _live(client, state.handler)
    answer = (None, None) if live is None else (tuple(live.users), live.owner)
    return Found(where, state.handler, state.owner, state.type, state.members, *answer)


def _live(client: Client, handler: str) -> Members | None:
    try:
        return client.channels.members(handler)
    except (ChannelNotFound, StorageCorrupt):
        return None


def told(report: Report, found: list[Found]) -> Report:
    for one in found:
        live = None if one.live is None else len(one.live)
        row = {"channel": one.channel or one.directory, "owner": one.owner, "type": one.type}
        report.rows.append({**row, "members": len(one.members), "live": live, "verdict": one.verdict})
        if one.problem:
            report.notes.append(f"{one.directory}: {one.problem}")
        elif one.verdict == "differs":
            report.notes.append(f"{one.channel}: {_difference(one)}")
        elif not one.stored:
            report.notes.append(f"{one.channel}: {one.directory} is missing, the next start will not know the channel")
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
    if one.owner != one.live_owner:
        parts.append(f"owner {one.owner or 'nobody'} in the file, {one.live_owner or 'nobody'} in the daemon")
    for what, users in (("only in the file", ours - theirs), ("only in the daemon", theirs - ours)):
        if users:
            more = f" and {len(users) - SHOWN} more" if len(users) > SHOWN else ""
            parts.append(f"{what}: {', '.join(sorted(users)[:SHOWN])}{more}")
    return "; ".join(parts)
