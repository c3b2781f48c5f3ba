"""Where the records of a topic are, and which of them are dead. Promise: count and bytes are those of the live records
that can be read; a record that is dead in memory stays dead in its segment.
"""

from __future__ import annotations

from typing import NamedTuple

from topicd.limits import MAX_SEQ
from topicd.shards.delivery.topic.recent_tags import RecentTags
from topicd.shards.delivery.topic.tail import Blob, Tail
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.info import SegmentInfo


class Damaged(NamedTuple):
    """Seqs that were stored once and cannot be read any more."""

    first_seq: int
    last_seq: int
    where: str


class Contents:
    __slots__ = (
        *("bytes", "count", "damaged", "gone", "lost", "marks", "missed"),
        *("recent_tags", "segments", "tail", "tail_dead", "unmarked"),
    )

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0
        self.tail = Tail()
        self.tail_dead = Ranges()
        self.segments: list[SegmentInfo] = []
        self.marks: dict[int, Ranges] = {}  # dead seqs by segment
        self.unmarked: dict[int, Ranges] = {}  # of these, what is not in the segment's .del file yet
        self.gone = Ranges()  # seqs of segments that were dropped whole because every record was deleted
        self.lost = Ranges()  # seqs that power loss may have taken before they were synced
        self.missed: dict[int, int] = {}  # by first seq of these: about how many records that were
        self.recent_tags = RecentTags()
        self.damaged: list[Damaged] = []

    # ---- records come ----

    def add(self, blob: Blob, count: int, content: int, *, untagged: bool) -> None:
        """They became visible."""
        self.count += count
        self.bytes += content
        self.tail.append(blob)
        if not untagged:
            self.recent_tags.note(blob.data, blob.start, blob.end)

    def replay(self, blob: Blob) -> None:
        """From the log. What is left of a topic is counted at the end."""
        self.tail.append(blob)
        self.tail_dead.update(self.gone.within(blob.first_seq, blob.last_seq))
        self.recent_tags.note(blob.data, blob.start, blob.end)

    # ---- records go ----

    def remove(self, records: int, content: int) -> None:
        """So much of the live records is live no longer."""
        self.count -= records
        self.bytes -= content

    def mark(self, info: SegmentInfo, ranges: list[tuple[int, int]], dead_bytes: int) -> None:
        """These seqs of a segment are dead."""
        at = info.first_seq
        marks, unmarked = self.marks.get(at), self.unmarked.get(at)
        if marks is None:
            marks = self.marks[at] = Ranges()
        if unmarked is None:
            unmarked = self.unmarked[at] = Ranges()
        for first, last in ranges:
            info.dead += marks.add(first, last)
            unmarked.add(first, last)
        info.dead_bytes += dead_bytes

    def marked(self, first_seq: int, ranges: Ranges) -> bool:
        """The .del file of a segment has these; True if no segment waits for marks any more."""
        left = self.unmarked.get(first_seq)
        if left is None:
            return False
        rest = [part for first, last in left for part in ranges.missing(first, last)]
        if rest:
            self.unmarked[first_seq] = Ranges(rest)
        else:
            del self.unmarked[first_seq]
        return not self.unmarked

    def drop(self, info: SegmentInfo) -> None:
        """A segment whose records are all dead."""
        self.gone.add(info.first_seq, info.last_seq)
        self.segments.remove(info)
        self.marks.pop(info.first_seq, None)
        self.unmarked.pop(info.first_seq, None)

    def forget_gone(self, earliest: int, head: int) -> None:
        """Below every floor nobody asks any more."""
        self.gone = Ranges(self.gone.within(earliest, head))

    def keep_tail_dead(self, first: int, last: int) -> None:
        self.tail_dead = Ranges(self.tail_dead.within(first, last))

    def lose(self, first: int, last: int, about: int) -> None:
        """Power loss may have taken these; about so many of them were given out."""
        before = dict(self.missed)
        self.lost.add(first, last)
        self.missed = {a: sum(n for at, n in before.items() if a <= at <= b) for a, b in self.lost}
        start = next(a for a, b in self.lost if a <= first <= b)
        self.missed[start] += about

    def forgive(self, first: int, last: int) -> list[tuple[int, int]]:
        """Somebody knows of this loss and goes on: it is told to nobody any more. What of it there was."""
        forgiven = self.lost.within(first, last)
        left = [part for a, b in self.lost for part in Ranges(forgiven).missing(a, b)]
        self.lost = Ranges(left)
        self.missed = {a: min(self.missed.get(a, b - a + 1), b - a + 1) for a, b in left}
        self.gone.update(forgiven)
        return forgiven

    # ---- questions ----

    @property
    def oldest_end_ms(self) -> int:
        """When the newest record of the oldest segment or blob was written; now or later if there is none."""
        if self.segments:
            return self.segments[0].last_ts
        blob = self.tail.first()
        return MAX_SEQ if blob is None else blob.last_ts

    @property
    def active(self) -> SegmentInfo | None:
        """The segment that takes further records."""
        return self.segments[-1] if self.segments and not self.segments[-1].sealed else None

    def missed_within(self, first: int, last: int) -> int:
        """About how many records power loss took there."""
        return sum(self.missed.get(a, 0) for a, b in self.lost if a <= last and first <= b)

    def is_damaged(self, first: int, last: int) -> bool:
        return any(place.first_seq <= last and first <= place.last_seq for place in self.damaged)

    def unexplained(self, first: int, last: int) -> list[tuple[int, int]]:
        """Of seqs that nothing holds, those that no delete, no loss of power and no known damage accounts for."""
        damaged = [(place.first_seq, place.last_seq) for place in self.damaged]
        return Ranges([*self.gone, *self.lost, *damaged]).missing(first, last) if first <= last else []

    def note_damaged(self, first: int, last: int, where: str) -> None:
        """Once, however often it is found."""
        known = Ranges((place.first_seq, place.last_seq) for place in self.damaged)
        if first <= last and known.missing(first, last):
            self.damaged.append(Damaged(first, last, where))
