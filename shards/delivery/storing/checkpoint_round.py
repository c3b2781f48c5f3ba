"""One checkpoint: what it stores, and what is left when it fails. Promise: of a direct write that could not be stored
nothing is left, or it is known where.

Planned in the shard's thread and applied there; in between a thread of its own stores it, and nobody else looks at it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from topicd.config import Settings
from topicd.disk.fs import Fs
from topicd.shards.delivery.storing import segmenting
from topicd.shards.delivery.storing.segmenting import Draft
from topicd.shards.delivery.storing.topic_state import label_of
from topicd.shards.delivery.topic.flight import InFlight
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.debris import clear_debris
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.jobs import JobResult, MarkJob, run_checkpoint


@dataclass
class CheckpointRound:
    full: bool  # a part of a full checkpoint, not only what goes past the log
    drafts: list[tuple[Topic, Draft]] = field(default_factory=list)
    places: list[Path] = field(default_factory=list)
    mark_jobs: list[MarkJob] = field(default_factory=list)
    marked: list[tuple[Topic, int, Ranges]] = field(default_factory=list)
    direct: list[tuple[Topic, list[InFlight]]] = field(default_factory=list)
    ends: dict[int, tuple[Path, SegmentInfo | None]] = field(default_factory=dict)  # of topics that may have debris
    unclear: set[int] = field(default_factory=set)  # topics that still have some

    def add(
        self,
        topic: Topic,
        place: Path,
        direct: list[InFlight],
        settings: Settings,
        now_ms: int,
        unsure: set[tuple[int, int]],
    ) -> None:
        """What waits of a topic: its tail, and the direct writes that may be stored. unsure: see add_marks."""
        contents, debris = topic.contents, topic.flight.debris
        if direct:
            self.direct.append((topic, direct))
        if direct or debris:
            self.ends[topic.id] = place, replace(contents.segments[-1]) if contents.segments else None
        if debris:
            self.unclear.add(topic.id)
        for draft in segmenting.plan(topic, settings, now_ms, [entry.blob() for entry in direct]):
            dead = Ranges(contents.tail_dead.within(draft.first_seq, draft.last_seq))
            self.add_marks(place, topic, draft.first_seq, dead, unsure)
            if draft.create and not contents.segments:
                draft.label = label_of(topic).pack()
            self.drafts.append((topic, draft))
            self.places.append(place)

    def add_marks(
        self, place: Path, topic: Topic, first_seq: int, ranges: Ranges, unsure: set[tuple[int, int]]
    ) -> None:
        """Of one segment. unsure: (topic, segment) whose last marks failed."""
        if len(ranges):
            again = (topic.id, first_seq) in unsure
            self.mark_jobs.append(MarkJob(place, first_seq, list(ranges), again))
            self.marked.append((topic, first_seq, ranges.copy()))

    @property
    def topics(self) -> list[Topic]:
        return list({topic.id: topic for topic, _ in self.drafts}.values())

    def leave_out(self, topic_ids: set[int]) -> None:
        """Their records wait for another round."""
        kept = [
            (item, place) for item, place in zip(self.drafts, self.places, strict=True) if item[0].id not in topic_ids
        ]
        self.drafts, self.places = [item for item, _ in kept], [place for _, place in kept]

    @property
    def holds_log(self) -> bool:
        """Is there anything in it that the log has, too, and has to have synced first?"""
        return self.full or any(len(topic.contents.tail) for topic, _ in self.direct)

    def store(self, fs: Fs) -> list[JobResult]:
        """In a thread: the drafts are nobody else's while the round lasts."""
        for topic_id in self.unclear:
            clear_debris(fs, *self.ends[topic_id])
        self.unclear.clear()
        jobs = [draft.job(place) for (_, draft), place in zip(self.drafts, self.places, strict=True)]
        results = run_checkpoint(fs, jobs)
        self._clear_failed(fs, results)
        return results

    def _clear_failed(self, fs: Fs, results: list[JobResult]) -> None:
        """Before anybody hears that a direct write was refused, nothing is left of it; if the disk lets us."""
        for (topic, draft), result in zip(self.drafts, results, strict=True):
            if topic.id not in self.ends or topic.id in self.unclear:
                continue
            if result.stored:
                place, _ = self.ends[topic.id]
                self.ends[topic.id] = place, replace(draft.info(), sealed=result.sealed is not None)
            else:
                self.unclear.add(topic.id)
        for topic_id in list(self.unclear):
            with suppress(OSError):
                clear_debris(fs, *self.ends[topic_id])
                self.unclear.remove(topic_id)
