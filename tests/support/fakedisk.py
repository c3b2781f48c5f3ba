"""A disk in memory that forgets what was not synced. Promise: the contract of topicd.disk.fs.Fs,
and after crash(seed) exactly what POSIX allows to be left: synced bytes under synced names, and of the rest
any part.

What may happen to the rest depends on the seed; seeds 0 to 6 are the seven styles once each:

    lost     nothing unsynced is there
    kept     everything is there, as after SIGKILL
    prefix   operations up to some point are there, the next one torn
    sectors  each sector of 512 bytes and each name on its own: any of its versions
    zeroed   like sectors, and bytes that were never there before may read as zero (size ahead of data)
    names    every name is there, no unsynced byte is
    bytes    every byte is there, no unsynced name is

A sector is written whole or not at all where it held durable bytes; new bytes behind the old end may tear
anywhere.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import RLock
from typing import TypeVar

from tests.support.powerloss import SECTOR, STYLES, Dir, Inode, PowerLoss, Rename, Truncate, Write, apply, link
from topicd._native.interface import Buffer
from topicd.disk.fs import FileId
from topicd.disk.look import Listing, look_by_calls
from topicd.disk.steps import Chain, Failure, run_steps

T = TypeVar("T")
__all__ = ["SECTOR", "STYLES", "FakeDisk", "FakeFile"]


class FakeDisk:
    """Thread-safe. capacity bounds the bytes of all files: above it writes end short with ENOSPC."""

    def __init__(self, capacity: int | None = None, directories: Sequence[Path] = ()) -> None:
        self._lock = RLock()
        self._root = Dir()
        self._order = 0
        self._epoch = 0
        self.capacity = capacity
        for directory in directories:
            self.mkdir(directory)
        self.sync_filesystem(Path("/"))

    # ---- Fs ----

    def open(self, path: Path | str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> FakeFile:
        path = Path(path)
        with self._lock:
            parent, name = self._parent(path)
            node = parent.live.get(name)
            if node is None:
                if not (create or exclusive):
                    raise _error(errno.ENOENT, path)
                node = Inode()
                self._change(parent, (name, node))
            elif exclusive:
                raise _error(errno.EEXIST, path)
            if isinstance(node, Dir):
                raise _error(errno.EISDIR, path)
            return FakeFile(self, node, write)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            from_dir, from_name = self._parent(source)
            to_dir, to_name = self._parent(target)
            node = from_dir.live.get(from_name)
            if node is None:
                raise _error(errno.ENOENT, source)
            old = to_dir.live.get(to_name)
            if isinstance(old, Dir) and old.live:
                raise _error(errno.ENOTEMPTY, target)
            if old is not None and isinstance(old, Dir) != isinstance(node, Dir):
                raise _error(errno.EISDIR if isinstance(old, Dir) else errno.ENOTDIR, target)
            if from_dir is to_dir:
                self._change(from_dir, (from_name, None), (to_name, node))
            else:
                self._change(to_dir, (to_name, node))
                self._change(from_dir, (from_name, None))

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        with self._lock:
            try:
                parent, name = self._parent(path)
            except FileNotFoundError:
                if missing_ok:
                    return
                raise
            node = parent.live.get(name)
            if node is None:
                if missing_ok:
                    return
                raise _error(errno.ENOENT, path)
            if isinstance(node, Dir):
                raise _error(errno.EISDIR, path)
            self._change(parent, (name, None))

    def link(self, source: Path, target: Path) -> None:
        with self._lock:
            node = self._find(source)
            if not isinstance(node, Inode):
                raise _error(errno.ENOENT if node is None else errno.EPERM, source)
            parent, name = self._parent(target)
            if name in parent.live:
                raise _error(errno.EEXIST, target)
            self._change(parent, (name, node))

    def mkdir(self, path: Path) -> None:
        with self._lock:
            at = self._root
            for name in path.parts[1:]:
                node = at.live.get(name)
                if node is None:
                    node = Dir()
                    self._change(at, (name, node))
                if not isinstance(node, Dir):
                    raise _error(errno.EEXIST, path)
                at = node

    def rmdir(self, path: Path) -> None:
        with self._lock:
            parent, name = self._parent(path)
            node = parent.live.get(name)
            if node is None:
                raise _error(errno.ENOENT, path)
            if not isinstance(node, Dir):
                raise _error(errno.ENOTDIR, path)
            if node.live:
                raise _error(errno.ENOTEMPTY, path)
            self._change(parent, (name, None))

    def listdir(self, path: Path) -> list[str]:
        with self._lock:
            node = self._find(path)
            if node is None:
                return []
            if not isinstance(node, Dir):
                raise _error(errno.ENOTDIR, path)
            return list(node.live)

    def exists(self, path: Path) -> bool:
        with self._lock:
            return self._find(path) is not None

    def size(self, path: Path) -> int:
        with self._lock:
            node = self._find(path)
            if node is None:
                raise _error(errno.ENOENT, path)
            return len(node.content) if isinstance(node, Inode) else 0

    def identify(self, path: Path) -> FileId:
        with self._lock:
            node = self._find(path)
            if node is None:
                raise _error(errno.ENOENT, path)
            if not isinstance(node, Inode):
                return FileId(0, 0, 0, 0)
            return FileId(0, node.number, len(node.content), node.changed)

    def sync_dir(self, path: Path) -> None:
        with self._lock:
            node = self._find(path)
            if node is None:
                raise _error(errno.ENOENT, path)
            if not isinstance(node, Dir):
                raise _error(errno.ENOTDIR, path)
            node.sync()

    def sync_filesystem(self, path: Path) -> None:
        with self._lock:
            if self._find(path) is None:
                raise _error(errno.ENOENT, path)
            for _, node in _walk(self._root, Path("/")):
                node.sync()

    def free_bytes(self, path: Path) -> int:
        with self._lock:
            return 1 << 40 if self.capacity is None else max(self.capacity - self._used(), 0)

    def run(self, chains: Sequence[Chain]) -> dict[int, Failure]:
        return run_steps(self, chains)

    def look_into(self, directories: Sequence[str]) -> list[Listing | None]:
        return look_by_calls(self, directories)

    # ---- what a disk does and an operator may look at ----

    def crash(self, seed: int) -> None:
        """Lose power here: handles are dead, of what was not synced only what the seed leaves is there."""
        with self._lock:
            self._root = self.image(seed)._root
            self._epoch += 1

    def image(self, seed: int) -> FakeDisk:
        """The disk as a crash now would leave it; this one goes on undisturbed."""
        with self._lock:
            disk = FakeDisk(self.capacity)
            disk._root = PowerLoss(seed, self._order).directory(self._root)
            disk._order = self._order
            return disk

    def files(self) -> dict[Path, bytes]:
        """Every file as reads see it."""
        with self._lock:
            walk = _walk(self._root, Path("/"))
            return {path: bytes(node.content) for path, node in walk if isinstance(node, Inode)}

    def unsynced(self) -> list[Path]:
        """Files with unsynced bytes and directories with unsynced names."""
        with self._lock:
            return [path for path, node in _walk(self._root, Path("/")) if node.pending]

    def damage(self, path: Path, offset: int, data: bytes) -> None:
        """Change bytes behind everybody's back, durably: bit rot."""
        with self._lock:
            node = self._find(path)
            if not isinstance(node, Inode):
                raise _error(errno.ENOENT, path)
            for copy in (node.content, node.durable):
                copy[offset : offset + len(data)] = data

    def spoil(self, path: Path, start: int, end: int) -> None:
        """From now on the disk gives none of these bytes: every read that touches one fails with EIO."""
        with self._lock:
            node = self._find(path)
            if not isinstance(node, Inode):
                raise _error(errno.ENOENT, path)
            node.bad_sectors.append((start, end))

    # ---- inside ----

    def _parent(self, path: Path) -> tuple[Dir, str]:
        node = self._find(path.parent)
        if node is None:
            raise _error(errno.ENOENT, path)
        if not isinstance(node, Dir):
            raise _error(errno.ENOTDIR, path)
        return node, path.name

    def _find(self, path: Path) -> Inode | Dir | None:
        if not path.is_absolute():
            raise ValueError(f"{path} is not absolute")
        node: Inode | Dir | None = self._root
        for name in path.parts[1:]:
            if not isinstance(node, Dir):
                return None
            node = node.live.get(name)
        return node

    def _change(self, parent: Dir, *names: tuple[str, Inode | Dir | None]) -> None:
        parent.pending.append(Rename(self._next(), names))
        link(parent.live, names)

    def _next(self) -> int:
        self._order += 1
        return self._order

    def _used(self) -> int:
        found = {id(node): node for _, node in _walk(self._root, Path("/")) if isinstance(node, Inode)}
        return sum(len(node.content) for node in found.values())


class FakeFile:
    def __init__(self, disk: FakeDisk, node: Inode, writable: bool) -> None:
        self._disk = disk
        self._node: Inode | None = node
        self._writable = writable
        self._epoch = disk._epoch

    def pread(self, size: int, offset: int) -> bytes:
        return self._do(lambda node: self._read(node, size, offset))

    @staticmethod
    def _read(node: Inode, size: int, offset: int) -> bytes:
        if any(start < offset + size and offset < end for start, end in node.bad_sectors):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(node.content[offset : offset + size])

    def pwrite(self, parts: Sequence[Buffer], offset: int) -> None:
        data = b"".join(bytes(part) for part in parts)
        self._do(lambda node: self._write(node, data, offset), write=True)

    def _write(self, node: Inode, data: bytes, offset: int) -> None:
        growth = max(offset + len(data) - len(node.content), 0)
        free = self._disk.free_bytes(Path("/"))
        fits = data if growth <= free else data[: max(len(data) - growth + free, 0)]
        if fits:
            op = Write(self._disk._next(), offset, fits)
            node.pending.append(op)
            apply(node.content, op)
            node.changed = op.order
            node.heal(offset, offset + len(fits))
        if len(fits) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def truncate(self, size: int) -> None:
        self._do(lambda node: self._truncate(node, size), write=True)

    def _truncate(self, node: Inode, size: int) -> None:
        if size != len(node.content):
            op = Truncate(self._disk._next(), size)
            node.pending.append(op)
            node.changed = op.order
            node.heal(size, max(size, len(node.content)))
            apply(node.content, op)

    def sync_data(self) -> None:
        self._do(Inode.sync)

    def sync(self) -> None:
        self._do(Inode.sync)

    def lose_pending(self) -> None:
        """What the kernel does after a failed sync: reads still see the bytes, no later sync will save
        them.
        """
        self._do(lambda node: node.pending.clear())

    def size(self) -> int:
        return self._do(lambda node: len(node.content))

    def read_into(self, target: memoryview, offset: int) -> int:
        data = self.pread(len(target), offset)
        target[: len(data)] = data
        return len(data)

    def fileno(self) -> int:
        raise OSError(errno.ENOTSUP, "a fake file has no descriptor")

    def begin_sync(self, offset: int, length: int) -> None:
        """A hint; a crash drops what was not synced all the same."""

    def forget(self, size: int) -> None:
        """It has no memory beside the disk's."""

    def close(self) -> None:
        self._node = None

    def _do(self, step: Callable[[Inode], T], write: bool = False) -> T:
        with self._disk._lock:
            if self._node is None or self._epoch != self._disk._epoch or (write and not self._writable):
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            return step(self._node)


def _walk(directory: Dir, path: Path) -> Iterator[tuple[Path, Inode | Dir]]:
    yield path, directory
    for name, node in directory.live.items():
        if isinstance(node, Dir):
            yield from _walk(node, path / name)
        else:
            yield path / name, node


def _error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))
