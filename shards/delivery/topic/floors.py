"""What of a topic is gone, from the front. Invariant: 1 <= evict_floor <= earliest, and each only goes forward.

`earliest` is the first live record; eviction, TTL and deletes move it. `evict_floor` is moved by cap and TTL only: a
reader behind it has missed something and is told.
"""

from __future__ import annotations

from typing import NamedTuple

from topicd.model import GapReason, Tombstone

_LOSSES_KEPT = 64


class Loss(NamedTuple):
    """Involuntary removal: seqs from the previous loss's floor up to below `floor` went for this reason."""

    floor: int
    reason: str
    records: int


class Floors:
    __slots__ = ("delete_below", "earliest", "evict_floor", "losses")

    def __init__(self) -> None:
        self.earliest = 1
        self.evict_floor = 1
        self.losses: list[Loss] = []
        self.delete_below = 0  # a delete took everything below

    def __repr__(self) -> str:
        return f"Floors(earliest={self.earliest}, evict_floor={self.evict_floor}, delete_below={self.delete_below})"

    @property
    def missed_from(self) -> int:
        """Nothing is missed below: caps, TTL or deletes took it."""
        return max(self.earliest, self.evict_floor, self.delete_below)

    def advance(self, earliest: int) -> None:
        """The first live record is this one now."""
        self.earliest = earliest

    def delete_through(self, last: int) -> None:
        self.delete_below = max(self.delete_below, last + 1)

    def note_loss(self, floor: int, reason: str, records: int) -> None:
        """Cap or TTL removed everything below floor. Old entries merge, so the list stays short."""
        if floor <= self.evict_floor:
            return
        self.evict_floor = floor
        if self.losses and self.losses[-1].reason == reason:
            self.losses[-1] = Loss(floor, reason, self.losses[-1].records + records)
        else:
            self.losses.append(Loss(floor, reason, records))
        if len(self.losses) > _LOSSES_KEPT:
            first, second = self.losses[:2]
            reason = first.reason if first.reason == second.reason else GapReason.MIXED.value
            self.losses[:2] = [Loss(second.floor, reason, first.records + second.records)]

    def replay_losses(self, evict_floor: int, losses: list[Loss]) -> None:
        """As the log says; a snapshot may be ahead of it."""
        if evict_floor > self.evict_floor:
            self.evict_floor = evict_floor
            self.losses = losses

    def tombstone(self, from_seq: int, visible: int) -> Tombstone | None:
        """What a reader behind the evict floor has missed."""
        if from_seq + 1 >= self.evict_floor:
            return None
        reasons = {loss.reason for loss in self.losses if loss.floor > from_seq + 1}
        reason = reasons.pop() if len(reasons) == 1 else GapReason.MIXED.value
        gap_to = self.evict_floor - 1
        return Tombstone(from_seq + 1, gap_to, reason, gap_to - from_seq, self.earliest, visible)
