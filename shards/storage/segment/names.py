"""The files of a segment, by part. The names themselves are made in topicd.paths."""

from __future__ import annotations

from pathlib import Path

from topicd import paths
from topicd.disk.fs import Fs

DATA = "data"  # frames
IDX = "idx"  # one entry per seq
TAGS = "tags"  # the seal: header, what is gone, tag table
DEL = "del"  # deletion marks
CUT = "cut"  # what recovery cut off and did not dare to throw away


def segment_file(topic_dir: Path, first_seq: int, part: str) -> Path:
    return topic_dir / paths.segment_name(first_seq, part)


def segment_path(topic_dir: Path | str, first_seq: int, part: str) -> str:
    """The same to be opened at once: making a Path takes longer than opening the file."""
    return f"{topic_dir}/{paths.segment_name(first_seq, part)}"


def topic_id_of(topic_dir: Path) -> int | None:
    """The topic whose frames lie there; None for a directory that is not named by topic id."""
    parsed = paths.parse_topic_dir(topic_dir.name)
    return parsed[0] if parsed else None


def map_file(fs: Fs, path: Path) -> memoryview:
    """The file's bytes as they are now."""
    file = fs.open(path)
    try:
        return file.map()
    finally:
        file.close()


def read_index(fs: Fs, topic_dir: Path, first_seq: int) -> bytes:
    """The whole index; a missing one is empty."""
    try:
        file = fs.open(segment_file(topic_dir, first_seq, IDX))
    except FileNotFoundError:
        return b""
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
