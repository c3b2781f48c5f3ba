"""Topics that have something to store, by what it is. Promise: a topic that is gone is in none of these."""

from __future__ import annotations

from collections.abc import Callable

from topicd.shards.delivery.topic.tail import Blob
from topicd.shards.delivery.topic.topic import Topic


class Backlog:
    def __init__(self) -> None:
        self.dirty: dict[int, Topic] = {}  # records in memory that are in no segment
        self.unmarked: dict[int, Topic] = {}  # deletion marks that are in no .del file
        self.unsure_marks: set[tuple[int, int]] = set()  # (topic, segment) whose last marks failed
        self.aged: dict[int, Topic] = {}  # an active segment that is old enough to be sealed
        self.active: dict[int, Topic] = {}  # an active segment
        self.direct: dict[int, Topic] = {}  # direct writes that may be stored
        self.debris: dict[int, Topic] = {}  # what a failed direct write may have left
        self.reclaimable: dict[int, Topic] = {}  # segments that may be dropped or rewritten
        self.doomed: list[int] = []  # directories of topics that are gone
        self.tail_bytes = 0  # in memory and in no segment yet
        self.total_bytes = 0  # of all topics, as far as known
        self.metadata_changed = False  # since the newest snapshot
        # A backup reads the files: nothing is removed or rewritten, the log forgets nothing, all goes through it.
        self.held = False
        # Set by those who do the work.
        self.on_work: Callable[[], None] = lambda: None
        self.on_direct: Callable[[Topic], None] = lambda topic: None
        self.on_doomed: Callable[[], None] = lambda: None

    def note_records(self, topic: Topic, blob: Blob) -> None:
        if not topic.policy.logged:
            return
        size = blob.end - blob.start
        self.tail_bytes += size
        self.total_bytes += size
        self.dirty[topic.id] = topic
        self.on_work()

    def note_marks(self, topic: Topic) -> None:
        self.unmarked[topic.id] = topic
        self.on_work()

    def note_direct(self, topic: Topic) -> None:
        self.direct[topic.id] = topic
        self.on_direct(topic)

    def note_reclaimable(self, topic: Topic) -> None:
        self.metadata_changed = True
        self.reclaimable[topic.id] = topic

    def forget(self, topic: Topic) -> None:
        """It was deleted: its directory goes."""
        self.metadata_changed = True
        for work in (self.dirty, self.unmarked, self.active, self.aged, self.direct, self.debris, self.reclaimable):
            work.pop(topic.id, None)
        self.unsure_marks = {mark for mark in self.unsure_marks if mark[0] != topic.id}
        self.tail_bytes -= topic.contents.tail.bytes if topic.policy.logged else 0
        self.doomed.append(topic.id)
        self.on_doomed()
