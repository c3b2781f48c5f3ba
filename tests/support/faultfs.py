"""A filesystem that fails or dies at call number n. Promise: counts every mutating call, and after the crash
point lets nothing through.

The calls are numbered from 1 in `calls`; a sweep runs an operation once to learn how many there are, then
once more for each of them.
"""

from __future__ import annotations

import errno as errors
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from topicd._native.interface import Buffer
from topicd.disk.fs import File, FileId, Fs
from topicd.disk.look import Listing, look_by_calls
from topicd.disk.steps import Chain, Failure, run_steps

T = TypeVar("T")


class Crashed(BaseException):
    """Power is gone. Not an Exception, so that no handler of the code under test mistakes it for an error."""


class FaultFs:
    """fail_at=n: call n raises OSError(errno), and with always=True every one from it on.

    short: a write that fails has stored half its bytes. crash_after=n: call n is done, then Crashed is
    raised, now and by whatever is called later (0: before the first). reads: reads are counted and fail as
    well. only: counts just the calls for which it is true. A sync that fails drops the unsynced bytes, as
    kernels do.
    """

    def __init__(
        self,
        inner: Fs,
        fail_at: int | None = None,
        errno: int = errors.EIO,
        *,
        always: bool = False,
        short: bool = False,
        crash_after: int | None = None,
        reads: bool = False,
        only: Callable[[str, Path], bool] | None = None,
    ) -> None:
        self.inner = inner
        self.fail_at = fail_at
        self.errno = errno
        self.always = always
        self.short = short
        self.crash_after = crash_after
        self.reads = reads
        self.only = only
        self.calls: list[tuple[str, Path]] = []
        self.failures = 0
        self.crashed = crash_after == 0

    @property
    def count(self) -> int:
        return len(self.calls)

    def open(self, path: Path | str, *, write: bool = False, create: bool = False, exclusive: bool = False) -> File:
        place = Path(path)

        def step() -> File:
            return self.inner.open(place, write=write, create=create, exclusive=exclusive)

        makes = (create or exclusive) and not self.inner.exists(place)
        return FaultFile(self, place, self.mutate("create", place, step) if makes else self.look("open", place, step))

    def rename(self, source: Path, target: Path) -> None:
        self.mutate("rename", target, lambda: self.inner.rename(source, target))

    def unlink(self, path: Path, missing_ok: bool = False) -> None:
        self.mutate("unlink", path, lambda: self.inner.unlink(path, missing_ok))

    def link(self, source: Path, target: Path) -> None:
        self.mutate("link", target, lambda: self.inner.link(source, target))

    def mkdir(self, path: Path) -> None:
        self.mutate("mkdir", path, lambda: self.inner.mkdir(path))

    def rmdir(self, path: Path) -> None:
        self.mutate("rmdir", path, lambda: self.inner.rmdir(path))

    def listdir(self, path: Path) -> list[str]:
        return self.look("listdir", path, lambda: self.inner.listdir(path))

    def exists(self, path: Path) -> bool:
        return self.look("exists", path, lambda: self.inner.exists(path))

    def size(self, path: Path) -> int:
        return self.look("size", path, lambda: self.inner.size(path))

    def identify(self, path: Path) -> FileId:
        return self.look("identify", path, lambda: self.inner.identify(path))

    def sync_dir(self, path: Path) -> None:
        self.mutate("sync_dir", path, lambda: self.inner.sync_dir(path))

    def sync_filesystem(self, path: Path) -> None:
        self.mutate("sync_filesystem", path, lambda: self.inner.sync_filesystem(path))

    def free_bytes(self, path: Path) -> int:
        return self.inner.free_bytes(path)

    def run(self, chains: Sequence[Chain]) -> dict[int, Failure]:
        return run_steps(self, chains)

    def look_into(self, directories: Sequence[str]) -> list[Listing | None]:
        return look_by_calls(self, directories)

    def mutate(self, name: str, path: Path, step: Callable[[], T], failing: Callable[[], None] | None = None) -> T:
        """Count, then fail or do the step, then perhaps die. failing: what the failure leaves behind."""
        self._check_alive()
        counted = self.only is None or self.only(name, path)
        if counted:
            self.calls.append((name, path))
            if self._due():
                self.failures += 1
                if failing is not None:
                    failing()
                raise OSError(self.errno, os.strerror(self.errno), str(path))
        result = step()
        if counted and self.count == self.crash_after:
            self.crashed = True
            raise Crashed(f"after call {self.count}: {name} {path}")
        return result

    def look(self, name: str, path: Path, step: Callable[[], T]) -> T:
        if self.reads:
            return self.mutate(name, path, step)
        self._check_alive()
        return step()

    def _due(self) -> bool:
        if self.fail_at is None:
            return False
        return self.count == self.fail_at or (self.always and self.count > self.fail_at)

    def _check_alive(self) -> None:
        if self.crashed:
            raise Crashed("called after the crash")


class FaultFile:
    def __init__(self, fs: FaultFs, path: Path, inner: File) -> None:
        self._fs = fs
        self._path = path
        self._inner = inner

    def pread(self, size: int, offset: int) -> bytes:
        return self._fs.look("pread", self._path, lambda: self._inner.pread(size, offset))

    def pwrite(self, parts: Sequence[Buffer], offset: int) -> None:
        self._fs.mutate(
            "pwrite",
            self._path,
            lambda: self._inner.pwrite(parts, offset),
            failing=(lambda: self._write_half(parts, offset)) if self._fs.short else None,
        )

    def _write_half(self, parts: Sequence[Buffer], offset: int) -> None:
        data = b"".join(bytes(part) for part in parts)
        self._inner.pwrite([data[: len(data) // 2]], offset)

    def truncate(self, size: int) -> None:
        self._fs.mutate("truncate", self._path, lambda: self._inner.truncate(size))

    def sync_data(self) -> None:
        self._fs.mutate("sync_data", self._path, self._inner.sync_data, failing=self._lose)

    def sync(self) -> None:
        self._fs.mutate("sync", self._path, self._inner.sync, failing=self._lose)

    def _lose(self) -> None:
        lose = getattr(self._inner, "lose_pending", None)
        if lose is not None:
            lose()

    def size(self) -> int:
        return self._inner.size()

    def read_into(self, target: memoryview, offset: int) -> int:
        return self._fs.look("read_into", self._path, lambda: self._inner.read_into(target, offset))

    def fileno(self) -> int:
        return self._inner.fileno()

    def begin_sync(self, offset: int, length: int) -> None:
        self._inner.begin_sync(offset, length)

    def forget(self, size: int) -> None:
        self._inner.forget(size)

    def close(self) -> None:
        self._inner.close()
