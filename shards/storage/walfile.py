"""The bytes of WAL files: groups of frames. Promise: a group is read whole or not at all, and an end of the log is
told from damage in its middle. Bytes: docs/formats.md.

Every group says up to which LSN the log was synced when it was written. A bad place below such a mark was
durable once, so it is damage and is reported; a bad place above every mark is the torn tail of a crash and is
cut. A place that the disk does not give may hold anything: it is damage wherever it lies, nothing behind it is
cut, and no file that has one at its end is written again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from topicd import paths
from topicd._native import core
from topicd._native.interface import Run
from topicd.disk.fs import File, Fs, no_file
from topicd.disk.loading import BadRange, Content, PartLoaded, load
from topicd.limits import KIB, WAL_FILE_MAX

MAGIC = 0x31475754  # b"TWG1"
GROUP = struct.Struct(
    "<"  # little-endian, unpadded
    "I"  # magic
    "I"  # length      bytes of frames behind this header
    "Q"  # lsn         position of this header in the life of the shard
    "Q"  # synced_lsn  everything below was synced before this group was written
    "I"  # run         number of the daemon's start that wrote it
    "I"  # zero
    "Q"  # xxh3_64     of the fields above, seeded with wal_seed of FORMAT
)
_SUMMED = struct.Struct("<IIQQII")
_MAGIC_BYTES = struct.pack("<I", MAGIC)
_CHUNK = 512 * KIB  # groups of a chunk together, if it is not a single larger one


class Group(NamedTuple):
    lsn: int
    start: int  # offset of the frames in the file
    end: int
    synced_lsn: int
    run: int


def group_header(length: int, lsn: int, synced_lsn: int, run: int, seed: int) -> bytes:
    summed = _SUMMED.pack(MAGIC, length, lsn, synced_lsn, run, 0)
    return summed + core.xxh3_64(summed, seed).to_bytes(8, "little")


def parse_group(view: memoryview, at: int, lsn: int, limit: int, seed: int) -> Group | None:
    """The group whose header stands at offset `at`, if it is one, belongs there and ends by `limit`."""
    start = at + GROUP.size
    if start > limit:
        return None
    magic, length, found, synced_lsn, run, _, checksum = GROUP.unpack_from(view, at)
    if magic != MAGIC or found != lsn or start + length > limit:
        return None
    if core.xxh3_64(view[at : at + _SUMMED.size], seed) != checksum:
        return None
    return Group(lsn, start, start + length, synced_lsn, run)


def is_ours(view: memoryview, at: int, seed: int) -> bool:
    """Is that the header of a group of this directory, whichever place it was written for?"""
    head = view[at : at + GROUP.size]
    if len(head) < GROUP.size:
        return False
    magic, *_, checksum = GROUP.unpack(head)
    return bool(magic == MAGIC and core.xxh3_64(head[: _SUMMED.size], seed) == checksum)


def lsn_at(group: Group, offset: int) -> int:
    """The LSN of a byte of the group, by its offset in the file."""
    return group.lsn + GROUP.size + offset - group.start


def fresh_lsn(run: int) -> int:
    """Where a log begins of which there is no file: above all that earlier runs may have written, so that nothing of
    them is taken for a part of it, and whoever knows of an older part misses it."""
    return (run - 1) << 40


class WalFile(NamedTuple):
    first_lsn: int
    path: Path


def list_files(fs: Fs, directory: Path) -> list[WalFile]:
    found = ((paths.parse_wal_file(name), name) for name in fs.listdir(directory))
    return sorted(WalFile(lsn, directory / name) for lsn, name in found if lsn is not None)


class WalDamage(NamedTuple):
    """Bytes that were durable once and can no longer be trusted."""

    path: Path
    first_lsn: int
    last_lsn: int
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what} at LSN {self.first_lsn} to {self.last_lsn}"


class ShardEnd:
    """Where a shard's log ends, and what lies behind the end."""

    def __init__(self) -> None:
        self.first_lsn = 0  # of the oldest file
        self.lsn = 0
        self.synced_lsn = 0
        self.file: WalFile | None = None
        self.unknown: list[WalFile] = []  # files that hold something, and no group: nobody may write over them
        self.torn = False  # something of the log lies behind the end: cut it before writing
        self.unread = False  # the last file may hold more than can be read: the log goes on in another one
        self.bad_sectors: list[tuple[WalFile, BadRange]] = []  # wherever they lie, also where the log has nothing
        self.damage: list[WalDamage] = []


class LogChunk(NamedTuple):
    """Neighbouring groups of one run in one file, not too many to be in memory at once."""

    run: int
    path: Path
    file: File  # open as long as somebody holds it
    content: Content  # of the whole file, if the reader reads whole files; else the headers of groups are there
    groups: list[Group]

    @property
    def view(self) -> memoryview:
        return self.content.view

    def let_go(self) -> LogChunk:
        """Without the bytes: a log may be larger than the memory."""
        return self._replace(content=_NO_CONTENT)

    def loaded(self) -> LogChunk:
        """With the bytes of its groups again; offsets are those of the view, as before."""
        start, end = self.groups[0].start - GROUP.size, self.groups[-1].end
        found = load(self.file, start, end)
        # Cut off meanwhile: what is missing is zero, and reported frame by frame.
        view = found.view if len(found.view) == end - start else memoryview(bytes(found.view).ljust(end - start, b"\0"))
        moved = [group._replace(start=group.start - start, end=group.end - start) for group in self.groups]
        bad = [part._replace(start=part.start - start, end=part.end - start) for part in found.bad]
        return self._replace(content=Content(view, bad), groups=moved)

    def bad_in(self, group: Group) -> bool:
        """Could some of its bytes not be read?"""
        return self.content.touches(group.start, group.end)


_NO_CONTENT = Content(memoryview(b""), [])


class LogReader:
    """Reads one shard's files once, front to back. After the iteration `end` is known. `whole`: with every byte, those
    that no group needs as well; otherwise what is needed to find the groups, and `LogChunk.loaded` reads theirs."""

    def __init__(self, fs: Fs, directory: Path, seed: int, *, up_to_lsn: int | None = None, whole: bool = True) -> None:
        self._fs = fs
        self._directory = directory
        self._seed = seed
        self._up_to = up_to_lsn
        self._whole = whole
        self.end = ShardEnd()

    def chunks(self) -> Iterator[LogChunk]:
        """Valid groups in order; frames inside are checked by scan_group(). One file is in memory at a time, unless the
        caller holds on to its chunks."""
        files = list_files(self._fs, self._directory)
        self.end.first_lsn = files[0].first_lsn if files else 0
        for number, file in enumerate(files):
            limit_lsn = files[number + 1].first_lsn if number + 1 < len(files) else None
            if self._up_to is not None and file.first_lsn >= self._up_to and number:
                break
            if number and file.first_lsn > self.end.lsn:
                self._note_damage(file, file.first_lsn, "bytes missing before this file")
            if no_file(self._fs, file.path):
                self._note_unknown(file, 1, last=limit_lsn is None)
                continue
            handle = self._fs.open(file.path)
            if (size := handle.size()) > WAL_FILE_MAX:  # no file of ours, and more than memory may hold
                handle.close()
                self._note_unknown(file, size, last=limit_lsn is None)
                continue
            part = PartLoaded(handle)
            if self._whole:
                part.want(0, part.size)
            yield from self._file_chunks(file, handle, part, limit_lsn)

    def _file_chunks(self, file: WalFile, handle: File, part: PartLoaded, limit_lsn: int | None) -> Iterator[LogChunk]:
        content = part.content
        view = content.view
        self.end.bad_sectors += [(file, part) for part in content.bad]
        self.end.unread = False
        limit = len(view) if limit_lsn is None else min(len(view), limit_lsn - file.first_lsn)
        if self._up_to is not None:
            limit = min(limit, self._up_to - file.first_lsn)
        self.end.file = file
        self.end.lsn = file.first_lsn
        at = 0
        while True:
            groups, at = self._neighbours(file, part, at, limit)
            yield from _by_run(file.path, handle, content, groups)
            self.end.lsn = file.first_lsn + at
            if at >= limit:
                return
            # Not a group. Is there one behind it that knows this place was synced?
            following = self._next_group(file, part, at + 1, limit)
            if following is None:
                if content.touches(at, min(at + GROUP.size, limit)):
                    self._note_unread(file, content, at, limit)
                else:
                    self._end_in(file, view, at, last=limit_lsn is None)
                return  # the next file's first LSN shows whether anything is missing
            start = following.start - GROUP.size
            unread = content.touches(at, start)
            if following.synced_lsn <= self.end.lsn and not unread:
                self.end.torn = True
                return
            self._note_damage(file, following.lsn, content.problem if unread else "unreadable group")
            at = start

    def _note_unread(self, file: WalFile, content: Content, at: int, limit: int) -> None:
        """No group follows that could be found. If what stands here was read, and is none, the log ends here."""
        if not content.touches(at, min(at + GROUP.size, limit)):
            return
        end = min(next(part.end for part in content.bad if part.end > at), limit)
        self._note_damage(file, file.first_lsn + end, f"{content.problem}, so the log may have gone on there")
        self.end.unread = True
        self.end.lsn = file.first_lsn + limit

    def _end_in(self, file: WalFile, view: memoryview, at: int, *, last: bool) -> None:
        """No group stands at `at` or behind it: the end of the log, or of what can be read of it."""
        if at == 0 and any(view[: GROUP.size]) and not is_ours(view, 0, self._seed):
            # A file gets its name when it is free: zeros, or old groups. This one is neither.
            self._note_unknown(file, len(view), last=last)
        elif last and self._up_to is not None and self.end.lsn < self._up_to:
            self._note_damage(file, self._up_to, "its writer was further")
            self.end.lsn = self._up_to

    def _note_unknown(self, file: WalFile, size: int, *, last: bool) -> None:
        self.end.file, self.end.lsn = file, file.first_lsn
        self.end.unknown.append(file)
        if last:
            self._note_damage(file, file.first_lsn + size, "holds no group that can be read")
            self.end.lsn = file.first_lsn + size

    def _neighbours(self, file: WalFile, part: PartLoaded, at: int, limit: int) -> tuple[list[Group], int]:
        groups = []
        while (group := self._group_at(file, part, at, limit)) is not None:
            groups.append(group)
            at = group.end
            self.end.synced_lsn = max(self.end.synced_lsn, group.synced_lsn)
        return groups, at

    def _group_at(self, file: WalFile, part: PartLoaded, at: int, limit: int) -> Group | None:
        part.want(at, at + GROUP.size)
        return parse_group(part.content.view, at, file.first_lsn + at, limit, self._seed)

    def _next_group(self, file: WalFile, part: PartLoaded, at: int, limit: int) -> Group | None:
        while (at := part.find(_MAGIC_BYTES, at, limit)) != -1:
            group = self._group_at(file, part, at, limit)
            if group is not None:
                return group
            at += 1
        return None

    def _note_damage(self, file: WalFile, next_lsn: int, what: str) -> None:
        self.end.damage.append(WalDamage(file.path, self.end.lsn, next_lsn - 1, what))


def _by_run(path: Path, file: File, content: Content, groups: list[Group]) -> Iterator[LogChunk]:
    first = 0
    for i in range(1, len(groups) + 1):
        if i == len(groups) or groups[i].run != groups[first].run or groups[i].end - groups[first].start > _CHUNK:
            yield LogChunk(groups[first].run, path, file, content, groups[first:i])
            first = i


class GroupScan(NamedTuple):
    runs: list[Run]
    problem: str  # why the rest of the group is not valid, or ""
    bad_at: int  # file offset of the first bad frame


def scan_group(view: memoryview, group: Group) -> GroupScan:
    scan = core.scan_frames(view, group.start, group.end)
    return GroupScan(scan.runs, scan.problem, scan.end)


def missing_part(directory: Path, end: ShardEnd, durable_lsn: int | None) -> WalDamage | None:
    """What is not there of a log that was durable up to that LSN once, and not absorbed since. None: not known."""
    if durable_lsn is None:
        return None
    if end.file is None:
        return WalDamage(directory, 0, durable_lsn, "the log is gone, its last file was at least")
    if end.first_lsn > durable_lsn:
        return WalDamage(directory, durable_lsn, end.first_lsn - 1, "the log begins too late, missing is what was")
    if end.lsn < durable_lsn:
        return WalDamage(end.file.path, end.lsn, durable_lsn - 1, "the log ends too early, missing is what was")
    return None


def find_end(fs: Fs, directory: Path, seed: int, up_to_lsn: int | None = None) -> ShardEnd:
    """Where to go on writing. Groups above the last synced LSN are checked by frame; the first bad one is torn.
    up_to_lsn: the end, if its writer is known to have stopped there; then nothing is searched behind it."""
    reader = LogReader(fs, directory, seed, up_to_lsn=up_to_lsn, whole=False)
    tail: list[tuple[WalFile, LogChunk]] = []
    for chunk in reader.chunks():
        file = reader.end.file
        if file is None:
            continue
        tail = [entry for entry in tail if entry[1].groups[-1].lsn >= reader.end.synced_lsn]
        tail.append((file, chunk.let_go()))
    end = reader.end
    for file, kept in tail:
        chunk = kept.loaded()
        for group in chunk.groups:
            if chunk.bad_in(group):
                continue  # perhaps whole on the disk: damage, not torn
            if group.lsn >= end.synced_lsn and scan_group(chunk.view, group).problem:
                end.file, end.lsn, end.torn = file, group.lsn, True
                return end
    return end


def cut(fs: Fs, directory: Path, end: ShardEnd) -> int:
    """Remove what lies behind the end, durably; the number of bytes cut. Nothing below a sync mark is ever cut."""
    if end.file is None or not end.torn:
        return 0
    removed = 0
    for file in list_files(fs, directory):
        if file.first_lsn > end.file.first_lsn:
            removed += fs.size(file.path)
            fs.unlink(file.path)
    handle = fs.open(end.file.path, write=True)
    try:
        keep = end.lsn - end.file.first_lsn
        removed += handle.size() - keep
        handle.truncate(keep)
        handle.sync()
    finally:
        handle.close()
    fs.sync_dir(directory)
    return removed
