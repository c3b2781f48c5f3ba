"""Topics to Parquet, incrementally. Promise: what the manifest lists is in the archive, once and byte for byte; a run
that dies changes nothing; nothing is deleted that was not read back and compared with the live topic (`verify`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from topicd.client.blocking.client import Client
from topicd.client.core.answers import TopicState
from topicd.errors import Conflict
from topicd.spark import connection
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines import place
from topicd.spark.pipelines.manifest import KIND, VERSION, ArchivedTopic, Manifest, Part
from topicd.spark.pipelines.parts import PartWriter, Staged
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark, run_here
from topicd.spark.pipelines.store import PART_PREFIX, PART_SUFFIX, Move, Store
from topicd.spark.pipelines.verify import Compared, Tile, check_counts, tiles_to_compare, verify_tile
from topicd.words import counted

if TYPE_CHECKING:
    from pyspark import SparkContext

TASK_MIN, TASK_MAX = 50_000, 1_000_000  # records of one task
COLUMNS = ("topic", "added", "first_seq", "last_seq", "absent", "files", "total", "bytes", "deleted")


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    topics: tuple[str, ...]  # names, or beginnings like orders.*
    to: Path
    then_delete: bool = False
    dry_run: bool = False


class Due(NamedTuple):
    """What a run adds of one topic: every seq from first to last. Half a commit is left to a later run: it may be
    abandoned yet."""

    state: TopicState
    known: ArchivedTopic | None
    first: int
    last: int


class Stretch(NamedTuple):
    """Seqs above `after`, up to `up_to`: the work of one task."""

    topic: str
    topic_id: int
    after: int
    up_to: int


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    client = place.client(options.place)
    names = place.resolve(client, options.topics)
    store = Store(options.to, KIND, VERSION)
    if options.dry_run:
        store.check_ours()
        manifest = load(store)
        return _report(options, manifest, [plan(client, manifest, name) for name in names], {}, [])
    with store:
        before = load(store)
        left = store.sweep(set(before.paths()))
        due = [plan(client, before, name) for name in names]
        after = _add(spark, options, store, before, due, progress)
        deleted = _delete(spark, client, options, after, due, progress) if options.then_delete else {}
        return _report(options, after, due, deleted, left)


def load(store: Store) -> Manifest:
    body = store.load()
    return Manifest.new() if body is None else Manifest.from_json(body)


def plan(client: Client, manifest: Manifest, name: str) -> Due:
    state = client.state(name, touch=False)
    known = manifest.find(state.topic_id, name)
    if known is not None:
        _check_same(client, state, known)
    first = known.last_seq + 1 if known is not None else 1
    return Due(state, known, first, state.settled_seq)


def _check_same(client: Client, state: TopicState, known: ArchivedTopic) -> None:
    """Ids are unique within a data directory only: the archive may come from another one."""
    name = state.topic
    wrong = f"topic {name!r} is not the one in this archive; archive it into another directory"
    if state.head_seq < known.last_seq:
        raise Conflict(f"{wrong}: it ends at seq {state.head_seq}, the archive at {known.last_seq}")
    newest = known.parts[-1].last_seq if known.parts else known.last_seq
    for record in client.fetch(name, newest - 1, limit=1, metadata_only=True) if known.parts else []:
        if record.ts < known.last_ts or (record.seq == newest and record.ts != known.last_ts):
            raise Conflict(f"{wrong}: its seq {record.seq} is of another time")


# ---- adding ----


def _add(
    spark: LazySpark,
    options: Options,
    store: Store,
    manifest: Manifest,
    due: list[Due],
    progress: Progress,
) -> Manifest:
    todo = [one for one in due if one.first <= one.last]
    if not todo:
        return manifest
    if spark.is_needless(*_work(todo)):
        files = run_here("archive", cut(todo, 1), lambda one: stage(_client(options), store.staging, one), progress)
        staged = [file for some in files for file in some]
    else:
        staged = spark.run_tasks("archive", lambda context: _stage(context, options, store, todo), progress)
    changed, moves = [], []
    for one in todo:
        mine = [file for file in staged if file.topic == one.state.topic]
        parts = [_placed(store, one.state.topic_id, file) for file in mine]
        moves += [Move(store.staging / file.name, part.path) for file, part in zip(mine, parts, strict=True)]
        last_ts = max((file.last_ts for file in mine), default=0)
        base = one.known or ArchivedTopic(one.state.topic, one.state.topic_id, one.first, one.first - 1, 0, 0)
        changed.append(base.extended(one.last, last_ts, one.state.config.to_fields(), parts))
    after = manifest.with_topics(changed)
    store.publish(moves, after.to_json())
    return after


def _client(options: Options) -> Client:
    return connection.client(options.place)


def _work(todo: list[Due]) -> tuple[int, int]:
    """Records and bytes, at most."""
    return sum(one.last - one.first + 1 for one in todo), sum(one.state.bytes for one in todo)


def _stage(context: SparkContext, options: Options, store: Store, todo: list[Due]) -> list[Staged]:
    where, staging = options.place, store.staging
    stretches = cut(todo, context.defaultParallelism)

    def write(stretch: Stretch) -> list[Staged]:
        return stage(connection.client(where), staging, stretch)

    found: list[Staged] = context.parallelize(stretches, len(stretches)).flatMap(write).collect()
    return found


def cut(todo: list[Due], cores: int) -> list[Stretch]:
    """Even pieces, so many that all cores have something to do and no file becomes too large."""
    total = sum(one.last - one.first + 1 for one in todo)
    step = min(TASK_MAX, max(TASK_MIN, -(-total // cores)))
    return [
        Stretch(one.state.topic, one.state.topic_id, after, min(after + step, one.last))
        for one in todo
        for after in range(one.first - 1, one.last, step)
    ]


def stage(client: Client, staging: Path, stretch: Stretch) -> list[Staged]:
    """What cap or TTL takes while we read is counted as absent: no reason to archive nothing."""
    writer = PartWriter(staging, stretch.topic)
    files: list[Staged] = []
    for batch in client.history(stretch.topic, stretch.after, to_seq=stretch.up_to, epoch=stretch.topic_id):
        if batch.topic_id != stretch.topic_id:
            raise Conflict(f"topic {stretch.topic!r} was deleted and made anew while it was archived; run it again")
        files += writer.add(batch.to_arrow())
    return [*files, *writer.finish()]


def _placed(store: Store, topic_id: int, file: Staged) -> Part:
    """In its final place: by name files stand in the order of their seqs."""
    folder = f"topic={file.topic.replace(':', '%3A')}/day={file.day}"
    name = f"{PART_PREFIX}{topic_id:016x}-{file.first_seq:020d}-{store.run}{PART_SUFFIX}"
    return Part(f"{folder}/{name}", file.day, file.first_seq, file.last_seq, file.records, file.bytes, file.sha256)


# ---- deleting ----


def _delete(
    spark: LazySpark, client: Client, options: Options, manifest: Manifest, due: list[Due], progress: Progress
) -> dict[str, int]:
    """How many records went, by topic. All are verified before the first goes."""
    live = {one.state.topic: client.state(one.state.topic, touch=False) for one in due}
    found = ((state, manifest.find(state.topic_id, name)) for name, state in live.items())
    known = [(state, archived) for state, archived in found if archived is not None]
    root = options.to.absolute()
    tiles = [tile for state, archived in known for tile in tiles_to_compare(root, archived, state)]
    if spark.is_needless(sum(state.count for state, _ in known), sum(state.bytes for state, _ in known)):
        compared = run_here("verify", tiles, lambda tile: verify_tile(_client(options), root, tile), progress)
    else:
        compared = (
            spark.run_tasks("verify", lambda context: _verify(context, options, tiles), progress) if tiles else []
        )
    for state, archived in known:
        after = client.state(state.topic, touch=False)
        if after.topic_id != state.topic_id:
            raise Conflict(f"topic {state.topic!r} was deleted and made anew while its archive was verified")
        check_counts(archived, state, after, sum(one.records for one in compared if one.topic == state.topic))
    return {
        state.topic: client.delete(state.topic, before_seq=archived.last_seq + 1).deleted if state.count else 0
        for state, archived in known
    }


def _verify(context: SparkContext, options: Options, tiles: list[Tile]) -> list[Compared]:
    where, root = options.place, options.to.absolute()

    def check(tile: Tile) -> Compared:
        return verify_tile(connection.client(where), root, tile)

    found: list[Compared] = context.parallelize(tiles, len(tiles)).map(check).collect()
    return found


# ---- telling ----


def _report(options: Options, after: Manifest, due: list[Due], deleted: dict[str, int], left: list[str]) -> Report:
    report = Report("archive", COLUMNS, dry_run=options.dry_run)
    for one in due:
        now = after.find(one.state.topic_id, one.state.topic)
        new = now.parts[len(one.known.parts) if one.known else 0 :] if now is not None else ()
        examined = max(0, one.last - one.first + 1)
        # Nobody knows before the records are read.
        added = min(examined, one.state.count) if options.dry_run else sum(part.count for part in new)
        report.rows.append(
            {
                "topic": one.state.topic,
                "added": added,
                "first_seq": one.first if examined else None,
                "last_seq": one.last if examined else None,
                "absent": examined - added,
                "files": len(new),
                "total": now.count if now is not None else 0,
                "bytes": sum(part.bytes for part in new),
                "deleted": deleted.get(one.state.topic, 0),
            }
        )
        report.notes += _notes(one)
    if left:
        report.notes.append(f"removed {len(left)} files that a run which died had left")
    rows = report.rows
    report.totals = {key: sum(row[key] for row in rows) for key in ("added", "files", "bytes", "deleted")}
    report.totals |= {"archive": str(options.to.absolute())}
    verb = "would add up to" if options.dry_run else "added"
    report.summary = (
        f"{verb} {counted(report.totals['added'], 'record')} of {counted(len(rows), 'topic')}; {options.to.absolute()}"
    )
    return report


def _notes(one: Due) -> list[str]:
    name, notes = one.state.topic, []
    if one.first <= one.last and one.state.evict_floor > one.first:
        notes.append(
            f"{name}: cap or TTL removed seqs {one.first} to {one.state.evict_floor - 1} before they could be archived"
        )
    if one.last < one.state.head_seq:
        notes.append(
            f"{name}: seqs from {max(one.first, one.last + 1)} on are left to a later run: something among them is "
            "being committed (topicctl stages list)"
        )
    return notes
