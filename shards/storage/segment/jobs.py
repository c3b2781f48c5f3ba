"""Appending to segments in the background. Promise: a job that is `stored` survives power loss; one that is
not may be run again as it was, or with more bytes behind, and nothing is doubled.

Order: data written, data synced, names synced, index written; seals come last, all together. A later job of the
same topic starts when the earlier one is durable, so a segment that has a successor is whole. After a failed sync
the kernel may have dropped the bytes: only a job that writes them again makes them durable.

The file work is said in steps (topicd/disk/steps.py) and done in a few calls, whatever the number of files: the thread
that runs this shares the interpreter's lock with an event loop, and each call of its own would have to get it back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from topicd._native.interface import Buffer
from topicd.disk.fs import TMP_SUFFIX, File, Fs, tmp_path
from topicd.disk.steps import Chain, Failure, MakeDir, Put, Rename, Step, SyncDir
from topicd.errors import StorageCorrupt, StorageFailed, TopicdError
from topicd.paths import TOPIC_NAME_FILE
from topicd.shards.storage.segment.deletions import pack_marks, write_marks
from topicd.shards.storage.segment.index import ENTRY_BYTES
from topicd.shards.storage.segment.info import SegmentDamage, SegmentInfo
from topicd.shards.storage.segment.names import DATA, IDX
from topicd.shards.storage.segment.places import resolve
from topicd.shards.storage.segment.seal import Seals, Written, prepare_seal

# Above this many files one sync of the filesystem is cheaper than a sync of each.
SINGLE_SYNCS = 16
SINGLE_SEALS = 4
SINGLE_SEGMENTS = 3  # of one topic


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
    label: Buffer = b""  # whose directory it is, for one that may be new


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
    damage: list[SegmentDamage] = field(default_factory=list)  # found while sealing

    @property
    def errno(self) -> int | None:
        return self.error.errno if isinstance(self.error, OSError) else None

    @property
    def ok(self) -> bool:
        return self.error is None


J = TypeVar("J", AppendJob, MarkJob)


class _Work(Generic[J]):
    """A job under way."""

    __slots__ = ("file", "job", "place", "result", "segment")

    def __init__(self, job: J) -> None:
        self.job: J = job
        # Text: making a Path takes longer than opening a file.
        self.place = str(job.topic_dir)
        self.segment = resolve(self.place, job.first_seq).text("")  # and which of its files
        self.result = JobResult()
        self.file: File | None = None

    def run(self, step: Callable[..., None], *args: Any) -> None:
        """One step; a failure ends this job and no other."""
        if self.result.error is not None:
            return
        try:
            step(*args)
        except (OSError, TopicdError) as error:
            self.result.error = error

    def fail(self, step: Step, failure: Failure) -> None:
        error: OSError | TopicdError | None = failure.error
        if error is None and isinstance(step, Put):
            message = f"{step.path}: has {failure.size} bytes where {step.offset} were stored"
            seq = self.job.first_seq
            error = StorageCorrupt(message, segment=step.path, first_seq=seq, last_seq=seq)
        self.result.error = error

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None


_Topic: TypeAlias = "list[_Work[AppendJob]]"  # in order of seq


def run_checkpoint(fs: Fs, jobs: Sequence[AppendJob]) -> list[JobResult]:
    """Store every job; results in the same order. Jobs of one topic must come in order of seq."""
    works = [_Work(job) for job in jobs]
    topics = _by_topic(works)
    left, turn = _make_directories(fs, topics), 0
    while len(left) > SINGLE_SYNCS:
        _store_many(fs, [topic[turn] for topic in left])
        turn += 1
        left = _unfinished(left, turn)
    for topic in [topic for topic in left if len(topic) - turn > SINGLE_SEGMENTS]:
        left.remove(topic)
        _store_flood(fs, topic[turn:])
    _store_few(fs, [topic[turn:] for topic in left])
    _note_unreached(topics)
    _seal_all(fs, [work for work in works if work.job.seal is not None and work.result.ok])
    for work in works:
        if work.job.direct and not work.result.ok:
            work.result.stored = False  # a seal that failed may have left its index unsynced
    return [work.result for work in works]


def run_marks(fs: Fs, jobs: Sequence[MarkJob]) -> list[JobResult]:
    """Append deletion marks to many segments with few syncs; results in the same order."""
    works = [_Work(job) for job in jobs]
    _write_and_sync_marks(fs, works)
    for work in works:
        work.result.stored = work.result.ok
    return [work.result for work in works]


# ---- segments ----


def _by_topic(works: Iterable[_Work[AppendJob]]) -> list[_Topic]:
    topics: dict[str, _Topic] = {}
    for work in works:
        topics.setdefault(work.place, []).append(work)
    return list(topics.values())


def _unfinished(topics: list[_Topic], turn: int) -> list[_Topic]:
    """Those with a job for this turn, and nothing that failed before it."""
    before = max(turn - 1, 0)
    return [topic for topic in topics if len(topic) > turn and topic[before].result.error is None]


def _note_unreached(topics: list[_Topic]) -> None:
    for topic in topics:
        for before, work in pairwise(topic):
            if not before.result.stored:
                work.result.error = StorageFailed(f"{work.place}: an earlier part of this checkpoint failed")


def _make_directories(fs: Fs, topics: list[_Topic]) -> list[_Topic]:
    """The topics that have their directory. One whose first job finds a segment, or whose earlier job has made one, has
    it durably."""
    new = [topic[0] for topic in topics if topic[0].job.create]
    few = len(topics) <= SINGLE_SYNCS
    _run(fs, new, [[MakeDir(work.place), *_label(work, sync=few)] for work in new])
    if len(_unfinished(topics, 0)) <= SINGLE_SYNCS:
        # Else they are stored by a sync of the filesystem, which takes the names along.
        _for_each_root(new, fs.sync_dir)
    return _unfinished(topics, 0)


def _label(work: _Work[AppendJob], *, sync: bool) -> list[Step]:
    label = work.job.label
    return [Put(f"{work.place}/{TOPIC_NAME_FILE}", True, 0, (label,), sync)] if label else []


def _store_many(fs: Fs, works: list[_Work[AppendJob]]) -> None:
    """A segment of each of many topics: one sync of the filesystem instead of one of each file, and of each name."""
    _run(fs, works, [[_data(work, sync=False)] for work in works])
    _for_each_root(works, fs.sync_filesystem)
    synced = [work for work in works if work.result.error is None]
    _run(fs, synced, [[_index(work)] for work in synced])
    for work in synced:
        work.result.stored = work.result.error is None


def _store_few(fs: Fs, topics: list[_Topic]) -> None:
    _store_chains(fs, topics, _segment)


def _store_chains(fs: Fs, topics: list[_Topic], steps: Callable[[_Work[AppendJob]], list[Step]]) -> None:
    """Each topic is one chain: whatever fails, nothing behind it is begun."""
    chains = [[(work, step) for work in topic for step in steps(work)] for topic in topics]
    failures = fs.run([[step for _, step in chain] for chain in chains])
    for number, topic in enumerate(topics):
        failed = None
        if number in failures:
            failed, step = chains[number][failures[number].step]
            failed.fail(step, failures[number])
        for work in topic:
            if work is failed:
                break
            work.result.stored = True


def _store_flood(fs: Fs, topic: _Topic) -> None:
    """Many segments of one topic. Their bytes go to the disk side by side, under names that nobody reads; then each
    gets its own, when the one before it has: a segment that has a successor is whole."""
    before = [work for work in topic if not work.job.create]
    _store_few(fs, [before])
    new = topic[len(before) :]
    if not all(work.result.stored for work in before):
        return
    _run(fs, new, [[_data(work, sync=False)._replace(path=_unnamed(work))] for work in new])
    _for_each_root(new, fs.sync_filesystem)
    synced = list(takewhile(lambda work: work.result.ok, new))
    _store_chains(fs, [synced], _named)


def _unnamed(work: _Work[AppendJob]) -> str:
    return work.segment + DATA + TMP_SUFFIX


def _named(work: _Work[AppendJob]) -> list[Step]:
    return [Rename(_unnamed(work), work.segment + DATA), SyncDir(work.place), _index(work)]


def _segment(work: _Work[AppendJob]) -> list[Step]:
    # The index speaks of frames: they and their name are durable before it is written.
    named: list[Step] = [SyncDir(work.place)] if work.job.create else []
    return [_data(work, sync=True), *named, _index(work)]


def _data(work: _Work[AppendJob], *, sync: bool) -> Put:
    job = work.job
    return Put(work.segment + DATA, job.create, job.data_offset, job.data, sync)


def _index(work: _Work[AppendJob]) -> Put:
    job = work.job
    # A seal syncs it anyway.
    return Put(work.segment + IDX, True, job.index_offset, (job.index,), job.direct and job.seal is None)


# ---- one call for many ----


def _run(fs: Fs, works: Sequence[_Work[J]], chains: Sequence[Chain]) -> None:
    """A chain of each work."""
    for number, failure in fs.run(chains).items():
        works[number].fail(chains[number][failure.step], failure)


def _for_each_root(works: Sequence[_Work[J]], step: Callable[[Path], None]) -> None:
    """One step for all works below the same directory: its failure is everybody's."""
    below: dict[str, list[_Work[J]]] = {}
    for work in works:
        if work.result.error is None:
            below.setdefault(work.place.rpartition("/")[0], []).append(work)
    for root, mine in below.items():
        try:
            step(Path(root))
        except OSError as error:
            for work in mine:
                work.result.error = error


# ---- marks ----


def _write_and_sync_marks(fs: Fs, works: list[_Work[MarkJob]]) -> None:
    single = len(works) <= SINGLE_SYNCS
    try:
        for work in works:
            work.run(_write_marks, fs, work)
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


def _write_marks(fs: Fs, work: _Work[MarkJob]) -> None:
    job = work.job
    packed = pack_marks(job.first_seq, job.ranges)
    work.file = write_marks(fs, job.topic_dir, job.first_seq, packed, again=job.again)


# ---- seals ----


def _seal_all(fs: Fs, works: list[_Work[AppendJob]]) -> None:
    """A seal is three syncs. Many of them, as a flood of one topic makes them, have one of the filesystem instead, and
    one of each directory."""
    single = len(works) <= SINGLE_SEALS
    made: dict[_Work[AppendJob], Seals] = {}
    for work in works:
        work.run(_prepare, fs, work, made)
    _run(fs, list(made), [_tag_table(work, seals, single) for work, seals in made.items()])
    if not single:
        _for_each_root(list(made), fs.sync_filesystem)
    # Everything the seals speak of is durable, and so are their bytes; now their names.
    whole = [work for work in made if work.result.ok]
    _run(fs, whole, [[Rename(str(tmp_path(made[work].path)), str(made[work].path))] for work in whole])
    _sync_names(fs, [work for work in whole if work.result.ok])
    for work, seals in made.items():
        if work.result.ok:
            work.result.sealed, work.result.damage = seals.sealed.info, seals.sealed.damage
        else:
            with suppress(OSError):
                fs.unlink(tmp_path(seals.path), missing_ok=True)


def _prepare(fs: Fs, work: _Work[AppendJob], made: dict[_Work[AppendJob], Seals]) -> None:
    job = work.job
    last_seq = job.first_seq + (job.index_offset + len(job.index)) // ENTRY_BYTES - 1
    # What an attempt that failed may have left behind was cut off when this one wrote.
    whole = Written(job.data, job.index) if job.data and not job.data_offset else None
    created_ms = job.seal.created_ms if job.seal else None
    made[work] = prepare_seal(
        fs, job.topic_dir, job.first_seq, created_ms=created_ms, last_seq=last_seq, written=whole, synced=False
    )


def _tag_table(work: _Work[AppendJob], seals: Seals, sync: bool) -> list[Step]:
    """Under its temporary name; before it the index, as long as the seal says."""
    end = seals.sealed.info.count * ENTRY_BYTES
    index = Put(work.segment + IDX, False, end, (), True)
    table = Put(str(tmp_path(seals.path)), True, 0, seals.parts, sync)
    return [index, table] if sync else [table]


def _sync_names(fs: Fs, works: list[_Work[AppendJob]]) -> None:
    topics = _by_topic(works)
    steps = [SyncDir(topic[0].place) for topic in topics]
    for number, failure in fs.run([[step] for step in steps]).items():
        for work in topics[number]:
            work.fail(steps[number], failure)
