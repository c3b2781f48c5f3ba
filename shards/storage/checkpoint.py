"""Appending to segments in the background. Promise: a job that is `stored` survives power loss; one that is
not may be run again as it was, or with more bytes behind, and nothing is doubled.

Order: data written, data synced, names synced, index written; seals come last, all together. A later job of the
same topic starts when the earlier one is durable, so a segment that has a successor is whole. After a failed sync
the kernel may have dropped the bytes: only a job that writes them again makes them durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from topicd._native.interface import Buffer
from topicd.errors import StorageCorrupt, StorageFailed, TopicdError
from topicd.limits import MIB
from topicd.shards.storage.deletions import pack_marks, write_marks
from topicd.shards.storage.fs import File, Fs, tmp_path, write_unsynced
from topicd.shards.storage.index import ENTRY_BYTES
from topicd.shards.storage.names import DATA, IDX, segment_path
from topicd.shards.storage.seal import Sealed, Seals, Written, prepare_seal, seal_segment
from topicd.shards.storage.segment import Damage, SegmentInfo

_LONG = 4 * MIB  # a write from this on goes to the disk piece by piece
_PIECE = 1 * MIB
# Above this many files one sync of the filesystem is cheaper than a sync of each.
SINGLE_SYNCS = 16
SINGLE_SEALS = 4


class SealJob(NamedTuple):
    created_ms: int


class AppendJob(NamedTuple):
    topic_dir: Path
    first_seq: int  # of the segment
    data_offset: int
    data: Sequence[Buffer]  # frames, end to end; may be empty when only a seal is asked for
    index: bytes  # type: ignore[assignment]  # their entries
    index_offset: int
    create: bool = False
    seal: SealJob | None = None
    direct: bool = False  # no log has these records: they are not stored before their index is synced


class MarkJob(NamedTuple):
    topic_dir: Path
    first_seq: int  # of the segment
    ranges: Sequence[tuple[int, int]]
    again: bool = False  # an earlier job for this segment failed


@dataclass(slots=True)
class JobResult:
    """What became of a job."""

    stored: bool = False  # data is durable, index is written (or: the marks are durable)
    sealed: SegmentInfo | None = None
    error: OSError | TopicdError | None = None  # also set when it is stored but could not be sealed
    damage: list[Damage] = field(default_factory=list)  # found while sealing

    @property
    def errno(self) -> int | None:
        return self.error.errno if isinstance(self.error, OSError) else None

    @property
    def ok(self) -> bool:
        return self.error is None


J = TypeVar("J", AppendJob, MarkJob)


@dataclass(slots=True)
class _Work(Generic[J]):
    """A job under way."""

    job: J
    result: JobResult = field(default_factory=JobResult)
    file: File | None = None

    @property
    def root(self) -> Path:
        return self.job.topic_dir.parent

    def run(self, step: Callable[..., None], *args: Any) -> None:
        """One step; a failure ends this job and no other."""
        if self.result.error is not None:
            return
        try:
            step(*args)
        except (OSError, TopicdError) as error:
            self.result.error = error

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


def run_checkpoint(fs: Fs, jobs: Sequence[AppendJob]) -> list[JobResult]:
    """Store every job; results in the same order. Jobs of one topic must come in order of seq."""
    works = [_Work(job) for job in jobs]
    failed: set[Path] = set()
    for wave in _waves(works):
        for work in wave:
            if work.job.topic_dir in failed:
                message = f"{work.job.topic_dir}: an earlier part of this checkpoint failed"
                work.result.error = StorageFailed(message)
        _run_wave(fs, [work for work in wave if work.result.ok])
        failed.update(work.job.topic_dir for work in wave if not work.result.stored)
    _seal_all(fs, [work for work in works if work.result.ok and work.job.seal is not None])
    for work in works:
        if work.job.direct and not work.result.ok:
            work.result.stored = False  # a seal that failed may have left its index unsynced
    return [work.result for work in works]


def run_marks(fs: Fs, jobs: Sequence[MarkJob]) -> list[JobResult]:
    """Append deletion marks to many segments with few syncs; results in the same order."""
    works = [_Work(job) for job in jobs]
    _write_and_sync(fs, works, _write_marks)
    for work in works:
        work.result.stored = work.result.ok
    return [work.result for work in works]


def _waves(works: Iterable[_Work[AppendJob]]) -> list[list[_Work[AppendJob]]]:
    """The first job of each topic, then the second of each that has one, and so on."""
    waves: list[list[_Work[AppendJob]]] = []
    seen: dict[Path, int] = {}
    for work in works:
        turn = seen.get(work.job.topic_dir, 0)
        seen[work.job.topic_dir] = turn + 1
        if turn == len(waves):
            waves.append([])
        waves[turn].append(work)
    return waves


def _run_wave(fs: Fs, works: list[_Work[AppendJob]]) -> None:
    _write_and_sync(fs, works, _write_data)
    if len(works) <= SINGLE_SYNCS:
        # Else the sync of the filesystem took the names along.
        _sync_names(fs, works)
    for work in works:
        work.run(_write_index, fs, work.job)
        work.result.stored = work.result.ok


def _write_and_sync(fs: Fs, works: list[_Work[J]], write: Callable[[Fs, _Work[J]], None]) -> None:
    single = len(works) <= SINGLE_SYNCS
    try:
        for work in works:
            work.run(write, fs, work)
            if not single:
                work.close()
        if single:
            for work in works:
                if work.file is not None:
                    work.run(work.file.sync_data)
        else:
            _for_each_root(works, fs.sync_filesystem)
    finally:
        for work in works:
            work.close()


def _sync_names(fs: Fs, works: list[_Work[AppendJob]]) -> None:
    created = [work for work in works if work.job.create and work.result.ok]
    _for_each_root(created, fs.sync_dir)
    for work in created:
        work.run(fs.sync_dir, work.job.topic_dir)


def _for_each_root(works: list[_Work[J]], step: Callable[[Path], None]) -> None:
    """One step for all works below the same directory."""
    below: dict[Path, list[_Work[J]]] = {}
    for work in works:
        below.setdefault(work.root, []).append(work)
    for root, mine in below.items():
        _for_all(mine, step, root)


def _for_all(works: list[_Work[J]], step: Callable[[Path], None], path: Path) -> None:
    """One step for them all: its failure is everybody's."""
    if not works:
        return
    try:
        step(path)
    except OSError as error:
        for work in works:
            work.result.error = work.result.error or error


def _write_data(fs: Fs, work: _Work[AppendJob]) -> None:
    job = work.job
    if job.create:
        fs.mkdir(job.topic_dir)
    work.file = fs.open(segment_path(job.topic_dir, job.first_seq, DATA), write=True, create=job.create)
    _put(work.file, job, DATA, job.data, job.data_offset)


def _write_index(fs: Fs, job: AppendJob) -> None:
    file = fs.open(segment_path(job.topic_dir, job.first_seq, IDX), write=True, create=True)
    try:
        _put(file, job, IDX, [job.index], job.index_offset)
        if job.direct and job.seal is None:
            file.sync_data()
    finally:
        file.close()


def _put(file: File, job: AppendJob, part: str, content: Sequence[Buffer], offset: int) -> None:
    size = file.size()
    if size < offset:
        path = segment_path(job.topic_dir, job.first_seq, part)
        message = f"{path}: has {size} bytes where {offset} were stored"
        raise StorageCorrupt(message, segment=path, first_seq=job.first_seq, last_seq=job.first_seq)
    length = sum(len(piece) for piece in content)
    if size > offset + length:
        # Left by an attempt that failed; a seal would count it.
        file.truncate(offset + length)
    if length >= _LONG:
        _write_long(file, content, offset)
    elif length:
        file.pwrite(content, offset)


def _write_long(file: File, content: Sequence[Buffer], offset: int) -> None:
    """The disk begins with the first piece while the last is not copied yet: the sync behind it waits less."""
    piece: list[Buffer] = []
    length = 0
    for number, part in enumerate(content, 1):
        piece.append(part)
        length += len(part)
        if length >= _PIECE or number == len(content):
            file.pwrite(piece, offset)
            file.begin_sync(offset, length)
            offset, piece, length = offset + length, [], 0


def _write_marks(fs: Fs, work: _Work[MarkJob]) -> None:
    job = work.job
    packed = pack_marks(job.first_seq, job.ranges)
    work.file = write_marks(fs, job.topic_dir, job.first_seq, packed, again=job.again)


def _seal_all(fs: Fs, works: list[_Work[AppendJob]]) -> None:
    """A seal is three syncs. Many of them, as a flood of one topic makes them, have one of the filesystem instead, and
    one of each directory."""
    if len(works) <= SINGLE_SEALS:
        for work in works:
            work.run(_seal, fs, work)
        return
    made: dict[int, Seals] = {}
    for number, work in enumerate(works):
        work.run(_prepare, fs, work, made, number)
    _for_each_root([work for work in works if work.result.ok], fs.sync_filesystem)
    for number, work in enumerate(works):
        if number in made:
            work.run(fs.rename, tmp_path(made[number].path), made[number].path)
    for topic_dir in dict.fromkeys(work.job.topic_dir for work in works):
        mine = [work for work in works if work.job.topic_dir == topic_dir and work.result.ok]
        _for_all(mine, fs.sync_dir, topic_dir)
    for number, work in enumerate(works):
        if work.result.ok:
            _note_sealed(work, made[number].sealed)
        elif number in made:
            with suppress(OSError):
                fs.unlink(tmp_path(made[number].path), missing_ok=True)


def _seal(fs: Fs, work: _Work[AppendJob]) -> None:
    _note_sealed(work, seal_segment(fs, work.job.topic_dir, work.job.first_seq, **_seal_facts(work.job)))


def _prepare(fs: Fs, work: _Work[AppendJob], made: dict[int, Seals], number: int) -> None:
    job = work.job
    made[number] = prepare_seal(fs, job.topic_dir, job.first_seq, **_seal_facts(job), synced=False)
    write_unsynced(fs, made[number].path, made[number].parts)


def _seal_facts(job: AppendJob) -> dict[str, Any]:
    last_seq = job.first_seq + (job.index_offset + len(job.index)) // ENTRY_BYTES - 1
    # What an attempt that failed may have left behind was cut off when this one wrote.
    whole = Written(job.data, job.index) if job.data and not job.data_offset else None
    return {"created_ms": job.seal.created_ms if job.seal else None, "last_seq": last_seq, "written": whole}


def _note_sealed(work: _Work[AppendJob], sealed: Sealed) -> None:
    work.result.sealed, work.result.damage = sealed.info, sealed.damage
