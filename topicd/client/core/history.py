"""Reading a stretch of a topic, to its head at most, without the I/O: where the reading stands, and what to ask next.

What lies at the cursor decides: a gap, an error or an empty topic is told by the daemon itself, so the first page is
asked of it. Behind that come sealed segments where they can be had (see sealed), and the rest through `read` again.
"""

from __future__ import annotations

from dataclasses import replace

from topicd.client.core.arguments import Match, cursor, tag_match
from topicd.client.core.batch import Batch
from topicd.client.core.sealed import Stretch
from topicd.limits import FETCH_RECORDS_MAX, MAX_SEQ

FIRST_READ = 256  # records: enough to learn where the topic stands, little where files can be had


class Reading:
    def __init__(self, topic: str, from_seq: int, to_seq: int | None, match: Match) -> None:
        self.match = tag_match(match)
        self._wanted = Stretch(topic, cursor(from_seq), MAX_SEQ if to_seq is None else cursor(to_seq), self.match)
        self._size = FIRST_READ
        self._caught_up = False

    @property
    def from_seq(self) -> int:
        return self._wanted.from_seq

    @property
    def over(self) -> bool:
        return self._caught_up or self._wanted.from_seq >= self._wanted.to_seq

    @property
    def limit(self) -> int:
        """How many records to read now."""
        return min(self._size, self._wanted.to_seq - self._wanted.from_seq)

    @property
    def rest(self) -> Stretch:
        return self._wanted

    def page(self, found: Batch) -> Batch:
        """What is wanted of a page. So many records may reach further than as many seqs, where some were deleted."""
        part = found.up_to(self._wanted.to_seq)
        self._advance(part)
        self._caught_up = part.caught_up
        self._size = FETCH_RECORDS_MAX  # behind the last sealed segment
        return part

    def segment(self, batch: Batch) -> Batch:
        self._advance(batch)
        return batch

    def _advance(self, batch: Batch) -> None:
        self._wanted = replace(self._wanted, from_seq=batch.next_from_seq)


def worth_yielding(batch: Batch) -> bool:
    return len(batch) > 0 or batch.tombstone is not None
