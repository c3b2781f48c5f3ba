"""What lies in a channel's directory, looked at without changing anything. Promise: what a crash tore off is told from
damage; both are reported with their offsets, nothing is guessed.

A file that only grows reads as zeros where a write has not reached the disk, and behind its last message where room was
reserved (ahead.py). So a bad message at the end is torn if the file is too short for it or bytes of it were never
written; anything else is damage. With good messages behind it a hole is damage too, except in a segment whose sends
were synced: there it can only be part of a send that had not returned when the power failed, and so is everything
behind it; that is cut as well, and kept beside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from topicd._native.channel import core
from topicd.disk.fs import Fs
from topicd.disk.loading import load_file
from topicd.filechannel.layout import (
    HEADER_BYTES,
    MAX_MESSAGE,
    MESSAGE_HEAD,
    PACKED_SUFFIX,
    PACKING_SUFFIX,
    Header,
    parse_segment,
    segment_path,
    unpack_header,
)
from topicd.filechannel.segment import next_good
from topicd.limits import KIB

_SECTOR = 512
_ZEROS = 64 * KIB  # looked at in one go


@dataclass(slots=True)
class Segment:
    """One file of the channel, from offset to offset; the last plain one ends behind its last good message."""

    segment_id: int
    begin: int
    end: int
    packed: bool
    file_bytes: int
    synced: bool = False
    headless: bool = False  # nothing in it can be believed


class Damage(NamedTuple):
    begin: int
    end: int
    reason: str


class Torn(NamedTuple):
    """The last segment goes on behind its end with bytes that are no message."""

    segment_id: int
    begin: int
    bytes: int
    keep: bool  # messages that make sense lie in it


@dataclass
class Survey:
    segments: list[Segment] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)  # files that stand for nothing
    torn: Torn | None = None
    appendable: bool = False  # the last segment may be written on
    channel_id: bytes | None = None
    next_id: int = 0

    @property
    def begin(self) -> int:
        return self.segments[0].begin if self.segments else 0

    @property
    def end(self) -> int:
        return self.segments[-1].end if self.segments else 0


def look(fs: Fs, directory: Path, published: int | None = None) -> Survey:
    """published: every message up to there was written by a process of this boot, so behind it nothing is owed."""
    found = Survey()
    for name, path in _files(fs, directory, found):
        _add(fs, found, name, path)
    while found.segments and found.segments[-1].headless and found.segments[-1].file_bytes <= HEADER_BYTES:
        # Created, and the power went before its header was there: no message can be in it.
        unborn = found.segments.pop()
        found.leftovers.append(segment_path(directory, unborn.segment_id, PACKED_SUFFIX if unborn.packed else ""))
    _close_ranks(found)
    if found.segments and not found.segments[-1].packed:
        _look_at_tail(fs, directory, found, published)
    return found


def _files(fs: Fs, directory: Path, found: Survey) -> list[tuple[int, Path]]:
    """One file for each id, in order; a packed file that is whole takes precedence over the plain one."""
    plain: dict[int, Path] = {}
    packed: dict[int, Path] = {}
    for name in fs.listdir(directory):
        parsed = parse_segment(name)
        if parsed is None:
            continue
        if parsed.suffix == PACKING_SUFFIX:
            found.leftovers.append(directory / name)
        else:
            (packed if parsed.suffix == PACKED_SUFFIX else plain)[parsed.segment_id] = directory / name
    found.next_id = max([*plain, *packed], default=-1) + 1
    for segment_id in sorted(plain.keys() & packed.keys()):
        whole = _header(fs, packed[segment_id], segment_id) is not None
        found.leftovers.append((plain if whole else packed).pop(segment_id))
    return sorted((plain | packed).items())


def _header(fs: Fs, path: Path, segment_id: int) -> Header | None:
    file = fs.open(path)
    try:
        header = unpack_header(file.pread(HEADER_BYTES, 0), packed=path.suffix == PACKED_SUFFIX)
    except OSError as error:
        error.filename = error.filename or str(path)
        raise
    finally:
        file.close()
    return header if header is not None and header.segment_id == segment_id else None


def _add(fs: Fs, found: Survey, segment_id: int, path: Path) -> None:
    size = fs.size(path)
    header = _header(fs, path, segment_id)
    if header is None:
        at = found.end
        end = at + max(size - HEADER_BYTES, 0)
        found.segments.append(Segment(segment_id, at, end, path.suffix == PACKED_SUFFIX, size, headless=True))
        return
    packed = header.end is not None
    end = header.end if header.end is not None else header.begin + size - HEADER_BYTES
    found.channel_id = found.channel_id or header.channel_id
    if header.channel_id != found.channel_id:
        found.damage.append(Damage(header.begin, end, f"{path.name} belongs to another channel"))
    found.segments.append(Segment(segment_id, header.begin, end, packed, size, header.synced))


def _close_ranks(found: Survey) -> None:
    """Each segment begins where the one before ends; what is missing between them is damage."""
    for before, after in pairwise(found.segments):
        if before.end > after.begin or before.headless:
            # Without a header its size says little; else bytes lie behind the end that nobody published.
            before.end = after.begin
        elif before.end < after.begin:
            missing = after.segment_id - before.segment_id - 1
            what = f"{missing} segment files are missing" if missing else f"segment.{before.segment_id} is too short"
            what = "a segment file is missing" if missing == 1 else what
            found.damage.append(Damage(before.end, after.begin, what))
    for segment in found.segments:
        if segment.headless:
            reason = f"the header of segment.{segment.segment_id} is damaged"
            found.damage.append(Damage(segment.begin, segment.end, reason))


def _look_at_tail(fs: Fs, directory: Path, found: Survey, published: int | None) -> None:
    last = found.segments[-1]
    if last.headless:
        return
    found.appendable = True
    content = load_file(fs, segment_path(directory, last.segment_id))
    view, size = content.view, len(content.view)
    start = HEADER_BYTES
    if published is not None and last.begin <= published <= last.end:
        start += published - last.begin
    else:
        published = None
    if content.bad:
        # Nobody knows what is behind it: nothing is cut, and what comes goes to another file.
        at, _ = _walk(view, start, content.bad[0].start, last, found, believed=published is not None)
        last.end = last.begin + size - HEADER_BYTES
        found.damage.append(Damage(last.begin + at - HEADER_BYTES, last.end, content.problem))
        found.appendable = False
        return
    at, keep = _walk(view, start, size, last, found, believed=published is not None)
    last.end, last.file_bytes = last.begin + at - HEADER_BYTES, at
    if at < size:
        found.torn = Torn(last.segment_id, last.end, size - at, keep)


def _walk(view: memoryview, at: int, size: int, last: Segment, found: Survey, *, believed: bool) -> tuple[int, bool]:
    """Where the good messages end, and whether what is behind must be kept."""
    good = at
    while at < size:
        _, at, fault = core.scan_messages(view, at, size, MAX_MESSAGE)
        good = at
        if not fault:
            break
        if believed:
            return good, False
        written = _written_end(view, at, size)
        if written == at:
            return good, False  # nothing but zeros
        behind = next_good(view, at, size)
        if behind >= size:
            behind = max(written, _its_end(view, at, size))
            if fault == "short" or view[behind - 1] == 0 or _never_written(view, at, behind):
                return good, fault == "checksum"
        elif last.synced and _never_written(view, at, _behind_zeros(view, behind, size)):
            return good, True
        shift = last.begin - HEADER_BYTES
        found.damage.append(Damage(at + shift, behind + shift, f"a message fails its {fault}"))
        at = good = behind
    return good, False


def _written_end(view: memoryview, start: int, end: int) -> int:
    """Behind the last byte that is not zero."""
    while start < end:
        first = max(start, end - _ZEROS)
        kept = bytes(view[first:end]).rstrip(b"\0")
        if kept:
            return first + len(kept)
        end = first
    return start


def _its_end(view: memoryview, at: int, size: int) -> int:
    """Where the message ends if its length is right."""
    if size - at < MESSAGE_HEAD:
        return size
    length = int.from_bytes(view[at : at + 4], "big")
    return at + MESSAGE_HEAD + length if length <= min(MAX_MESSAGE, size - at - MESSAGE_HEAD) else at


def _behind_zeros(view: memoryview, at: int, size: int) -> int:
    """A hole may reach into the next message, which is found all the same: its length begins with zeros."""
    while at < size and view[at] == 0:
        at += 1
    return at


def _never_written(view: memoryview, start: int, end: int) -> bool:
    """Zeros up to the end of a sector."""
    edges = range((start // _SECTOR + 1) * _SECTOR, end + 1, _SECTOR)
    return any(view[edge - 1] == 0 for edge in edges)
