"""Data files that are not where they belong: exchanged, renamed, copied from elsewhere. Promise: the first frame of a
segment's data is the one its name says, or the file goes to quarantine, under the name that its frames say; from there
it comes back when the place it belongs to has lost its data. Nothing in it is changed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from topicd import paths
from topicd._native import core
from topicd.disk.fs import Fs, no_file
from topicd.disk.loading import is_unreadable
from topicd.limits import MAX_FRAME, MAX_SEQ
from topicd.paths import DataDir
from topicd.shards.storage.quarantine import Quarantine
from topicd.shards.storage.ranges import Ranges
from topicd.shards.storage.segment.index import GONE, flagged
from topicd.shards.storage.segment.names import DATA, IDX, TAGS, topic_id_of
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.reindex import APPEND
from topicd.shards.storage.segment.tags import Seal

_READ_AHEAD = 4096


class Owner(NamedTuple):
    """Whose record a data file begins with."""

    topic_id: int
    first_seq: int

    def __str__(self) -> str:
        return f"records of topic {paths.topic_dir_name(self.topic_id)} from seq {self.first_seq} on"


def quarantine_of(fs: Fs, topic_dir: Path) -> Quarantine:
    return Quarantine(fs, DataDir(topic_dir.parent.parent))


def owner_of(fs: Fs, path: Path) -> Owner | None:
    """None: it does not begin with a frame that can be believed, so nothing can be said."""
    file = fs.open(path)
    try:
        head = file.pread(_READ_AHEAD, 0)
        size = int.from_bytes(head[:4], "little") + 4
        if len(head) < 4 or size > MAX_FRAME:
            return None
        frame = head[:size] if size <= len(head) else head + file.pread(size - len(head), len(head))
    except OSError as error:
        if is_unreadable(error):
            return None  # whoever needs these bytes reports it
        raise
    finally:
        file.close()
    runs = core.scan_frames(frame, 0, len(frame)).runs
    if len(frame) != size or not runs or runs[0].type != APPEND:
        return None
    return Owner(runs[0].topic_id, runs[0].first_seq)


def stranger(fs: Fs, topic_dir: Path, first: int, parts: set[str], seal: Seal | None, before: int) -> Owner | None:
    """Whose records lie in the data file of that segment, if they are not the segment's own. before: the first seq of
    the next segment, or any number above all; a seal knows better where its segment ends."""
    found = owner_of(fs, resolve(topic_dir, first).file(DATA))
    if found is None:
        return None
    mine = topic_id_of(topic_dir)
    if mine is not None and found.topic_id != mine:
        return found
    if found.first_seq == first:
        return None
    # A rewrite may have taken the first records away.
    if seal is not None:
        gone, before = seal.gone, first + seal.count
    elif TAGS in parts or IDX not in parts:
        gone = Ranges([(first, before - 1)])  # it was sealed, or is being dropped, and nobody knows what is gone
    else:
        gone = Ranges(flagged(resolve(topic_dir, first).read_index(fs), first, GONE))
    taken = gone.within(first, MAX_SEQ)
    if taken and taken[0][0] == first and first < found.first_seq < before and found.first_seq <= taken[0][1] + 1:
        return None
    return found


def send_home(fs: Fs, topic_dir: Path, first: int, owner: Owner) -> Path:
    """The data file of that segment into quarantine, as what it is."""
    data = DataDir(topic_dir.parent.parent)
    home = resolve(data.topic(owner.topic_id), owner.first_seq).file(DATA)
    return quarantine_of(fs, topic_dir).move(resolve(topic_dir, first).file(DATA), home)


def bring_back(fs: Fs, topic_dir: Path, first: int, seal: Seal | None) -> bool:
    """A segment without data: is it in quarantine? Then it is back in its place, durably."""
    home = resolve(topic_dir, first).file(DATA)
    kept = quarantine_of(fs, topic_dir).place(home)
    if not fs.exists(kept) or no_file(fs, kept):
        return False
    if seal is not None and fs.size(kept) != seal.data_bytes:
        return False
    expected = first
    if seal is not None:
        living = seal.gone.missing(first, first + seal.count - 1)
        expected = living[0][0] if living else first
    if owner_of(fs, kept) != Owner(topic_id_of(topic_dir) or 0, expected):
        return False
    fs.rename(kept, home)
    fs.sync_dir(topic_dir)
    fs.sync_dir(kept.parent)
    return True
