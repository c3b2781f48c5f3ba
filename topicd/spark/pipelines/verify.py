"""Is what a topic still has in its archive? Promise: every file that holds records which are still in the topic is read
back whole, is what the manifest says of it (size, SHA-256, number and range of its records), and has each of those
records byte for byte; every other file of the topic is there with its size; and the topic serves as many records as the
daemon counts, so that none is deleted that could not be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from topicd.client.blocking.client import Client
from topicd.client.core.answers import TopicState
from topicd.errors import StorageCorrupt
from topicd.spark.pipelines.manifest import ArchivedTopic, Part
from topicd.spark.pipelines.parts import Row, check_part, check_size, live_rows, read_rows

_NOTHING = "nothing was deleted"


class Tile(NamedTuple):
    """A file and the seqs it answers for: from behind its predecessor to its own last one."""

    topic: str
    topic_id: int
    first: int
    last: int
    part: Part | None  # None: a stretch without records


class Compared(NamedTuple):
    """How many live records of a topic are in the archive."""

    topic: str
    records: int


def tiles_of(archived: ArchivedTopic) -> Iterator[Tile]:
    first = archived.first_seq
    for part in archived.parts:
        yield Tile(archived.topic, archived.topic_id, first, part.last_seq, part)
        first = part.last_seq + 1
    if first <= archived.last_seq:
        yield Tile(archived.topic, archived.topic_id, first, archived.last_seq, None)


def tiles_to_compare(root: Path, archived: ArchivedTopic, state: TopicState) -> list[Tile]:
    """Those that may have live records; the files of the others are looked for."""
    found = []
    for tile in tiles_of(archived):
        if tile.last >= state.earliest_seq and state.count:
            found.append(tile)
        elif tile.part is not None:
            check_size(root / tile.part.path, tile.part.bytes)
    return found


def verify_tile(client: Client, root: Path, tile: Tile) -> Compared:
    where = tile.part.path if tile.part is not None else "no file"
    archived = _checked_rows(root, tile)
    at = next(archived, None)
    compared = 0
    for row in live_rows(client.history(tile.topic, tile.first - 1, to_seq=tile.last, epoch=tile.topic_id)):
        while at is not None and at[0] < row[0]:
            at = next(archived, None)  # deleted or expired since
        if at != row:
            raise StorageCorrupt(
                f"record {row[0]} of topic {tile.topic!r} is not in the archive as it is in the topic ({where}); "
                f"{_NOTHING}"
            )
        compared += 1
    for _ in archived:
        pass  # to the end: it is checked on the way
    return Compared(tile.topic, compared)


def _checked_rows(root: Path, tile: Tile) -> Iterator[Row]:
    """The rows of the tile's file, which must be those that the manifest tells of."""
    part = tile.part
    if part is None:
        return
    path = root / part.path
    check_part(path, part.bytes, part.sha256)
    first, last, count = 0, 0, 0
    for row in read_rows(path):
        if row[0] <= last:
            raise StorageCorrupt(f"{path} has seq {row[0]} behind {last}; {_NOTHING}")
        first, last, count = first or row[0], row[0], count + 1
        yield row
    if (first, last, count) != (part.first_seq, part.last_seq, part.count):
        raise StorageCorrupt(
            f"{path} has {count} records, seqs {first} to {last}; the archive's manifest says {part.count}, "
            f"seqs {part.first_seq} to {part.last_seq}; {_NOTHING}"
        )


def check_counts(archived: ArchivedTopic, before: TopicState, after: TopicState, compared: int) -> None:
    """Records that the daemon counts and does not serve can be in no comparison. What is newer than the archive counts
    as if all of it were there; what is deleted meanwhile lowers the count only."""
    counted = min(state.count - (state.head_seq - archived.last_seq) for state in (before, after))
    if compared < counted:
        raise StorageCorrupt(
            f"topic {archived.topic!r} has {counted} records up to seq {archived.last_seq} by the daemon's count, but "
            f"serves {compared}; {_NOTHING} (topicctl pipeline run loss-audit says which)"
        )
