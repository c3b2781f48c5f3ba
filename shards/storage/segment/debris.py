"""What a direct write that failed has left of itself. Promise: when it returns, the topic's files end where its last
segment says, durably: nothing there is taken for a record by a later write or a later start."""

from __future__ import annotations

from pathlib import Path

from topicd.disk.fs import Fs, tmp_path
from topicd.frames import FrameFlag
from topicd.shards.storage.segment.index import ENTRY_BYTES, FLAGS_AT, entry_at, offset_at
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.names import DATA, DEL, IDX, TAGS
from topicd.shards.storage.segment.places import list_files, resolve

_MORE = int(FrameFlag.MORE)


def clear_debris(fs: Fs, topic_dir: Path, last: SegmentInfo | None) -> None:
    """last: the topic's newest segment, if it has one."""
    if not fs.exists(topic_dir):
        return
    for listed in list_files(fs, topic_dir):
        if last is None or listed.first_seq > last.first_seq:
            fs.unlink(listed.path)
    if last is not None and not last.sealed:
        seal = resolve(topic_dir, last.first_seq).file(TAGS)
        for path in (seal, tmp_path(seal)):
            fs.unlink(path, missing_ok=True)
        _cut(fs, resolve(topic_dir, last.first_seq).file(DATA), last.data_bytes)
        _cut(fs, resolve(topic_dir, last.first_seq).file(IDX), last.count * ENTRY_BYTES)
    fs.sync_dir(topic_dir)


def cut_open_batch(fs: Fs, topic_dir: Path, active: SegmentInfo) -> SegmentInfo | None:
    """The newest segment without the batch at its end whose last frame never came; None: nothing is left of it."""
    index = resolve(topic_dir, active.first_seq).read_index(fs)
    count = active.count
    while count and index[(count - 1) * ENTRY_BYTES + FLAGS_AT] & _MORE:
        count -= 1
    if count == active.count:
        return active
    if not count:
        for part in (DATA, IDX, DEL):
            fs.unlink(resolve(topic_dir, active.first_seq).file(part), missing_ok=True)
        fs.sync_dir(topic_dir)
        return None
    active.data_bytes, active.last_ts, active.count = offset_at(index, count), entry_at(index, count - 1).ts, count
    # The index first: it never names what the data has not.
    _cut(fs, resolve(topic_dir, active.first_seq).file(IDX), count * ENTRY_BYTES)
    _cut(fs, resolve(topic_dir, active.first_seq).file(DATA), active.data_bytes)
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
