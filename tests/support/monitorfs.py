"""A filesystem that asserts the order of durability calls. Promise: the first call out of order raises
OrderViolation and is kept in `violations`, whatever the code under test does with the exception.

    a file is renamed only when its bytes are synced an index entry is written only when the frame it points
    to is synced, under a durable name a seal (.tags) appears only when data and index are synced, under
    durable names a snapshot is removed only when a newer one is durable a segment's marks are removed only
    when its data is durably gone, or a durable seal knows what is gone watch(copy, pointer, delete): the
    pointer changes only when the copy is durable, the original goes only when the pointer is durable
    note_ack(path, offset): what is acknowledged up to there is synced, under a durable name
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from topicd import paths
from topicd._native.interface import Buffer
from topicd.disk.fs import TMP_SUFFIX, File, FileId, Fs
from topicd.disk.look import Listing, look_by_calls
from topicd.disk.steps import Chain, Failure, run_steps
from topicd.shards.storage.segment.index import ENTRY_BYTES, entry_at, entry_count


class OrderViolation(AssertionError):
    pass


@dataclass(slots=True)
class _Track:
    dirty: list[tuple[int, int]] = field(default_factory=list)  # unsynced byte ranges
    named: bool = True  # its name is durable


@dataclass(frozen=True, slots=True)
class _Watch:
    copy: Path
    pointer: Path
    delete: Path


class MonitorFs:
    """Files that are there when it starts count as durable."""

    def __init__(self, inner: Fs) -> None:
        self.inner = inner
        self.violations: list[str] = []
        self._tracks: dict[Path, _Track] = {}
        self._removed: set[Path] = set()  # unlinked, not yet durably so
        self._watches: list[_Watch] = []

    def watch(self, copy: Path, pointer: Path, delete: Path) -> None:
        self._watches.append(_Watch(copy, pointer, delete))

    def note_ack(self, path: Path, offset: int) -> None:
        track = self._track(path)
        unsynced = [start for start, _ in track.dirty if start < offset]
        if unsynced or not track.named:
            self._violation(f"ack up to {offset} of {path} before its sync")

    def is_durable(self, path: Path) -> bool:
        track = self._track(path)
        return track.named and not track.dirty and self.inner.exists(path)

    # ---- Fs ----

    def open(self, path: Path | str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        path = Path(path)
        fresh = (create or exclusive) and not self.inner.exists(path)
        inner = self.inner.open(path, write=write, create=create, exclusive=exclusive)
        if fresh:
            self._tracks[path] = _Track(named=False)
            self._removed.discard(path)
        return MonitorFile(self, path, inner)

    def rename(self, source: Path, target: Path) -> None:
        if self._track(source).dirty:
            self._violation(f"rename of {source.name} to {target.name} before its sync")
        self._check_seal(target)
        self._check_pointer(target)
        self.inner.rename(source, target)
        moved = self._tracks.pop(source, _Track())
        moved.named = False
        self._tracks[target] = moved
        for path in [path for path in self._tracks if source in path.parents]:
            self._tracks[target / path.relative_to(source)] = self._tracks.pop(path)

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        if self.inner.exists(path):
            self._check_unlink(path)
            self._removed.add(path)
        self.inner.unlink(path, missing_ok)
        self._tracks.pop(path, None)

    def link(self, source: Path, target: Path) -> None:
        self.inner.link(source, target)

    def mkdir(self, path: Path) -> None:
        self.inner.mkdir(path)

    def rmdir(self, path: Path) -> None:
        self.inner.rmdir(path)

    def listdir(self, path: Path) -> list[str]:
        return self.inner.listdir(path)

    def exists(self, path: Path) -> bool:
        return self.inner.exists(path)

    def size(self, path: Path) -> int:
        return self.inner.size(path)

    def identify(self, path: Path) -> FileId:
        return self.inner.identify(path)

    def sync_dir(self, path: Path) -> None:
        self.inner.sync_dir(path)
        self._removed -= {gone for gone in self._removed if gone.parent == path}
        for name, track in self._tracks.items():
            if name.parent == path:
                track.named = True

    def sync_filesystem(self, path: Path) -> None:
        self.inner.sync_filesystem(path)
        self._removed.clear()
        for track in self._tracks.values():
            track.named = True
            track.dirty.clear()

    def free_bytes(self, path: Path) -> int:
        return self.inner.free_bytes(path)

    def run(self, chains: Sequence[Chain]) -> dict[int, Failure]:
        return run_steps(self, chains)

    def look_into(self, directories: Sequence[str]) -> list[Listing | None]:
        return look_by_calls(self, directories)

    # ---- rules ----

    def wrote(self, path: Path, offset: int, size: int) -> None:
        self._track(path).dirty.append((offset, offset + size))

    def synced(self, path: Path) -> None:
        self._track(path).dirty.clear()

    def check_index(self, path: Path, parts: Sequence[Buffer]) -> None:
        """The frames that new entries of .idx point to must be durable."""
        name = path.name.removesuffix(TMP_SUFFIX)
        parsed = paths.parse_segment(name)
        if parsed is None or parsed[1] != "idx":
            return
        # A rewrite prepares index and data together, both under temporary names.
        suffix = TMP_SUFFIX if self.inner.exists(self._part(path, parsed[0], "data", TMP_SUFFIX)) else ""
        data = self._part(path, parsed[0], "data", suffix if path.name.endswith(TMP_SUFFIX) else "")
        track = self._track(data)
        raw = b"".join(bytes(part) for part in parts)
        last = entry_at(raw, entry_count(raw) - 1) if len(raw) >= ENTRY_BYTES else None
        end = last.offset + last.length if last else 0
        if any(start < end for start, _ in track.dirty):
            self._violation(f"{path.name} written before {data.name} was synced")
        if not track.named and not suffix:
            self._violation(f"{path.name} written before the name {data.name} was durable")

    def _check_seal(self, target: Path) -> None:
        parsed = paths.parse_segment(target.name)
        if parsed is None or parsed[1] != "tags":
            return
        rewrite = self.inner.exists(self._part(target, parsed[0], "data", TMP_SUFFIX))
        for part in ("data", "idx"):
            path = self._part(target, parsed[0], part, TMP_SUFFIX if rewrite else "")
            track = self._track(path)
            if track.dirty or not self.inner.exists(path):
                self._violation(f"{target.name} sealed before {path.name} was synced")
            if not track.named and (part == "data" or rewrite):
                self._violation(f"{target.name} sealed before the name {path.name} was durable")

    def _check_pointer(self, target: Path) -> None:
        for watch in self._watches:
            if watch.pointer == target and not self.is_durable(watch.copy):
                self._violation(f"pointer {target} changed before the copy {watch.copy} was durable")

    def _check_unlink(self, path: Path) -> None:
        for watch in self._watches:
            if watch.delete == path and not (self.is_durable(watch.pointer) and self.is_durable(watch.copy)):
                self._violation(f"{path} deleted before copy and pointer were durable")
        number = paths.parse_snapshot(path.name)
        if number is not None:
            newer = [n for n in map(paths.parse_snapshot, self.inner.listdir(path.parent)) if n and n > number]
            if not any(self.is_durable(path.with_name(paths.snapshot_name(n))) for n in newer):
                self._violation(f"{path.name} removed before a newer snapshot was durable")
        parsed = paths.parse_segment(path.name)
        if parsed is not None and parsed[1] == "del" and not path.parent.name.endswith(".deleted"):
            data = self._part(path, parsed[0], "data")
            gone = not self.inner.exists(data) and data not in self._removed
            if not gone and not self.is_durable(self._part(path, parsed[0], "tags")):
                self._violation(f"{path.name} removed while its records can come back")

    def _part(self, path: Path, first_seq: int, part: str, suffix: str = "") -> Path:
        return path.with_name(paths.segment_name(first_seq, part) + suffix)

    def _track(self, path: Path) -> _Track:
        return self._tracks.setdefault(path, _Track())

    def _violation(self, text: str) -> None:
        self.violations.append(text)
        raise OrderViolation(text)


class MonitorFile:
    def __init__(self, fs: MonitorFs, path: Path, inner: File) -> None:
        self._fs = fs
        self._path = path
        self._inner = inner

    def pread(self, size: int, offset: int) -> bytes:
        return self._inner.pread(size, offset)

    def pwrite(self, parts: Sequence[Buffer], offset: int) -> None:
        self._fs.check_index(self._path, parts)
        # Also when it fails: some of it may be there.
        self._fs.wrote(self._path, offset, sum(len(part) for part in parts))
        self._inner.pwrite(parts, offset)

    def truncate(self, size: int) -> None:
        if size != self._inner.size():
            self._fs.wrote(self._path, size, 0)
        self._inner.truncate(size)

    def sync_data(self) -> None:
        self._inner.sync_data()
        self._fs.synced(self._path)

    def sync(self) -> None:
        self._inner.sync()
        self._fs.synced(self._path)

    def size(self) -> int:
        return self._inner.size()

    def read_into(self, target: memoryview, offset: int) -> int:
        return self._inner.read_into(target, offset)

    def fileno(self) -> int:
        return self._inner.fileno()

    def begin_sync(self, offset: int, length: int) -> None:
        self._inner.begin_sync(offset, length)

    def forget(self, size: int) -> None:
        self._inner.forget(size)

    def close(self) -> None:
        self._inner.close()
