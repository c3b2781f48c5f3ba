"""Removing whole segments. Promise: after a crash at any point a segment is there with its deletion marks,
or is being removed, or is gone; deleted records never return.

Order, each step durable before the next: seal and index (it reads as unsealed, and is sealed again if the
crash comes here), data (it is gone), marks (they must outlive the data). A lone seal or index therefore
never is the trace of a drop but of lost data, and is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topicd.disk.fs import Fs
from topicd.shards.storage.segment.names import DATA, DEL, IDX, TAGS
from topicd.shards.storage.segment.places import resolve

_STEPS = ((TAGS, IDX), (DATA,), (DEL,))


def drop_segment(fs: Fs, topic_dir: Path, first_seq: int) -> None:
    drop_segments(fs, topic_dir, [first_seq])


def drop_segments(fs: Fs, topic_dir: Path, first_seqs: Sequence[int]) -> None:
    """Remove the segments; may be repeated after an OSError. Three directory syncs however many they are."""
    for parts in _STEPS:
        for first_seq in first_seqs:
            for part in parts:
                fs.unlink(resolve(topic_dir, first_seq).file(part), missing_ok=True)
        fs.sync_dir(topic_dir)
