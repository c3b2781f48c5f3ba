"""Back to the state before the stop or the crash: snapshots, then segments, then the WAL. Promise: everything
acknowledged is there in order; the same files give the same state every time; what cannot be read is reported
and never served.

The WAL files are only read, and only here; they are written by the WAL shards, which have settled their tails
before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from topicd import paths
from topicd._native.interface import Run
from topicd.errors import FormatError
from topicd.frames import FrameType, control_body, core
from topicd.model import Durability, TopicConfig
from topicd.placement import delivery_shard, wal_shard
from topicd.shards.delivery.starting.replay import AppendReplay
from topicd.shards.delivery.topic.consumers import Cursor
from topicd.shards.delivery.topic.topic import Damaged, Loss, Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment import reindex as frame_search
from topicd.shards.storage.segment.debris import cut_open_batch
from topicd.shards.storage.segment.info import Cut
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.snapshot import SnapshotStore
from topicd.shards.storage.topic_dir import finish_deletes
from topicd.shards.storage.walfile import Group, LogChunk, LogReader, WalDamage, lsn_at, scan_group

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor

log = logging.getLogger(__name__)

Progress = Callable[[float, str], None]


@dataclass
class Recovered:
    """What a start found."""

    topics: int = 0
    replayed: int = 0
    damage: list[str] = field(default_factory=list)


class Recovery:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._appends = AppendReplay(actor)
        self._settled: list[tuple[int, int, int]] = []  # of snapshots: shards, shard, ids that are settled below
        self._heads: dict[int, int] = {}  # newest seq by snapshot
        self._gaps: dict[int, list[tuple[int, int]]] = {}  # seqs between segments
        self._cuts: dict[int, list[Cut]] = {}  # tails of active segments that replay should bring back
        self.result = Recovered()

    def run(self, progress: Progress, live_ends: dict[int, int]) -> Recovered:
        """live_ends: for a WAL shard that is running, up to which LSN its files hold whole groups."""
        self._load_snapshots()
        progress(5, "snapshots")
        self._load_segments(progress)
        self._replay(progress, live_ends)
        topics = list(self._actor.topics.by_name.values())
        for number, topic in enumerate(topics):
            progress(95 + 5 * number / len(topics), "floors")
            self._finish(topic)
        self.result.topics = len(topics)
        self.result.replayed = self._appends.records
        progress(100, "recovered")
        return self.result

    # ---- snapshots ----

    def _load_snapshots(self) -> None:
        """A snapshot is the last word on the names of its partition, whatever the number of shards was then. One of
        ours of this run says all; before the first of them, those of all shards of earlier runs do."""
        actor = self._actor
        found: list[tuple[tuple[int, int], dict[str, Any]]] = []
        for name in actor.fs.listdir(actor.data.meta):
            shard = paths.parse_shard_dir(name)
            if shard is None:
                continue
            store = SnapshotStore(actor.fs, actor.data.snapshots(shard))
            found += [((int(body["run"]), number), body) for number, body in store.load_by_run()]
            for problem in store.problems:
                self._note_damage(f"snapshot passed over: {problem}")
        run = actor.shard.boot.run
        ours = [item for item in found if item[0][0] == run and int(item[1]["shard"]) == actor.index]
        found = ours or [item for item in found if item[0][0] < run]
        entries: dict[str, dict[str, Any]] = {}
        for _, body in sorted(found, key=lambda item: item[0]):
            shards, index = int(body["shards"]), int(body["shard"])
            entries = {name: e for name, e in entries.items() if delivery_shard(name, shards) != index}
            entries.update({str(entry["name"]): entry for entry in body["topics"]})
            self._settled.append((shards, index, int(body["settled_below"])))
        for name, entry in entries.items():
            if delivery_shard(name, actor.delivery_shards) == actor.index:
                self._restore(name, entry)

    def _restore(self, name: str, entry: dict[str, Any]) -> None:
        topic = self._make(int(entry["id"]), name, TopicConfig.from_fields(entry["config"]), int(entry["created_ms"]))
        topic.earliest = int(entry["earliest"])
        topic.evict_floor = int(entry["evict_floor"])
        topic.losses = [Loss(*loss) for loss in entry["losses"]]
        topic.delete_below = int(entry["delete_below"])
        topic.reserved = topic.reserving = int(entry["reserved"])
        topic.gone = Ranges((first, last) for first, last in entry["gone"])
        topic.lost = Ranges((first, last) for first, last in entry["lost"])
        topic.head = topic.visible = int(entry["head"]) if topic.ephemeral else 0
        self._heads[topic.id] = int(entry["head"])
        topic.last_ts = int(entry["last_ts"])
        topic.damaged = [Damaged(*row) for row in entry["damaged"]]
        topic.change_no = int(entry["changes"])
        topic.producers.restore(entry["producers"])
        topic.consumers = {row[0]: Cursor(*row) for row in entry["consumers"]}

    def _make(self, topic_id: int, name: str, config: TopicConfig, created_ms: int) -> Topic:
        topic = Topic(topic_id, name, config, wal_shard(topic_id, self._actor.wal_shards), created_ms)
        self._actor.topics.add(topic)
        return topic

    # ---- segments ----

    def _load_segments(self, progress: Progress) -> None:
        topics = self._actor.topics.by_name
        for number, topic in enumerate(topics.values()):
            progress(5 + 15 * number / len(topics), "segments")
            self._load_topic(topic)
        if self._actor.index == 0:
            finish_deletes(self._actor.fs, self._actor.data.topics)

    def _load_topic(self, topic: Topic) -> None:
        actor = self._actor
        directory = actor.data.topic(topic.id)
        if not actor.fs.exists(directory):
            return
        loaded = load_segments(actor.fs, directory)
        topic.segments = loaded.segments
        topic.marks = loaded.marks
        self._cuts[topic.id] = loaded.cuts
        for damage in loaded.damage:
            if damage.repaired:
                log.warning("segment repaired", extra={"damage": str(damage)})  # a crash may leave it so
                continue
            self._note_damage(str(damage))
            if damage.first_seq <= damage.last_seq:
                topic.damaged.append(Damaged(damage.first_seq, damage.last_seq, damage.path.name))
        self._gaps[topic.id] = loaded.gaps
        if topic.segments:
            topic.stored = topic.head = topic.visible = topic.segments[-1].last_seq
            topic.last_ts = max(topic.last_ts, topic.segments[-1].last_ts)
            self._index_active_tags(topic)

    def _index_active_tags(self, topic: Topic) -> None:
        info = topic.segments[-1] if topic.segments else None
        if info is None or info.sealed or not info.count:
            return
        data = self._actor.segment_reader(topic, info).read(info.first_seq, info.last_seq)
        for tag, seq in core.frame_tags(data, 0, len(data)):
            topic.recent_tags.setdefault(tag, []).append(seq)

    # ---- WAL ----

    def _replay(self, progress: Progress, live_ends: dict[int, int]) -> None:
        """Run by run: a topic may have lived in another WAL shard before the number of shards changed."""
        actor = self._actor
        chunks: list[tuple[int, int, LogChunk]] = []
        for name in actor.fs.listdir(actor.data.wal):
            shard = paths.parse_shard_dir(name)
            if shard is not None:
                chunks += [(c.run, shard, c) for c in self._read_log(shard, live_ends.get(shard))]
        chunks.sort(key=lambda item: item[:2])
        total = sum(len(chunk.groups) for _, _, chunk in chunks) or 1
        done = 0
        for _, shard, chunk in chunks:
            for group in chunk.groups:
                self._replay_group(chunk.path, chunk.view, group, mine=shard % actor.delivery_shards == actor.index)
            done += len(chunk.groups)
            progress(20 + 75 * done / total, "replay")
            actor.checkpointer.relieve()

    def _read_log(self, shard: int, up_to: int | None) -> list[LogChunk]:
        """A running WAL shard may have recycled a file between the listing and the reading: then look again."""
        actor = self._actor
        directory = actor.data.wal_shard(shard)
        for attempt in range(5):
            reader = LogReader(actor.fs, directory, actor.shard.boot.wal_seed, up_to_lsn=up_to)
            try:
                chunks = list(reader.chunks())
            except FileNotFoundError:
                continue
            if up_to is None or not reader.end.damage or attempt == 4:
                break
        for damage in reader.end.damage:
            self._keep_damaged(damage)
        return chunks

    def _keep_damaged(self, damage: WalDamage) -> None:
        if self._actor.index == 0:
            self._note_damage(f"WAL: {damage}")

    def _replay_group(self, path: Path, view: memoryview, group: Group, *, mine: bool) -> None:
        scan = scan_group(view, group)
        for run in scan.runs:
            self._apply(view, run)
        at = scan.bad_at
        while scan.problem:
            if mine:
                self._note_damage(f"WAL: {path}: bad frame at LSN {lsn_at(group, at)} ({scan.problem})")
            following = frame_search.next_frame(view[: group.end], at + 1, None)
            if following is None or following >= group.end:
                return
            scan = scan_group(view, group._replace(start=following))
            for run in scan.runs:
                self._apply(view, run)
            at = scan.bad_at

    def _apply(self, view: memoryview, run: Run) -> None:
        actor = self._actor
        if run.type == FrameType.TOPIC_CREATE:
            self._replay_create(view, run)
            return
        topic = actor.topics.by_id.get(run.topic_id)
        if topic is None:
            return
        if run.type == FrameType.APPEND:
            self._appends.take(topic, view, run)
        elif run.type == FrameType.PRODUCER:
            self._appends.announce(topic, view, run)
        elif run.type == FrameType.DIRECT:
            self._appends.claim(topic, view, run)
        else:
            self._replay_control(topic, view, run)

    def _replay_control(self, topic: Topic, view: memoryview, run: Run) -> None:
        actor = self._actor
        try:
            body = control_body(view, run.start, run.end)
        except FormatError as exc:
            self._note_damage(f"topic {topic.name}: control frame cannot be read: {exc}")
            return
        if "no" in body:
            # A later change may have gone with the WAL shard it was in: what the snapshot holds is not done again.
            if int(body["no"]) <= topic.change_no:
                return
            topic.change_no = int(body["no"])
        if run.type == FrameType.TOPIC_DELETE:
            actor.topics.forget(topic)
            actor.checkpointer.note_deleted(topic)
        elif run.type == FrameType.CONFIG_UPDATE:
            topic.set_config(TopicConfig.from_fields(body["config"]))
        elif run.type == FrameType.DELETE:
            actor.deletion.replay(topic, body)
        elif run.type == FrameType.EVICT_WATERMARK:
            if int(body["evict_floor"]) > topic.evict_floor:
                topic.evict_floor = int(body["evict_floor"])
                topic.losses = [Loss(*loss) for loss in body["losses"]]
        elif run.type == FrameType.HEAD_WATERMARK:
            topic.reserved = topic.reserving = max(topic.reserved, int(body["reserved"]))
        elif run.type == FrameType.CURSOR:
            actor.cursors.replay(topic, body, run.first_ts)
        else:
            self._note_damage(
                f"topic {topic.name}: a frame of type {run.type} stands in the WAL, which is not known here"
            )

    def _replay_create(self, view: memoryview, run: Run) -> None:
        actor = self._actor
        if run.topic_id in actor.topics.by_id:
            return
        body = control_body(view, run.start, run.end)
        name = str(body["name"])
        if delivery_shard(name, actor.delivery_shards) != actor.index:
            return
        if any(run.topic_id < below and delivery_shard(name, n) == index for n, index, below in self._settled):
            return  # deleted since; the frame that says so may be gone with the WAL shard it was in
        older = actor.topics.by_name.get(name)
        if older is not None and older.id > run.topic_id:
            return  # deleted and made again since: the snapshot knows the newer one
        topic = self._make(run.topic_id, name, TopicConfig.from_fields(body["config"]), int(body["created_ms"]))
        topic.reserved = topic.reserving = int(body.get("reserved", 0))
        self._load_topic(topic)

    # ---- the end ----

    def _settle(self, topic: Topic) -> None:
        """Counts as they follow from what was loaded; needed before deletes are applied again."""
        retention = self._actor.retention
        floor = floor_of(topic)
        if topic.segments:
            floor = max(floor, topic.segments[0].first_seq)
        elif (blob := topic.tail.first()) is not None:
            floor = max(floor, blob.first_seq)
        topic.earliest = retention.first_live(topic, floor)
        topic.count, topic.bytes = retention.live_within(topic, topic.earliest, topic.visible)

    def _finish(self, topic: Topic) -> None:
        actor = self._actor
        topic.last_write_ms = topic.last_ts
        if topic.ephemeral:
            topic.head = topic.visible = max(topic.head, topic.reserved)
            if topic.earliest <= topic.head:
                topic.note_loss(topic.head + 1, "cap", topic.head + 1 - topic.evict_floor)
            topic.earliest = topic.head + 1
            topic.stored = topic.head
            return
        self._cut_open_batch(topic)
        self._check_holes(topic, self._gaps.pop(topic.id, []), "are in no segment", "missing segment")
        self._check_holes(topic, self._appends.holes.pop(topic.id, []), "are missing in the WAL", "WAL")
        self._check_cuts(topic)
        self._check_head(topic)
        self._settle(topic)
        actor.retention.enforce(topic)
        actor.cursors.free_acked(topic)

    def _check_holes(self, topic: Topic, holes: list[tuple[int, int]], how: str, where: str) -> None:
        """Damage is what nobody removed by the end of the log: files go when their records or their topic did, and
        the frame that says so may stand behind the hole."""
        for first, last in holes:
            low = max(first, floor_of(topic))
            for a, b in Ranges([*topic.gone, *topic.lost]).missing(low, last) if low <= last else []:
                self._note_damage(f"topic {topic.name}: seqs {a} to {b} {how}")
                topic.damaged.append(Damaged(a, b, where))

    def _cut_open_batch(self, topic: Topic) -> None:
        """A direct write that was stored in part was not acknowledged. One of the log goes on in the tail."""
        claims = self._appends.claims.get(topic.id)
        if (
            claims is None
            or topic.head not in claims
            or not topic.segments
            or topic.segments[-1].last_seq != topic.head
        ):
            return
        active = topic.segments[-1]
        if active.sealed:
            return
        first_seq, had = active.first_seq, active.last_seq
        left = cut_open_batch(self._actor.fs, self._actor.data.topic(topic.id), active)
        if left is None:
            topic.segments.pop()
        topic.stored = topic.head = topic.visible = first_seq - 1 if left is None else left.last_seq
        if topic.head < had:
            log.info("unfinished write cut", extra={"topic": topic.name, "first_seq": topic.head + 1, "last_seq": had})
            topic.recent_tags.clear()
            self._actor.readers.drop(topic.id)
            self._index_active_tags(topic)

    def _check_cuts(self, topic: Topic) -> None:
        """A tail that was cut and did not come back from the WAL had been durable: it is damage. Not so what was on its
        way past the log: it is durable, and acknowledged, when the index names it."""
        claims = self._appends.claims.get(topic.id, Ranges())
        for cut in self._cuts.pop(topic.id, []):
            first = max(cut.first_seq, topic.head + 1)
            last = cut.indexed if first in claims else cut.last_seq
            if first <= last:
                self._note_damage(f"topic {topic.name}: seqs {first} to {last} were cut, see {cut.kept}")
                topic.damaged.append(Damaged(first, last, cut.kept.name))
                topic.head = topic.visible = last

    def _check_head(self, topic: Topic) -> None:
        """A seq that was given out is not given out again, whatever became of its record."""
        known = self._heads.get(topic.id, 0)
        power_lost = self._actor.shard.boot.power_lost and topic.reserves
        if power_lost:
            known = max(known, topic.reserved)
        if known <= topic.head:
            return
        # A class that waits for no sync may lose its tail; then it is a gap, not damage.
        may_be_lost = power_lost or topic.config.durability == Durability.MEMORY
        explained = Ranges([*topic.lost, *topic.gone])
        low = max(topic.head + 1, floor_of(topic))
        for first, last in explained.missing(low, known) if low <= known else []:
            if may_be_lost:
                log.warning(
                    "unsynced tail may be lost", extra={"topic": topic.name, "first_seq": first, "last_seq": last}
                )
                topic.lost.add(first, last)
            else:
                self._note_damage(f"topic {topic.name}: seqs {first} to {last} are neither in segments nor in the WAL")
                topic.damaged.append(Damaged(first, last, "WAL"))
        topic.head = topic.visible = known

    def _note_damage(self, what: str) -> None:
        log.error("storage is damaged", extra={"damage": what})
        self.result.damage.append(what)


def floor_of(topic: Topic) -> int:
    """Nothing is missed below: caps, TTL or deletes took it."""
    return max(topic.earliest, topic.evict_floor, topic.delete_below)
