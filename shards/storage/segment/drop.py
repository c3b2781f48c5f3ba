"""Removing whole segments. Promise: after a crash at any point a segment is there with its deletion marks,
or is being removed, or is gone; deleted records never return.

Order, each step durable before the next: seal and index (it reads as unsealed, and is sealed again if the
crash comes here), data (it is gone), marks (they must outlive the data). A lone seal or index therefore
never is the trace of a drop but of lost data, and is reported. Of a segment in the cold directory `.cold` says before
all that it is being dropped, and goes after the data there (relocate.finish_drop), which may take until that disk is
back; nobody reads it meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topicd.disk.fs import Fs
from topicd.shards.storage.segment.names import COLD, DATA, DEL, IDX, PACKED, TAGS
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.pointer import load_pointer, save_pointer

_STEPS = ((TAGS, IDX), (DATA, PACKED), (DEL,))


def drop_segment(fs: Fs, topic_dir: Path, first_seq: int) -> None:
    drop_segments(fs, topic_dir, [first_seq])


def drop_segments(fs: Fs, topic_dir: Path, first_seqs: Sequence[int]) -> list[int]:
    """Remove the segments; may be repeated after an OSError. Three directory syncs however many they are. Those whose
    data is in the cold directory, and still to be removed there."""
    cold = [first_seq for first_seq in first_seqs if fs.exists(resolve(topic_dir, first_seq).file(COLD))]
    for first_seq in cold:
        _say_dropped(fs, resolve(topic_dir, first_seq).file(COLD))
    for parts in _STEPS:
        for first_seq in first_seqs:
            for part in parts:
                if part != DEL or first_seq not in cold:
                    fs.unlink(resolve(topic_dir, first_seq).file(part), missing_ok=True)
        fs.sync_dir(topic_dir)
    return cold


def _say_dropped(fs: Fs, path: Path) -> None:
    pointer = load_pointer(fs, path)
    if not pointer.dropped:
        save_pointer(fs, path, pointer._replace(dropped=True))
