"""Is a seq missing that nobody has accounted for? Promise: every seq from 1 to the head of each topic is asked for,
and is live, deleted, removed by cap or TTL (below the floor), reported as taken by a power loss, or listed as lost.

A delete leaves no trace that a reader could see, so what is neither live nor reported is held against the daemon's own
count of the topic: what it counts and does not serve is lost.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from topicd.client.blocking.client import Client
from topicd.client.core.answers import TopicState
from topicd.errors import Conflict, StorageCorrupt
from topicd.limits import FETCH_BYTES_MAX, FETCH_RECORDS_MAX
from topicd.spark import connection
from topicd.spark.options import ConnectionOptions
from topicd.spark.pipelines import place
from topicd.spark.pipelines.report import Progress, Report, no_progress
from topicd.spark.pipelines.session import LazySpark, run_here
from topicd.words import counted

if TYPE_CHECKING:
    from pyspark import SparkContext

COLUMNS = ("topic", "head_seq", "live", "deleted", "removed", "power_loss", "lost")
TILE = 250_000  # seqs for one task
HOLES_SHOWN = 20


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    topics: tuple[str, ...] = ("*",)
    dry_run: bool = False


class Tile(NamedTuple):
    topic: str
    topic_id: int
    after: int
    up_to: int


class Bad(NamedTuple):
    first: int
    last: int
    why: str


class Seen(NamedTuple):
    """What a tile was made of; the rest of its seqs are holes."""

    topic: str
    live: int
    damaged: list[Bad]
    power_loss: list[Bad]
    holes: list[tuple[int, int]]  # the first few


def run(spark: LazySpark, options: Options, progress: Progress = no_progress) -> Report:
    client = place.client(options.place)
    before = [client.state(name, touch=False) for name in place.resolve(client, options.topics)]
    tiles = [tile for state in before for tile in tiles_of(state)]
    report = Report("loss-audit", COLUMNS, dry_run=options.dry_run)
    if options.dry_run:
        report.rows = [{"topic": state.topic, "head_seq": state.head_seq} for state in before]
        seqs = sum(state.head_seq for state in before)
        report.summary = f"would ask for {counted(seqs, 'seq')} of {counted(len(before), 'topic')}"
        return report
    if spark.is_needless(sum(state.head_seq for state in before), sum(state.bytes for state in before)):
        seen = run_here("loss-audit", tiles, lambda tile: look(client, tile), progress)
    else:
        seen = spark.run_tasks("loss-audit", lambda context: _look(context, options, tiles), progress) if tiles else []
    for state in before:
        mine = [one for one in seen if one.topic == state.topic]
        _account(report, state, client.state(state.topic, touch=False), mine)
    lost = sum(row["lost"] for row in report.rows)
    report.failed = lost > 0
    report.totals = {"lost": lost, "topics": len(before)}
    live = sum(row["live"] for row in report.rows)
    report.summary = f"{counted(len(before), 'topic')} with {counted(live, 'live record')}: " + (
        f"{counted(lost, 'seq')} lost" if lost else "no seq is lost"
    )
    return report


def tiles_of(state: TopicState) -> list[Tile]:
    """Below the floor nothing can be asked for."""
    starts = range(max(0, state.evict_floor - 1), state.head_seq, TILE)
    return [Tile(state.topic, state.topic_id, at, min(at + TILE, state.head_seq)) for at in starts]


def _look(context: SparkContext, options: Options, tiles: list[Tile]) -> list[Seen]:
    where = options.place
    found: list[Seen] = (
        context.parallelize(tiles, len(tiles)).map(lambda tile: look(connection.client(where), tile)).collect()
    )
    return found


def look(client: Client, tile: Tile) -> Seen:
    seen = Seen(tile.topic, 0, [], [], [])
    live, at, last = 0, tile.after, tile.after  # last: the seq up to which all is accounted for
    while at < tile.up_to:
        wanted = min(FETCH_RECORDS_MAX, tile.up_to - at)
        try:
            page = client.fetch(
                tile.topic, at, limit=wanted, max_bytes=FETCH_BYTES_MAX, metadata_only=True, epoch=tile.topic_id
            )
        except StorageCorrupt as exc:
            first, at = int(exc.detail["first_seq"]), min(int(exc.detail["last_seq"]), tile.up_to)
            _hole(seen, last, first)
            seen.damaged.append(Bad(max(first, tile.after + 1), at, exc.message))
            last = at
            continue
        if page.topic_id != tile.topic_id:
            raise Conflict(f"topic {tile.topic!r} was deleted and made anew during the audit")
        gap = page.tombstone
        if gap is not None:
            _hole(seen, last, gap.gap_from)
            last = min(gap.gap_to, tile.up_to)
            if gap.reason == "power_loss":
                seen.power_loss.append(Bad(gap.gap_from, last, gap.reason))
        seqs = array("q", bytes(page.columns().seq))
        del seqs[bisect_right(seqs, tile.up_to) :]
        if seqs:
            _hole(seen, last, seqs[0])
            if seqs[-1] - seqs[0] + 1 > len(seqs):
                for a, b in pairwise(seqs):
                    _hole(seen, a, b)
            live, last = live + len(seqs), seqs[-1]
        at = page.next_from_seq
        if page.caught_up:
            break
    _hole(seen, last, tile.up_to + 1)
    return seen._replace(live=live)


def _hole(seen: Seen, last: int, following: int) -> None:
    if following > last + 1 and len(seen.holes) < HOLES_SHOWN:
        seen.holes.append((last + 1, following - 1))


def _account(report: Report, before: TopicState, after: TopicState, seen: list[Seen]) -> None:
    live = sum(one.live for one in seen)
    damaged = [bad for one in seen for bad in one.damaged]
    unreadable = sum(bad.last - bad.first + 1 for bad in damaged)
    power_loss = sum(bad.last - bad.first + 1 for one in seen for bad in one.power_loss)
    # What was stored since counts for what is counted since; deletes meanwhile only lower it.
    counted = min(before.count, after.count - (after.head_seq - before.head_seq))
    uncounted = max(0, counted - live - unreadable)
    removed = max(0, min(after.evict_floor - 1, before.head_seq))
    row = {"topic": before.topic, "head_seq": before.head_seq, "live": live}
    deleted = max(0, before.head_seq - removed - live - unreadable - power_loss - uncounted)
    lost = unreadable + uncounted
    report.rows.append({**row, "deleted": deleted, "removed": removed, "power_loss": power_loss, "lost": lost})
    report.notes += [f"{before.topic}: seqs {bad.first} to {bad.last} are lost: {bad.why}" for bad in damaged]
    if uncounted:
        holes = ", ".join(f"{a} to {b}" for one in seen for a, b in one.holes[:HOLES_SHOWN])
        report.notes.append(
            f"{before.topic}: the daemon counts {counted:,} records and serves {live:,}; the missing are among {holes}"
        )
