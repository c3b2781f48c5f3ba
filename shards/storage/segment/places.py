"""Where the files of a segment lie. Promise: no other module joins a topic's directory and the name of a segment's
file, or lists a topic's directory for segments; whoever needs a file resolves the segment and asks for it by part.

Frames may lie in `.data`, in `.data.z` beside it, or in either in the cold directory, where `.cold` says so. Whoever
opens DATA gets them from the first of these that is there; the frames are the same wherever they are.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

from topicd import paths
from topicd.disk.cold import ColdDir, ColdMissing, recorded
from topicd.disk.fs import TMP_SUFFIX, File, Fs
from topicd.disk.loading import Content, load
from topicd.errors import FormatError
from topicd.limits import MAX_BATCH_RECORDS, SEGMENT_RECORDS_MAX
from topicd.paths import DataDir
from topicd.shards.storage.segment.index import ENTRY_BYTES
from topicd.shards.storage.segment.info import Lies
from topicd.shards.storage.segment.names import COLD, CUT, DATA, IDX, PACKED
from topicd.shards.storage.segment.packed import open_packed
from topicd.shards.storage.segment.pointer import Pointer, load_pointer

T = TypeVar("T")

_INDEX_MAX = (SEGMENT_RECORDS_MAX + MAX_BATCH_RECORDS) * ENTRY_BYTES


class SegmentPlace(NamedTuple):
    """One segment; its files may be there or not."""

    directory: Path | str
    first_seq: int

    def file(self, part: str) -> Path:
        return Path(self.directory, paths.segment_name(self.first_seq, part))

    def text(self, part: str) -> str:
        """The same to be opened at once: making a Path takes longer than opening the file."""
        return f"{self.directory}/{paths.segment_name(self.first_seq, part)}"

    def open(self, fs: Fs, part: str) -> File:
        """To be read. Frames are looked for everywhere, and may come from a slow disk."""
        try:
            return fs.open(self.text(part))
        except FileNotFoundError:
            if part != DATA:
                raise
        return self._open_elsewhere(fs)

    def _open_elsewhere(self, fs: Fs) -> File:
        missing = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.text(DATA))
        # Twice: frames that come back are in their old place before they leave the new one.
        for path in (self.text(PACKED), None, self.text(DATA)):
            try:
                if path is None:
                    return self.open_cold(fs, load_pointer(fs, self.file(COLD)))
                return fs.open(path) if path.endswith(DATA) else open_packed(fs, path)
            except FileNotFoundError as error:
                if path is None and error.filename != str(self.file(COLD)):
                    missing = error  # the one that should be there
        raise missing

    def cold_dir(self, fs: Fs) -> ColdDir:
        cold = recorded(fs, DataDir(Path(self.directory).parent.parent))
        if cold is None:
            raise ColdMissing(self.directory, "nobody knows where the cold directory is: meta/cold.bin is missing")
        return cold

    def cold_file(self, cold: ColdDir, part: str) -> Path:
        return cold.topic(self.directory) / paths.segment_name(self.first_seq, part)

    def open_cold(self, fs: Fs, pointer: Pointer) -> File:
        """ColdMissing if the disk is not there; FileNotFoundError if it is, and the file is not."""
        cold = self.cold_dir(fs)
        path = self.cold_file(cold, pointer.part)
        try:
            return fs.open(path) if pointer.part == DATA else open_packed(fs, path)
        except FileNotFoundError:
            cold.check(fs)
            raise

    def frames(self, fs: Fs, lies: Lies) -> Path:
        """Where they should be; for people."""
        if not lies.cold:
            return self.file(PACKED if lies.packed else DATA)
        try:
            return self.cold_file(self.cold_dir(fs), PACKED if lies.packed else DATA)
        except (OSError, FormatError):
            return self.file(COLD)

    def load(self, fs: Fs, part: str) -> Content:
        """The bytes of a part as they are now."""
        file = self.open(fs, part)
        try:
            return load(file)
        finally:
            file.close()

    def lies(self, fs: Fs) -> Lies | None:
        """Where its frames are, without asking the cold disk; None: nowhere."""
        for part, found in ((DATA, Lies.HERE), (PACKED, Lies.PACKED)):
            if fs.exists(self.file(part)):
                return found
        try:
            pointer = load_pointer(fs, self.file(COLD))
        except FileNotFoundError:
            return None
        return None if pointer.dropped else lies_of(pointer)

    def load_index(self, fs: Fs) -> Content:
        """The index; a missing one is empty. Of one that is longer than any index, no more than the longest has."""
        try:
            file = self.open(fs, IDX)
        except FileNotFoundError:
            return Content(memoryview(b""), [])
        try:
            return load(file, 0, min(file.size(), _INDEX_MAX))
        finally:
            file.close()

    def read_index(self, fs: Fs) -> bytes:
        """The index up to the first entry that cannot be read; a missing one is empty."""
        found = self.load_index(fs)
        return bytes(found.view[: found.bad[0].start] if found.bad else found.view)


def lies_of(pointer: Pointer) -> Lies:
    return Lies.COLD if pointer.part == DATA else Lies.COLD_PACKED


class Listed(NamedTuple):
    """A file of a segment, found in a topic's directory."""

    topic_dir: Path
    name: str
    first_seq: int
    part: str
    unfinished: bool  # under the temporary name that a crash left

    @property
    def path(self) -> Path:
        return self.topic_dir / self.name


def resolve(topic_dir: Path | str, first_seq: int) -> SegmentPlace:
    return SegmentPlace(topic_dir, first_seq)


def cold_frames(fs: Fs, pointer: Listed) -> Path | None:
    """The file in the cold directory that a `.cold` file speaks of; None if the segment is being dropped."""
    found = load_pointer(fs, pointer.path)
    if found.dropped:
        return None
    place = resolve(pointer.topic_dir, pointer.first_seq)
    return place.cold_file(place.cold_dir(fs), found.part)


def list_files(fs: Fs, topic_dir: Path) -> list[Listed]:
    """Every file of a segment but those that hold what recovery cut off."""
    found = []
    for name in fs.listdir(topic_dir):
        parsed = paths.parse_segment(name.removesuffix(TMP_SUFFIX))
        if parsed is not None and parsed[1] != CUT:
            found.append(Listed(topic_dir, name, *parsed, name.endswith(TMP_SUFFIX)))
    return found


def list_segments(fs: Fs, topic_dir: Path) -> dict[int, set[str]]:
    """The parts that each segment has, by first seq, in order."""
    found: dict[int, set[str]] = {}
    for listed in list_files(fs, topic_dir):
        if not listed.unfinished:
            found.setdefault(listed.first_seq, set()).add(listed.part)
    return dict(sorted(found.items()))


def by_segment(listing: Mapping[str, T]) -> dict[int, dict[str, T]] | None:
    """What a look at a topic's directory found of each segment, by first seq and part. None: there is something else
    in it than whole segments' files and the topic's label."""
    found: dict[int, dict[str, T]] = {}
    for name, file in listing.items():
        parsed = paths.parse_segment(name)
        if parsed is not None:
            found.setdefault(parsed[0], {})[parsed[1]] = file
        elif name != paths.TOPIC_NAME_FILE:
            return None
    return found


def is_segment_name(name: str) -> bool:
    """Is that the name of a file of a segment, whichever part, also of what was cut off?"""
    return paths.parse_segment(name) is not None
