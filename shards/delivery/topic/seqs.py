"""The seqs of a topic. Invariant: stored <= visible <= head.

Records up to `stored` are in segments, those above up to `visible` in the tail; what lies above `visible` is under way.
"""

from __future__ import annotations

FIRST_BLOCK = 1_024
_BLOCK_MAX = 1 << 20


class Seqs:
    __slots__ = ("block", "head", "last_ts", "reserved", "reserving", "stored", "visible")

    def __init__(self) -> None:
        self.head = 0
        self.visible = 0
        self.stored = 0
        self.last_ts = 0  # of the newest record, visible or under way
        self.reserved = 0  # a mark in the log says: seqs up to here may have been given out
        self.reserving = 0  # the mark under way
        self.block = FIRST_BLOCK // 2

    # ---- records ----

    def give_out(self, count: int, ts: int) -> None:
        """The next seqs, to a batch that is on its way."""
        self.head += count
        self.last_ts = ts

    def commit(self, last: int) -> None:
        self.visible = last

    def roll_back(self, first: int) -> None:
        """What was given out from first on was never visible: it is given out again."""
        self.head = min(self.head, first - 1)

    def store(self, last: int) -> None:
        """A checkpoint has everything up to last in segments; or, without segments, nobody can read it any more."""
        self.stored = max(self.stored, last)

    # ---- at a start ----

    def load(self, last: int, last_ts: int) -> None:
        """Segments end at last."""
        self.stored = self.head = self.visible = last
        self.last_ts = max(self.last_ts, last_ts)

    def reach(self, last: int) -> None:
        """Records up to last are in the tail, or are known to be missing."""
        self.head = self.visible = last

    # ---- seqs promised ahead ----

    def reserve(self, through: int) -> None:
        """A mark that is in the log already."""
        self.reserved = self.reserving = max(self.reserved, through)

    def next_mark(self) -> int:
        """How far the next mark shall reach; blocks grow with the topic's pace, so that a busy one pays one sync in
        many batches. 0: the one that is there, or under way, is far enough ahead."""
        if self.head + self.block // 2 <= self.reserving:
            return 0
        self.block = min(max(2 * self.block, 2 * (self.head - self.reserved)), _BLOCK_MAX)
        self.reserving = self.head + self.block
        return self.reserving

    def mark_stored(self, through: int) -> None:
        self.reserved = max(self.reserved, through)

    def mark_failed(self) -> None:
        self.reserving = self.reserved

    def return_marks(self) -> None:
        """Nobody needs what was promised ahead: the next write asks anew, and waits for it."""
        self.reserved = self.reserving = self.head
        self.block = FIRST_BLOCK // 2

    def forget_marks(self) -> None:
        self.reserved = self.reserving = 0
