"""What is known of a topic's segments without reading their records: the nouns storage hands to its users."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from topicd.shards.storage.ranges import Ranges


class Lies(IntEnum):
    """Where the frames of a segment are. A plain file here is read at once; all others are slower."""

    HERE = 0  # .data
    PACKED = 1  # .data.z
    COLD = 2  # .data in the cold directory
    COLD_PACKED = 3  # .data.z in the cold directory

    @property
    def cold(self) -> bool:
        return self in (Lies.COLD, Lies.COLD_PACKED)

    @property
    def packed(self) -> bool:
        return self in (Lies.PACKED, Lies.COLD_PACKED)


@dataclass(slots=True)
class SegmentInfo:
    """Owned by the shard of the topic, which updates the active segment's numbers after each checkpoint."""

    first_seq: int
    count: int  # seqs covered; those that are dead, gone or damaged included
    data_bytes: int  # size of .data
    first_ts: int
    last_ts: int
    created_ms: int
    sealed: bool
    dead: int = 0  # seqs deleted, whether their bytes are still there or not
    dead_bytes: int = 0  # bytes in .data of deleted records: what a rewrite would free
    lies: Lies = Lies.HERE
    file_bytes: int = 0  # of the file that is not .data here, as far as it is known

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.count - 1


class SegmentDamage(NamedTuple):
    """Stored bytes that cannot be believed. first_seq..last_seq are the records concerned."""

    path: Path
    first_seq: int
    last_seq: int
    what: str
    repaired: bool = False  # nothing was lost: derived data was built anew

    def __str__(self) -> str:
        state = "repaired" if self.repaired else "lost"
        return f"{self.path}: {self.what} (seqs {self.first_seq}..{self.last_seq}, {state})"


class Cut(NamedTuple):
    """A tail taken off the active segment although valid frames lay behind its first bad one.

    Unsynced writes may reach the disk out of order, and then the WAL still has first_seq..last_seq. If replay
    does not bring them back they were durable once, and this is damage; `kept` holds the bytes.
    """

    path: Path
    first_seq: int
    last_seq: int
    kept: Path
    indexed: int  # last seq that the index names: up to there it was durable


@dataclass(slots=True)
class LoadedSegments:
    """What a topic's directory holds."""

    segments: list[SegmentInfo] = field(default_factory=list)  # ascending
    marks: dict[int, Ranges] = field(default_factory=dict)  # first_seq of segment -> dead seqs in it
    damage: list[SegmentDamage] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)  # seqs between segments that none covers
    cuts: list[Cut] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)  # segments of which something is left in the cold directory only
    stranded: list[SegmentInfo] = field(default_factory=list)  # those whose frames must come back from there first
    torn_bytes: int = 0  # tail of a crash, cut off the active segment
