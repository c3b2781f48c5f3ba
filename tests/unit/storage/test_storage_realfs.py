"""What only the real filesystem does: short writes, failing syncs, descriptors."""

from __future__ import annotations

import ctypes
import errno
import gc
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from topicd.disk import fs as module
from topicd.disk.fs import RealFs


def test_short_writes_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = os.pwritev
    sizes = iter([1, 4, 2, 3] * 100)

    def stingy(fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        data = b"".join(bytes(buffer) for buffer in buffers)
        return honest(fd, [data[: next(sizes)]], offset)

    monkeypatch.setattr(os, "pwritev", stingy)
    file = RealFs().open(tmp_path / "f", write=True, create=True)
    file.pwrite([b"abc", b"", memoryview(b"defgh"), bytearray(b"ijklmnop"), b"q"], 5)
    assert file.pread(100, 0) == b"\0" * 5 + b"abcdefghijklmnopq"


def test_what_was_forgotten_can_be_read_again(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    file = RealFs().open(tmp_path / "f", write=True, create=True)
    file.pwrite([content], 0)
    file.forget(1 << 20)
    file.sync_data()
    file.forget(len(content))
    assert file.pread(len(content), 0) == content


def test_a_write_that_makes_no_progress_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwritev", lambda *args: 0)
    file = RealFs().open(tmp_path / "f", write=True, create=True)
    with pytest.raises(OSError) as caught:
        file.pwrite([b"abc"], 0)
    assert caught.value.errno == errno.EIO
    file.pwrite([], 0)
    file.pwrite([b""], 0)


def test_reads_go_on_after_a_short_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"abcdefgh")
    honest = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: honest(fd, min(size, 3), offset))
    assert RealFs().open(tmp_path / "f").pread(100, 1) == b"bcdefgh"


@pytest.mark.parametrize("name", ["fsync", "fdatasync"])
def test_a_failed_sync_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "bad disk")

    file = RealFs().open(tmp_path / "f", write=True, create=True)
    monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError):
        file.sync() if name == "fsync" else file.sync_data()
    if name == "fsync":
        with pytest.raises(OSError):
            RealFs().sync_dir(tmp_path)


def test_a_filesystem_that_cannot_sync_directories_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EINVAL, "not here")

    monkeypatch.setattr(os, "fsync", refuse)
    RealFs().sync_dir(tmp_path)


def test_a_failed_sync_of_the_filesystem_is_raised_with_its_errno(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Libc:
        @staticmethod
        def syncfs(fd: int) -> int:
            ctypes.set_errno(errno.EDQUOT)
            return -1

    monkeypatch.setattr(module, "_libc", Libc)
    with pytest.raises(OSError) as caught:
        RealFs().sync_filesystem(tmp_path)
    assert caught.value.errno == errno.EDQUOT


def test_descriptors_are_given_back(tmp_path: Path) -> None:
    def count() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = count()
    fs = RealFs()
    for _ in range(3):
        fs.sync_filesystem(tmp_path)
        fs.sync_dir(tmp_path)
    assert count() == before + 1
    file = fs.open(tmp_path / "f", write=True, create=True)
    file.pwrite([b"x"], 0)
    assert file.fileno() > 2
    del file, fs
    assert count() == before
