"""What a direct write that failed has left of itself. Promise: when it returns, the topic's files end where its last
segment says, durably: nothing there is taken for a record by a later write or a later start."""

from __future__ import annotations

from pathlib import Path

from topicd import paths
from topicd.disk.fs import TMP_SUFFIX, Fs, tmp_path
from topicd.frames import FrameFlag
from topicd.shards.storage.segment.index import ENTRY_BYTES, FLAGS_AT, entry_at, offset_at
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.names import CUT, DATA, DEL, IDX, TAGS, read_index, segment_file

_MORE = int(FrameFlag.MORE)


def clear_debris(fs: Fs, topic_dir: Path, last: SegmentInfo | None) -> None:
    """last: the topic's newest segment, if it has one."""
    if not fs.exists(topic_dir):
        return
    for name in fs.listdir(topic_dir):
        parsed = paths.parse_segment(name.removesuffix(TMP_SUFFIX))
        if parsed is not None and parsed[1] != CUT and (last is None or parsed[0] > last.first_seq):
            fs.unlink(topic_dir / name)
    if last is not None and not last.sealed:
        seal = segment_file(topic_dir, last.first_seq, TAGS)
        for path in (seal, tmp_path(seal)):
            fs.unlink(path, missing_ok=True)
        _cut(fs, segment_file(topic_dir, last.first_seq, DATA), last.data_bytes)
        _cut(fs, segment_file(topic_dir, last.first_seq, IDX), last.count * ENTRY_BYTES)
    fs.sync_dir(topic_dir)


def cut_open_batch(fs: Fs, topic_dir: Path, active: SegmentInfo) -> SegmentInfo | None:
    """The newest segment without the batch at its end whose last frame never came; None: nothing is left of it."""
    index = read_index(fs, topic_dir, active.first_seq)
    count = active.count
    while count and index[(count - 1) * ENTRY_BYTES + FLAGS_AT] & _MORE:
        count -= 1
    if count == active.count:
        return active
    if not count:
        for part in (DATA, IDX, DEL):
            fs.unlink(segment_file(topic_dir, active.first_seq, part), missing_ok=True)
        fs.sync_dir(topic_dir)
        return None
    active.data_bytes, active.last_ts, active.count = offset_at(index, count), entry_at(index, count - 1).ts, count
    # The index first: it never names what the data has not.
    _cut(fs, segment_file(topic_dir, active.first_seq, IDX), count * ENTRY_BYTES)
    _cut(fs, segment_file(topic_dir, active.first_seq, DATA), active.data_bytes)
    return active


def _cut(fs: Fs, path: Path, size: int) -> None:
    """Its end is where it should be, and known to the disk; a file that is missing has nothing behind its end."""
    try:
        file = fs.open(path, write=True)
    except FileNotFoundError:
        return
    try:
        if file.size() > size:
            file.truncate(size)
            file.sync()
    finally:
        file.close()
