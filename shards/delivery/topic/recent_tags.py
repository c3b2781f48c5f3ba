"""Tags of the records that no sealed segment knows yet, so that a delete by tag never scans."""

from __future__ import annotations

from bisect import bisect_left

from topicd._native.interface import Buffer
from topicd.frames import core
from topicd.model import TagMatch


class RecentTags:
    __slots__ = ("_seqs",)

    def __init__(self) -> None:
        self._seqs: dict[bytes, list[int]] = {}

    def __len__(self) -> int:
        return len(self._seqs)

    def note(self, frames: Buffer, start: int, end: int) -> None:
        """Neighbouring frames, behind all that were noted before."""
        for tag, seq in core.frame_tags(frames, start, end):
            self._seqs.setdefault(tag, []).append(seq)

    def matching(self, match: TagMatch, first: int, last: int) -> list[int]:
        """Ascending."""
        found = (
            seqs[bisect_left(seqs, first) : bisect_left(seqs, last + 1)]
            for tag, seqs in self._seqs.items()
            if match.matches(tag)
        )
        return sorted(seq for part in found for seq in part)

    def forget(self, through: int) -> None:
        """A segment was sealed, its table answers from now on; or its records are gone."""
        self._seqs = {tag: kept for tag, seqs in self._seqs.items() if (kept := seqs[bisect_left(seqs, through + 1) :])}

    def clear(self) -> None:
        self._seqs.clear()
