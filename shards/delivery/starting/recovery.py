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
from typing import Any

from topicd import paths
from topicd._native.interface import Listing, Run
from topicd.errors import FormatError
from topicd.frames import FrameType, control_body
from topicd.model import TopicConfig
from topicd.placement import delivery_shard, wal_shard
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.live import LiveRecords
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.removing.deletion import Deletion
from topicd.shards.delivery.removing.retention import Retention
from topicd.shards.delivery.starting.holes import Holes
from topicd.shards.delivery.starting.orphans import Orphans
from topicd.shards.delivery.starting.replay import AppendReplay
from topicd.shards.delivery.starting.snapshot_entries import Loaded, load_entries
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.rounds import Rounds
from topicd.shards.delivery.storing.tiering import Tiering
from topicd.shards.delivery.storing.topic_state import label_of, topic_of
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.floors import Loss
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.quarantine import Quarantine
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment import reindex
from topicd.shards.storage.segment.load import load_segments
from topicd.shards.storage.segment.plain import plain_segments
from topicd.shards.storage.segment.settle_marks import DeadOnRecord
from topicd.shards.storage.topic_dir import finish_deletes
from topicd.shards.storage.topic_label import add_label
from topicd.shards.storage.walfile import Group, LogChunk, LogReader, lsn_at, missing_part, scan_group

log = logging.getLogger(__name__)

Progress = Callable[[float, str], None]

_TOGETHER = 256  # topics whose directories are looked into at once


@dataclass
class Recovered:
    """What a start found."""

    topics: int = 0
    replayed: int = 0
    damage: list[str] = field(default_factory=list)


class Recovery:
    def __init__(
        self,
        place: Place,
        catalog: Catalog,
        segments: Segments,
        live: LiveRecords,
        retention: Retention,
        deletion: Deletion,
        backlog: Backlog,
        rounds: Rounds,
        tiering: Tiering,
    ) -> None:
        self._place = place
        self._catalog = catalog
        self._live = live
        self._retention = retention
        self._deletion = deletion
        self._backlog = backlog
        self._rounds = rounds
        self._tiering = tiering
        self._appends = AppendReplay(segments, backlog)
        self._holes = Holes(place, segments, live, self._note_damage)
        self._snapshots = Loaded([], [], set(), {})
        self._orphans = Orphans(place, catalog, self._note_damage)
        self._dead: dict[int, dict[int, DeadOnRecord] | None] = {}
        self.result = Recovered()

    def run(self, progress: Progress, live_ends: dict[int, int]) -> Recovered:
        """live_ends: for a WAL shard that is running, up to which LSN its files hold whole groups."""
        loaded = load_entries(self._place, self._note_damage, lambda: progress(0, "snapshots"))
        self._snapshots = loaded
        for number, entry in enumerate(loaded.entries):
            progress(5 * number / len(loaded.entries), "snapshots")
            self._catalog.add(topic_of(entry, wal_shard(entry.id, self._place.wal_shards)))
            self._holes.heads[entry.id] = entry.head
            self._dead[entry.id] = entry.dead
        self._orphans.open(loaded)
        progress(5, "snapshots")
        self._load_segments(progress)
        self._replay(progress, live_ends)
        for topic in self._orphans.adopt_rest():
            self._load_adopted(topic)
        if self._place.index == 0:
            for problem in self._orphans.nameless():
                self._note_damage(problem)
        topics = list(self._catalog.by_name.values())
        for number, topic in enumerate(topics):
            progress(95 + 5 * number / len(topics), "floors")
            self._finish(topic)
        self.result.topics = len(topics)
        self.result.replayed = self._appends.records
        progress(100, "recovered")
        return self.result

    # ---- segments ----

    def _load_segments(self, progress: Progress) -> None:
        topics = list(self._catalog.by_name.values())
        empty: set[str] = set()
        for at in range(0, len(topics), _TOGETHER):
            some = topics[at : at + _TOGETHER]
            directories = [f"{self._place.data.topics}/{paths.topic_dir_name(topic.id)}" for topic in some]
            for topic, directory, listing in zip(some, directories, self._place.fs.look_into(directories), strict=True):
                if listing is None or self._dead.get(topic.id) or not self._load_plain(topic, directory, listing):
                    self._load_topic(topic)
                if not listing:
                    empty.add(paths.topic_dir_name(topic.id))
            progress(5 + 15 * at / len(topics), "segments")
        self._move_links(empty)
        if self._place.index == 0:
            finish_deletes(self._place.fs, self._place.data.topics)

    def _move_links(self, names: set[str]) -> None:
        """In the place of a directory that seems to hold nothing may be a link that leads nowhere: then it is lost."""
        place = self._place
        for name in sorted(names.intersection(place.fs.listdir(place.data.topics))) if names else ():
            if not place.fs.exists(place.data.topics / name):
                kept = Quarantine(place.fs, place.data).move(place.data.topics / name)
                self._note_damage(f"{place.data.topics / name}: is a link that leads nowhere, moved to {kept}")

    def _load_plain(self, topic: Topic, directory: str, listing: Listing) -> bool:
        """False: there is something about it that load_segments has to see."""
        plain = None if topic.contents.damaged else plain_segments(directory, topic.id, listing)
        if plain is None:
            return False
        self._dead.pop(topic.id, None)
        if plain.segments:
            topic.contents.segments = plain.segments
            topic.seqs.load(plain.segments[-1].last_seq, plain.segments[-1].last_ts)
            topic.contents.recent_tags.note(plain.active, 0, len(plain.active))
        return True

    def _load_topic(self, topic: Topic) -> None:
        directory, contents = self._place.topic_dir(topic.id), topic.contents
        try:
            # One that has none has no directory.
            loaded = load_segments(self._place.fs, directory, self._dead.pop(topic.id, None))
        except NotADirectoryError:
            kept = Quarantine(self._place.fs, self._place.data).move(directory)
            self._note_damage(f"{directory}: is no directory, moved to {kept}")
            return
        contents.segments = loaded.segments
        contents.marks = loaded.marks
        if loaded.dropped:
            self._tiering.finish_drop(topic, loaded.dropped)
        self._tiering.bring_back(topic, loaded.stranded)
        add_label(self._place.fs, directory, label_of(topic))
        self._holes.forget_healed(topic)
        self._holes.cuts[topic.id] = loaded.cuts
        self._holes.between_segments[topic.id] = loaded.gaps
        for damage in loaded.damage:
            if damage.repaired:
                log.warning("segment repaired", extra={"damage": str(damage)})  # a crash may leave it so
                continue
            self._note_damage(str(damage))
            contents.note_damaged(damage.first_seq, damage.last_seq, damage.path.name)
        if contents.segments:
            topic.seqs.load(contents.segments[-1].last_seq, contents.segments[-1].last_ts)
            self._holes.index_active_tags(topic)

    # ---- WAL ----

    def _replay(self, progress: Progress, live_ends: dict[int, int]) -> None:
        """Run by run: a topic may have lived in another WAL shard before the number of shards changed."""
        place = self._place
        chunks: list[tuple[int, int, LogChunk]] = []
        found = {paths.parse_shard_dir(name) for name in place.fs.listdir(place.data.wal)}
        for shard in sorted({*self._snapshots.logs, *(shard for shard in found if shard is not None)}):
            chunks += [(c.run, shard, c) for c in self._read_log(shard, live_ends.get(shard))]
        chunks.sort(key=lambda item: item[:2])
        total = sum(len(chunk.groups) for _, _, chunk in chunks) or 1
        done = 0
        for _, shard, kept in chunks:
            chunk = kept.loaded()
            for group in chunk.groups:
                self._replay_group(chunk.path, chunk.view, group, mine=shard % place.delivery_shards == place.index)
            done += len(chunk.groups)
            progress(20 + 75 * done / total, "replay")
            for _ in self._rounds.relieve():
                progress(20 + 75 * done / total, "replay")

    def _read_log(self, shard: int, up_to: int | None) -> list[LogChunk]:
        """A running WAL shard may have recycled a file between the listing and the reading: then look again."""
        place = self._place
        for attempt in range(5):
            directory = place.data.wal_shard(shard)
            reader = LogReader(place.fs, directory, place.wal_seed, up_to_lsn=up_to, whole=False)
            try:
                chunks = [chunk.let_go() for chunk in reader.chunks()]
            except FileNotFoundError:
                continue
            if up_to is None or not reader.end.damage or attempt == 4:
                break
        if place.index == 0:
            missing = missing_part(place.data.wal_shard(shard), reader.end, self._snapshots.logs.get(shard))
            for damage in [*reader.end.damage, *([missing] if missing else [])]:
                self._note_damage(f"WAL: {damage}")
        return chunks

    def _replay_group(self, path: Path, view: memoryview, group: Group, *, mine: bool) -> None:
        scan = scan_group(view, group)
        for run in scan.runs:
            self._apply(view, run)
        at = scan.bad_at
        while scan.problem:
            if mine:
                self._note_damage(f"WAL: {path}: bad frame at LSN {lsn_at(group, at)} ({scan.problem})")
            following = reindex.next_frame(view[: group.end], at + 1, None)
            if following is None or following >= group.end:
                return
            scan = scan_group(view, group._replace(start=following))
            for run in scan.runs:
                self._apply(view, run)
            at = scan.bad_at

    def _apply(self, view: memoryview, run: Run) -> None:
        if run.type == FrameType.TOPIC_CREATE:
            self._replay_create(view, run)
            return
        topic = self._catalog.by_id.get(run.topic_id) or self._adopted(run.topic_id)
        if topic is None:
            return
        if run.type == FrameType.APPEND:
            self._appends.take(topic, view, run)
        elif run.type == FrameType.PRODUCER:
            self._appends.announce(topic, view, run)
        elif run.type == FrameType.DIRECT:
            self._appends.claim(topic, view, run)
        elif run.type == FrameType.LEASE:
            self._replay_jobs(topic, view, run)
        else:
            self._replay_change(topic, view, run)

    def _adopted(self, topic_id: int) -> Topic | None:
        topic = self._orphans.adopt(topic_id)
        if topic is not None:
            self._load_adopted(topic)
        return topic

    def _load_adopted(self, topic: Topic) -> None:
        """What was removed from its front nobody knows any more: it begins with what is there."""
        self._load_topic(topic)
        if topic.contents.segments:
            topic.floors.advance(topic.contents.segments[0].first_seq)

    def _body_of(self, topic: Topic, view: memoryview, start: int, end: int) -> dict[str, Any] | None:
        try:
            return dict(control_body(view, start, end))
        except FormatError as exc:
            self._note_damage(f"topic {topic.name}: control frame cannot be read: {exc}")
            return None

    def _replay_change(self, topic: Topic, view: memoryview, run: Run) -> None:
        body = self._body_of(topic, view, run.start, run.end)
        if body is None:
            return
        if run.type == FrameType.COMMIT and "taken_back" in body:
            # Their marks may not have been stored when the snapshot was: dead is dead, however often it is said.
            self._deletion.replay_seqs(topic, Ranges((int(first), int(last)) for first, last in body["taken_back"]))
        # A later change may have gone with the WAL shard it was in: what the snapshot holds is not done again.
        if "no" in body and not topic.changes.is_new(int(body["no"])):
            return
        replay = self._CHANGES.get(run.type)
        if replay is not None:
            replay(self, topic, body)
            return
        known = [part for part in topic.parts() if run.type in part.FRAMES]
        for part in known:
            part.replay(FrameType(run.type), body, run.first_ts)
        if not known:
            what = f"a frame of type {run.type} stands in the WAL, which is not known here"
            self._note_damage(f"topic {topic.name}: {what}")

    def _replay_jobs(self, topic: Topic, view: memoryview, run: Run) -> None:
        """Options of jobs stand before the records of their batch, which they are part of. Of jobs that are done the
        records go, also if the snapshot knows that they are done: their marks may not have been stored then."""
        body = self._body_of(topic, view, run.start, run.end)
        if body is None or topic.queue is None:
            return
        if not run.whole_count:
            self._appends.hold_options(topic, run.first_seq, body)
            return
        if "no" not in body or topic.changes.is_new(int(body["no"])):
            topic.queue.replay(FrameType.LEASE, body, 0)
        for key in ("gone", "buried") if body.get("keep") else ("gone", "buried", "done"):
            flat = body.get(key, ())
            if flat:
                self._deletion.replay_seqs(topic, Ranges(zip(flat[0::2], flat[1::2], strict=True)))

    def _replay_create(self, view: memoryview, run: Run) -> None:
        self._orphans.note_known(run.topic_id)
        if run.topic_id in self._catalog.by_id:
            return
        body = control_body(view, run.start, run.end)
        name = str(body["name"])
        if delivery_shard(name, self._place.delivery_shards) != self._place.index:
            return
        if any(settled.covers(name, run.topic_id) for settled in self._snapshots.settled):
            return  # deleted since; the frame that says so may be gone with the WAL shard it was in
        older = self._catalog.by_name.get(name)
        if older is not None and older.id > run.topic_id:
            return  # deleted and created again since: the snapshot knows the newer one
        outlet = wal_shard(run.topic_id, self._place.wal_shards)
        config = TopicConfig.from_stored(body["config"])
        topic = Topic(run.topic_id, name, config, outlet, int(body["created_ms"]))
        self._catalog.add(topic)
        topic.seqs.reserve(int(body.get("reserved", 0)))
        self._load_topic(topic)

    def _replay_delete_topic(self, topic: Topic, body: dict[str, Any]) -> None:
        self._orphans.note_known(topic.id)
        self._catalog.forget(topic)
        self._backlog.forget(topic)

    def _replay_config(self, topic: Topic, body: dict[str, Any]) -> None:
        topic.set_config(TopicConfig.from_stored(body["config"]))

    def _replay_delete(self, topic: Topic, body: dict[str, Any]) -> None:
        self._deletion.replay(topic, body)

    def _replay_evicted(self, topic: Topic, body: dict[str, Any]) -> None:
        topic.floors.replay_losses(int(body["evict_floor"]), [Loss(*loss) for loss in body["losses"]])

    def _replay_reserved(self, topic: Topic, body: dict[str, Any]) -> None:
        if body.get("back"):
            topic.seqs.reserved = topic.seqs.reserving = int(body["reserved"])
        else:
            topic.seqs.reserve(int(body["reserved"]))

    def _replay_forgiven(self, topic: Topic, body: dict[str, Any]) -> None:
        topic.contents.forgive(int(body["first"]), int(body["last"]))

    def _replay_routed(self, topic: Topic, body: dict[str, Any]) -> None:
        topic.inflows.replay(FrameType.ROUTED, body, 0)
        if "hole" in body:
            topic.seqs.reach(max(topic.seqs.head, int(body["hole"][1])))

    def _replay_commit(self, topic: Topic, body: dict[str, Any]) -> None:
        if body["action"] == "abandon":
            self._deletion.replay_abandoned(topic, body)
        else:
            topic.commits.replay_change(body)

    # Changes of a topic itself; those of its parts are the parts' own.
    _CHANGES: dict[int, Callable[[Recovery, Topic, dict[str, Any]], None]] = {
        FrameType.TOPIC_DELETE: _replay_delete_topic,
        FrameType.CONFIG_UPDATE: _replay_config,
        FrameType.DELETE: _replay_delete,
        FrameType.EVICT_WATERMARK: _replay_evicted,
        FrameType.HEAD_WATERMARK: _replay_reserved,
        FrameType.COMMIT: _replay_commit,
        FrameType.FORGIVEN: _replay_forgiven,
        FrameType.ROUTED: _replay_routed,
    }

    # ---- the end ----

    def _finish(self, topic: Topic) -> None:
        seqs, floors = topic.seqs, topic.floors
        topic.last_write_ms = seqs.last_ts
        if not topic.policy.logged:
            seqs.reach(max(seqs.head, seqs.reserved))
            seqs.store(seqs.head)
            if floors.earliest <= seqs.head:
                floors.note_loss(seqs.head + 1, "cap", seqs.head + 1 - floors.evict_floor)
            floors.advance(seqs.head + 1)
            return
        self._holes.judge(topic, self._appends.holes.pop(topic.id, []), self._appends.claims.get(topic.id))
        topic.inflows.resume(seqs.head, seqs.last_ts)
        self._settle(topic)
        self._retention.enforce(topic)
        self._deletion.free_acked(topic)

    def _settle(self, topic: Topic) -> None:
        """Counts as they follow from what is there."""
        floors, contents = topic.floors, topic.contents
        floor = floors.missed_from
        if contents.segments:
            floor = max(floor, contents.segments[0].first_seq)
        elif (blob := contents.tail.first()) is not None:
            floor = max(floor, blob.first_seq)
        floors.advance(self._live.first_from(topic, floor))
        contents.count, contents.bytes = self._live.within(topic, floors.earliest, topic.seqs.visible)

    def _note_damage(self, what: str) -> None:
        log.error("storage is damaged", extra={"damage": what})
        self.result.damage.append(what)
