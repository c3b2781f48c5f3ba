"""The parts of a segment, and whose it is. Where its files lie: places.py; how they are called: topicd.paths."""

from __future__ import annotations

from pathlib import Path

from topicd import paths

DATA = "data"  # frames
PACKED = "data.z"  # the same frames, compressed: packed.py
COLD = "cold"  # the frames lie in the cold directory: cold.py
IDX = "idx"  # one entry per seq
TAGS = "tags"  # the seal: header, what is gone, tag table
DEL = "del"  # deletion marks
CUT = "cut"  # what recovery cut off and did not dare to throw away


def topic_id_of(topic_dir: Path) -> int | None:
    """The topic whose frames lie there; None for a directory that is not named by topic id."""
    parsed = paths.parse_topic_dir(topic_dir.name)
    return parsed[0] if parsed else None
