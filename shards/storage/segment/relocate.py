"""Moving the frames of a sealed segment: to the cold directory, into a packed file, or back. Promise: at every moment
whole frames lie where readers look for them first; a move that was interrupted is undone or done again, and either way
the next one ends where it should.

    1  copy      under a temporary name, synced, renamed, names synced, read back and compared
    2  flip      `.cold` here, durably; for a packed file beside the plain one its name is the flip already
    3  (the owner of the segment lets readers know)
    4  clear     the old file goes; what came back from the cold directory loses `.cold` first

Index, seal and deletion marks never move. Before 4 both copies are there, and the plain one here is read (places.py);
a start takes that one and forgets the other (load.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from topicd._native import core
from topicd._native.interface import Buffer
from topicd.disk.cold import ColdDir
from topicd.disk.fs import File, Fs, naming, tmp_path
from topicd.disk.loading import load
from topicd.errors import StorageCorrupt
from topicd.limits import MIB
from topicd.shards.storage.segment.index import ENTRY_BYTES, offset_at
from topicd.shards.storage.segment.info import Lies, SegmentInfo
from topicd.shards.storage.segment.names import COLD, DATA, DEL, PACKED, topic_id_of
from topicd.shards.storage.segment.packed import PackedFile, pack
from topicd.shards.storage.segment.places import Listed, SegmentPlace, list_files, resolve
from topicd.shards.storage.segment.pointer import Pointer, load_pointer, save_pointer
from topicd.shards.storage.segment.reindex import APPEND
from topicd.shards.storage.segment.words import Words

_PIECE = 1 * MIB
Pace = Callable[[int], None]  # called before so many bytes are written: waits, or raises to give up


def no_pace(size: int) -> None:
    """As fast as the disk."""


class Packing(NamedTuple):
    level: int
    words: Words  # the topic's dictionary


class Move(NamedTuple):
    """Where a segment's frames are to lie."""

    topic_dir: Path
    info: SegmentInfo
    cold: ColdDir | None = None  # None: they stay here
    packing: Packing | None = None  # None: plain

    @property
    def lies(self) -> Lies:
        if self.cold is None:
            return Lies.HERE if self.packing is None else Lies.PACKED
        return Lies.COLD if self.packing is None else Lies.COLD_PACKED


class Copied(NamedTuple):
    lies: Lies
    file_bytes: int


def copy_frames(fs: Fs, move: Move, pace: Pace = no_pace) -> Copied:
    """Steps 1 and 2. After an OSError nothing has changed for readers; repeat it. StorageCorrupt: the frames cannot be
    read as they are, and stay where they are."""
    frames, place = _load(fs, move), resolve(move.topic_dir, move.info.first_seq)
    part, parts = DATA, list[Buffer]([frames])
    if move.packing is not None:
        part, parts = PACKED, _pack(fs, move, frames)
    if move.cold is None:
        target = place.file(part)
    else:
        move.cold.check(fs)
        _make_directory(fs, move.cold, move.topic_dir)
        target = place.cold_file(move.cold, part)
    _write(fs, target, parts, pace)
    _compare(fs, target, part, frames)
    size = sum(map(len, parts))
    if move.cold is not None:
        info = move.info
        save_pointer(fs, place.file(COLD), Pointer(info.first_seq, info.count, info.data_bytes, part, size))
    return Copied(move.lies, size)


def clear_old(fs: Fs, topic_dir: Path, first_seq: int, lies: Lies, cold: ColdDir | None) -> None:
    """Step 4: frames are nowhere else than where they lie. May be repeated after an OSError."""
    place = resolve(topic_dir, first_seq)
    if lies.cold:
        for part in (DATA, PACKED):
            fs.unlink(place.file(part), missing_ok=True)
        fs.sync_dir(topic_dir)
        kept = load_pointer(fs, place.file(COLD)).part
        if cold is not None:
            _unlink_cold(fs, cold, topic_dir, first_seq, [part for part in (DATA, PACKED) if part != kept])
        return
    # `.cold` first: it never speaks of a file that is gone.
    fs.unlink(place.file(COLD), missing_ok=True)
    fs.unlink(place.file(PACKED if lies is Lies.HERE else DATA), missing_ok=True)
    fs.sync_dir(topic_dir)
    if cold is not None:
        _unlink_cold(fs, cold, topic_dir, first_seq, [DATA, PACKED])


def move_frames(fs: Fs, move: Move, known_cold: ColdDir | None = None, pace: Pace = no_pace) -> Copied:
    """All of it, where nobody reads meanwhile."""
    copied = copy_frames(fs, move, pace)
    clear_old(fs, move.topic_dir, move.info.first_seq, copied.lies, move.cold or known_cold)
    return copied


# ---- segments and topics that go ----


def finish_drop(fs: Fs, topic_dir: Path, first_seqs: Sequence[int], cold: ColdDir) -> None:
    """Of segments that are being dropped, what is in the cold directory, then what said so. May be repeated."""
    cold.check(fs)
    for first_seq in first_seqs:
        _unlink_cold(fs, cold, topic_dir, first_seq, [DATA, PACKED])
    for part in (COLD, DEL):
        for first_seq in first_seqs:
            fs.unlink(resolve(topic_dir, first_seq).file(part), missing_ok=True)
        fs.sync_dir(topic_dir)


def drop_cold_topic(fs: Fs, topic_dir: Path, cold: ColdDir) -> None:
    """Everything of a deleted topic in the cold directory. May be repeated."""
    cold.check(fs)
    directory = cold.topic(topic_dir)
    for name in fs.listdir(directory):
        fs.unlink(directory / name, missing_ok=True)
    with suppress(FileNotFoundError):
        fs.rmdir(directory)
    if fs.exists(cold.topics):
        fs.sync_dir(cold.topics)


def _unlink_cold(fs: Fs, cold: ColdDir, topic_dir: Path, first_seq: int, parts: Sequence[str]) -> None:
    place = resolve(topic_dir, first_seq)
    found = [place.cold_file(cold, part) for part in parts]
    found = [path for path in (*found, *map(tmp_path, found)) if fs.exists(path)]
    for path in found:
        fs.unlink(path, missing_ok=True)
    if found:
        fs.sync_dir(cold.topic(topic_dir))


# ---- a copy ----


def _load(fs: Fs, move: Move) -> memoryview:
    """The frames, every one of them checked."""
    place, info = resolve(move.topic_dir, move.info.first_seq), move.info
    content = place.load(fs, DATA)
    view = content.view
    scan = core.scan_frames(view, 0, len(view))
    mine = topic_id_of(move.topic_dir)
    strange = any(run.type != APPEND or mine not in (None, run.topic_id) for run in scan.runs)
    if content.bad or len(view) != info.data_bytes or scan.problem or scan.end != len(view) or strange:
        path = place.frames(fs, info.lies)
        message = f"{path}: its frames cannot all be read, they stay where they are"
        message += f" (seqs {info.first_seq} to {info.last_seq})"
        raise StorageCorrupt(message, segment=str(path), first_seq=info.first_seq, last_seq=info.last_seq)
    return view


def _pack(fs: Fs, move: Move, frames: memoryview) -> list[Buffer]:
    if move.packing is None:
        raise ValueError("nothing is said about packing")
    index = resolve(move.topic_dir, move.info.first_seq).read_index(fs)
    ends = [offset_at(index, number) for number in range(1, len(index) // ENTRY_BYTES + 1)]
    if not ends or ends[-1] != len(frames) or len(ends) != move.info.count:
        # The blocks end anywhere then; readers check what they get all the same.
        offsets = memoryview(core.frame_offsets(frames, 0, len(frames))).cast("I")
        ends = [*offsets[1:], len(frames)]
    return [*move.packing.words.pack(frames, ends, move.info, move.packing.level, pack).parts]


def _make_directory(fs: Fs, cold: ColdDir, topic_dir: Path) -> None:
    directory = cold.topic(topic_dir)
    if not fs.exists(directory):
        fs.mkdir(directory)
        for parent in (cold.topics, cold.root):
            fs.sync_dir(parent)


def _write(fs: Fs, target: Path, parts: Sequence[Buffer], pace: Pace) -> None:
    tmp = tmp_path(target)
    try:
        file = fs.open(tmp, write=True, create=True)
        try:
            with naming(tmp):
                file.truncate(0)
                _write_pieces(file, parts, pace)
                file.sync()
        finally:
            file.close()
    except BaseException:
        with suppress(OSError):
            fs.unlink(tmp, missing_ok=True)
        raise
    fs.rename(tmp, target)
    fs.sync_dir(target.parent)


def _write_pieces(file: File, parts: Sequence[Buffer], pace: Pace) -> None:
    at, waiting, size = 0, list[Buffer](), 0
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), _PIECE):
            piece = view[start : start + _PIECE]
            waiting.append(piece)
            size += len(piece)
            if size >= _PIECE:
                pace(size)
                file.pwrite(waiting, at)
                file.begin_sync(at, size)
                at, waiting, size = at + size, [], 0
    if waiting:
        pace(size)
        file.pwrite(waiting, at)


def _compare(fs: Fs, target: Path, part: str, frames: memoryview) -> None:
    """What was written is what will be read."""
    file: File = fs.open(target)
    if part == PACKED:
        file = PackedFile(file, target)
    try:
        content = load(file)
        if content.bad or content.view != frames:
            raise OSError(f"{target} cannot be read back as it was written")
    finally:
        file.close()


# ---- what a start or a crash leaves ----


def strays(fs: Fs, topic_dir: Path, cold: ColdDir) -> list[Path]:
    """Files in the cold directory whose frames lie here or in another file there: copies of moves that were not
    flipped, were undone, or were not cleared up. Of what nobody here knows nothing is said."""
    listed = list_files(fs, cold.topic(topic_dir))
    return [file.path for file in listed if _is_stray(fs, resolve(topic_dir, file.first_seq), file)]


def _is_stray(fs: Fs, place: SegmentPlace, file: Listed) -> bool:
    try:
        pointer = load_pointer(fs, place.file(COLD))
    except FileNotFoundError:
        return fs.exists(place.file(DATA)) or fs.exists(place.file(PACKED))
    return not pointer.dropped and (file.unfinished or file.part != pointer.part)
