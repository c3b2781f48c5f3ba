"""Which records of a topic have a newer one with the same tag, from the tag tables of sealed segments. Promise: only
records that live count, on either side; memory holds the tags of one look, at most `most` of them, and one table.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import NamedTuple

from topicd.disk.fs import Fs
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.tags import TagTable


class Alive(NamedTuple):
    """What of a segment counts: seqs from earliest on that are not dead."""

    earliest: int
    dead: Ranges

    def of(self, seqs: list[int]) -> list[int]:
        return [seq for seq in seqs if seq >= self.earliest and seq not in self.dead]


class Newest(NamedTuple):
    tags: frozenset[bytes]  # that records of this segment have
    superseded: Ranges  # records of this segment that have a newer one in it
    more: bool  # there are tags behind these


def newest_in(fs: Fs, topic_dir: Path, first_seq: int, alive: Alive, start: int, most: int) -> Newest:
    """Tags number start to start + most of a segment."""
    table = TagTable(fs, topic_dir, first_seq).open()
    tags: set[bytes] = set()
    superseded: list[int] = []
    end = min(start + most, table.tag_count)
    for number in range(start, end):
        seqs = alive.of(table.seqs(number))
        if seqs:
            tags.add(table.key(number))
            superseded += seqs[:-1]
    return Newest(frozenset(tags), _ranges(superseded), end < table.tag_count)


def superseded_in(fs: Fs, topic_dir: Path, first_seq: int, alive: Alive, tags: Set[bytes]) -> Ranges:
    """Records of an older segment that have one of these tags."""
    table = TagTable(fs, topic_dir, first_seq).open()
    found: list[int] = []
    for number in range(table.tag_count):
        if table.key(number) in tags:
            found += alive.of(table.seqs(number))
    return _ranges(found)


def _ranges(seqs: list[int]) -> Ranges:
    return Ranges((seq, seq) for seq in sorted(seqs))
