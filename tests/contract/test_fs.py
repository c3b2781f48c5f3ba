"""What every Fs promises, over the real one, the one in memory, and the two that wrap another."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from tests.support.monitorfs import MonitorFs
from topicd._native.interface import Buffer
from topicd.disk import steps
from topicd.disk.fs import Fs, RealFs, read_all, replace_file, tmp_path, write_beside
from topicd.disk.steps import MakeDir, Put, Rename, SyncDir
from topicd.errors import FormatError

MAKERS: dict[str, Callable[[Path], Fs]] = {
    "real": lambda directory: RealFs(),
    "fake": lambda directory: FakeDisk(directories=[directory]),
    "fault": lambda directory: FaultFs(FakeDisk(directories=[directory])),
    "monitor": lambda directory: MonitorFs(RealFs()),
}


@pytest.fixture(params=list(MAKERS))
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> Fs:
    return MAKERS[request.param](tmp_path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file"


def put(fs: Fs, path: Path, data: bytes) -> None:
    file = fs.open(path, write=True, create=True)
    file.truncate(0)
    file.pwrite([data], 0)
    file.sync()
    file.close()


def get(fs: Fs, path: Path) -> bytes:
    return read_all(fs, path, 1 << 30)


def test_open_of_a_missing_file_is_refused_without_create(fs: Fs, path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fs.open(path)
    with pytest.raises(FileNotFoundError):
        fs.open(path, write=True)
    with pytest.raises(FileNotFoundError):
        fs.open(path.parent / "missing" / "file", write=True, create=True)
    assert not fs.exists(path)


def test_exclusive_makes_a_file_once(fs: Fs, path: Path) -> None:
    fs.open(path, write=True, exclusive=True).close()
    assert fs.exists(path)
    with pytest.raises(FileExistsError):
        fs.open(path, write=True, create=True, exclusive=True)


def test_create_keeps_what_is_there(fs: Fs, path: Path) -> None:
    put(fs, path, b"old")
    fs.open(path, write=True, create=True).close()
    assert get(fs, path) == b"old"


def test_pwrite_puts_many_parts_of_every_kind_end_to_end(fs: Fs, path: Path) -> None:
    parts: list[Buffer] = [
        b"ab",
        bytearray(b"cd"),
        memoryview(b"-efg-")[1:-1],
        b"",
    ] * 1500  # more than one writev takes
    file = fs.open(path, write=True, create=True)
    file.pwrite(parts, 3)
    assert file.size() == 3 + 7 * 1500
    assert file.pread(10, 0) == b"\0\0\0abcdefg"
    assert file.pread(7, 3 + 7 * 1499) == b"abcdefg"
    file.close()


def test_pread_is_short_only_at_the_end(fs: Fs, path: Path) -> None:
    put(fs, path, bytes(range(100)))
    file = fs.open(path)
    assert file.pread(10, 95) == bytes(range(95, 100))
    assert file.pread(10, 100) == b""
    assert file.pread(10, 1000) == b""
    assert file.pread(0, 0) == b""
    file.close()


def test_a_file_opened_for_reading_cannot_be_written(fs: Fs, path: Path) -> None:
    put(fs, path, b"x")
    file = fs.open(path)
    with pytest.raises(OSError):
        file.pwrite([b"y"], 0)
    file.close()
    assert get(fs, path) == b"x"


def test_truncate_cuts_and_extends_with_zeros(fs: Fs, path: Path) -> None:
    put(fs, path, b"abcdef")
    file = fs.open(path, write=True)
    file.truncate(2)
    file.truncate(4)
    assert file.pread(10, 0) == b"ab\0\0"
    file.close()


def test_read_into_fills_what_there_is(fs: Fs, path: Path) -> None:
    put(fs, path, b"abcdef")
    file = fs.open(path)
    target = bytearray(b"........")
    assert file.read_into(memoryview(target)[:3], 1) == 3
    assert target == b"bcd....."
    assert file.read_into(memoryview(target), 4) == 2
    assert target == b"efd....."
    assert file.read_into(memoryview(target), 6) == 0
    file.close()


def test_close_may_be_called_twice_and_ends_the_file(fs: Fs, path: Path) -> None:
    put(fs, path, b"x")
    file = fs.open(path)
    file.close()
    file.close()
    with pytest.raises(OSError):
        file.pread(1, 0)


def test_rename_replaces_the_target(fs: Fs, path: Path) -> None:
    other = path.with_name("other")
    put(fs, path, b"new")
    put(fs, other, b"old")
    fs.rename(path, other)
    assert get(fs, other) == b"new"
    assert not fs.exists(path)
    with pytest.raises(FileNotFoundError):
        fs.rename(path, other)


def test_rename_moves_a_directory_but_not_over_a_full_one(fs: Fs, path: Path) -> None:
    one, two = path.with_name("one"), path.with_name("two")
    fs.mkdir(one)
    put(fs, one / "a", b"1")
    fs.mkdir(two)
    put(fs, two / "b", b"2")
    with pytest.raises(OSError) as caught:
        fs.rename(one, two)
    assert caught.value.errno in {errno.ENOTEMPTY, errno.EEXIST}
    fs.unlink(two / "b")
    fs.rename(one, two)
    assert get(fs, two / "a") == b"1"
    assert fs.listdir(one) == []


def test_an_open_file_survives_its_name(fs: Fs, path: Path) -> None:
    put(fs, path, b"x")
    file = fs.open(path, write=True)
    fs.unlink(path)
    put(fs, path, b"another")
    file.pwrite([b"y"], 0)
    assert file.pread(9, 0) == b"y"
    file.close()
    assert get(fs, path) == b"another"


def test_unlink_of_a_missing_file(fs: Fs, path: Path) -> None:
    fs.unlink(path, missing_ok=True)
    fs.unlink(path.parent / "missing" / "file", missing_ok=True)
    with pytest.raises(FileNotFoundError):
        fs.unlink(path)


def test_mkdir_makes_parents_and_accepts_what_exists(fs: Fs, path: Path) -> None:
    deep = path / "a" / "b"
    fs.mkdir(deep)
    fs.mkdir(deep)
    assert fs.listdir(path) == ["a"]
    with pytest.raises(OSError):
        fs.rmdir(path)
    fs.rmdir(deep)
    assert fs.listdir(path / "a") == []
    with pytest.raises(FileNotFoundError):
        fs.rmdir(deep)


def test_listdir_of_a_missing_directory_is_empty(fs: Fs, path: Path) -> None:
    assert fs.listdir(path) == []
    put(fs, path.with_name("x"), b"")
    put(fs, path.with_name("y"), b"")
    assert sorted(fs.listdir(path.parent)) == ["x", "y"]


def test_size_and_exists(fs: Fs, path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        fs.size(path)
    put(fs, path, b"12345")
    assert fs.size(path) == 5
    assert fs.exists(path)
    assert fs.exists(path.parent)
    assert not fs.exists(path / "below-a-file")


def test_syncs_work_where_something_is_and_fail_where_nothing_is(fs: Fs, path: Path) -> None:
    put(fs, path, b"x")
    fs.sync_dir(path.parent)
    fs.sync_filesystem(path.parent)
    fs.sync_filesystem(path.parent)
    for sync in (fs.sync_dir, fs.sync_filesystem):
        with pytest.raises(FileNotFoundError):
            sync(path.parent / "missing")


def test_free_bytes_is_a_number_of_bytes(fs: Fs, path: Path) -> None:
    assert fs.free_bytes(path.parent) > 1 << 20


def test_read_all_refuses_what_is_too_large(fs: Fs, path: Path) -> None:
    put(fs, path, b"12345")
    assert read_all(fs, path, 5) == b"12345"
    with pytest.raises(FormatError, match="5 bytes, expected at most 4"):
        read_all(fs, path, 4)


def test_replace_file_puts_all_or_keeps_the_old(fs: Fs, path: Path) -> None:
    replace_file(fs, path, [b"one", b"two"])
    assert get(fs, path) == b"onetwo"
    replace_file(fs, path, [b"x"])
    assert get(fs, path) == b"x"
    write_beside(fs, path, [b"unfinished"])
    assert get(fs, path) == b"x"
    assert get(fs, tmp_path(path)) == b"unfinished"


def test_run_does_a_chain_in_order(fs: Fs, path: Path) -> None:
    failures = fs.run(
        [
            [MakeDir(f"{path}/a/b"), Put(f"{path}/a/b/f", True, 0, [b"one", b"", memoryview(b"two")], True)],
            [SyncDir(f"{path}/a/b"), Rename(f"{path}/a/b/f", f"{path}/a/g"), SyncDir(f"{path}/a")],
            [],
        ]
    )
    assert failures == {}
    assert get(fs, path / "a" / "g") == b"onetwo"
    assert fs.listdir(path / "a" / "b") == []


def test_run_ends_a_chain_at_its_failure_and_goes_on_with_the_next(fs: Fs, path: Path) -> None:
    missing = f"{path.parent}/missing/f"
    failures = fs.run(
        [
            [Put(f"{path}1", True, 0, [b"1"], True), Put(missing, True, 0, [b"2"], False), MakeDir(f"{path}2")],
            [Put(f"{path}3", False, 0, [b"3"], False)],
            [Rename(f"{path}1", f"{path}4")],
        ]
    )
    assert {number: failure.step for number, failure in failures.items()} == {0: 1, 1: 0}
    errors = [failure.error for failure in failures.values()]
    assert [(error.errno, error.filename) for error in errors if error] == [
        (errno.ENOENT, missing),
        (errno.ENOENT, f"{path}3"),
    ]
    assert fs.listdir(path.parent) == [f"{path.name}4"]


def test_put_makes_the_parts_the_end_of_the_file(fs: Fs, path: Path) -> None:
    put(fs, path, b"0123456789")
    assert fs.run([[Put(str(path), False, 8, [b"abcd"], True)]]) == {}
    assert get(fs, path) == b"01234567abcd"
    assert fs.run([[Put(str(path), False, 2, [b"x"], False)]]) == {}
    assert get(fs, path) == b"01x"
    assert fs.run([[Put(str(path), False, 1, [], True)]]) == {}
    assert get(fs, path) == b"0"


def test_put_leaves_no_hole(fs: Fs, path: Path) -> None:
    put(fs, path, b"123")
    failures = fs.run([[Put(str(path), False, 4, [b"x"], False), MakeDir(f"{path}.dir")]])
    assert [(number, *failure) for number, failure in failures.items()] == [(0, 0, None, 3)]
    assert get(fs, path) == b"123"
    assert not fs.exists(path.with_name("file.dir"))


@pytest.mark.parametrize("piece", [1, 1000, 1 << 20])
def test_put_of_many_and_long_parts(fs: Fs, path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LONG", 5000)
    monkeypatch.setattr(steps, "PIECE", piece)
    parts = [b"%d," % number for number in range(2500)]  # more than one writev takes
    assert fs.run([[Put(str(path), True, 0, parts, True)]]) == {}
    assert get(fs, path) == b"".join(parts)


def test_a_link_is_another_name_for_the_same_file(fs: Fs, path: Path) -> None:
    put(fs, path, b"bytes")
    other = path.with_name("other")
    fs.link(path, other)
    assert get(fs, other) == b"bytes"
    assert fs.identify(other) == fs.identify(path)
    with pytest.raises(FileExistsError):
        fs.link(path, other)
    fs.unlink(path)
    assert get(fs, other) == b"bytes"
    with pytest.raises(FileNotFoundError):
        fs.link(path, path.with_name("third"))


def test_a_file_that_was_replaced_is_another_one(fs: Fs, path: Path) -> None:
    put(fs, path, b"bytes")
    before = fs.identify(path)
    assert before.size == 5
    replace_file(fs, path, [b"other"])
    assert fs.identify(path) != before
