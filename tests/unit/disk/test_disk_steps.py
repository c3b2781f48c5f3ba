"""The C executor of steps does what their interpreter does: same files, same modes, same failures."""

from __future__ import annotations

import errno
import os
import resource
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topicd import _native
from topicd._native.interface import Buffer
from topicd.disk import steps
from topicd.disk.fs import RealFs
from topicd.disk.steps import Chain, Failure, MakeDir, Put, Rename, SyncDir, run_steps

native = pytest.mark.skipif(_native.run_chains is None, reason="the native core is not built")

Found = dict[int, tuple[int, int | None, int, Any, Any]]
Case = Callable[[str], list[Chain]]


def plain(failures: dict[int, Failure]) -> Found:
    return {
        number: (step, error and error.errno, size, error and error.filename, error and error.filename2)
        for number, (step, error, size) in failures.items()
    }


def tree(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """Mode and bytes of everything below root."""
    return {
        str(path.relative_to(root)): (stat.S_IMODE(path.stat().st_mode), path.read_bytes() if path.is_file() else None)
        for path in root.rglob("*")
    }


def prepared(root: Path) -> Path:
    root.mkdir()
    (root / "dir").mkdir()
    (root / "ten").write_bytes(b"0123456789")
    (root / "sealed").mkdir(mode=0o500)
    return root


def both(base: Path, case: Case) -> Found:
    """Run the case by both; what failed, with the paths of the root taken away."""
    outcomes = []
    for name, run in (("c", RealFs().run), ("p", lambda chains: run_steps(RealFs(), chains))):
        root = prepared(base / name)
        found = plain(run(case(str(root))))
        text = {
            key: tuple(str(v).replace(str(root), "") if isinstance(v, str) else v for v in value)
            for key, value in found.items()
        }
        outcomes.append((text, tree(root)))
    assert outcomes[0] == outcomes[1]
    return outcomes[0][0]  # type: ignore[return-value]


def put(path: str, *parts: Buffer, offset: int = 0, create: bool = True, sync: bool = False) -> Put:
    return Put(path, create, offset, parts, sync)


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


CASES: dict[str, tuple[Case, Found]] = {
    "all steps": (
        lambda r: [
            [MakeDir(f"{r}/a/b/c"), put(f"{r}/a/b/c/f", b"x", sync=True), SyncDir(f"{r}/a/b/c")],
            [Rename(f"{r}/ten", f"{r}/dir/ten")],
        ],
        {},
    ),
    "nothing": (lambda r: [[], []], {}),
    "parts of every kind": (
        lambda r: [[put(f"{r}/f", b"ab", b"", bytearray(b"cd"), memoryview(b"-ef-")[1:-1], memoryview(b""))]],
        {},
    ),
    "no parts": (
        lambda r: [[put(f"{r}/f", sync=True)], [put(f"{r}/ten", offset=10)], [put(f"{r}/ten", b"", offset=4)]],
        {},
    ),
    "more parts than one call takes": (lambda r: [[put(f"{r}/f", *(b"%d," % n for n in range(3000)), offset=0)]], {}),
    "append": (lambda r: [[put(f"{r}/ten", b"abc", offset=10, create=False)]], {}),
    "overwrite, longer": (lambda r: [[put(f"{r}/ten", b"abcdefghij", offset=5)]], {}),
    "overwrite, leftovers cut": (lambda r: [[put(f"{r}/ten", b"abc", offset=2)]], {}),
    "file too short": (
        lambda r: [[put(f"{r}/ten", b"x", offset=11)], [put(f"{r}/f", b"x", offset=1), put(f"{r}/g", b"never")]],
        {0: (0, None, 10, None, None), 1: (0, None, 0, None, None)},
    ),
    "file missing": (lambda r: [[put(f"{r}/f", b"x", create=False)]], {0: (0, errno.ENOENT, 0, "/f", None)}),
    "directory missing": (
        lambda r: [[put(f"{r}/none/f", b"x")], [SyncDir(f"{r}/none")], [Rename(f"{r}/none", f"{r}/other")]],
        {
            0: (0, errno.ENOENT, 0, "/none/f", None),
            1: (0, errno.ENOENT, 0, "/none", None),
            2: (0, errno.ENOENT, 0, "/none", "/other"),
        },
    ),
    "a directory where a file should be": (
        lambda r: [[put(f"{r}/dir", b"x")], [Rename(f"{r}/ten", f"{r}/dir")]],
        {0: (0, errno.EISDIR, 0, "/dir", None), 1: (0, errno.EISDIR, 0, "/ten", "/dir")},
    ),
    "a file where a directory should be": (
        lambda r: [[MakeDir(f"{r}/ten")], [MakeDir(f"{r}/ten/below")], [SyncDir(f"{r}/ten")], [put(f"{r}/ten/f", b"")]],
        {
            0: (0, errno.EEXIST, 0, "/ten", None),
            1: (0, errno.ENOTDIR, 0, "/ten/below", None),
            2: (0, errno.ENOTDIR, 0, "/ten", None),
            3: (0, errno.ENOTDIR, 0, "/ten/f", None),
        },
    ),
    "a failure ends its chain and no other": (
        lambda r: [
            [put(f"{r}/f", b"1"), put(f"{r}/none/f", b"2"), put(f"{r}/g", b"3")],
            [MakeDir(f"{r}/dir"), put(f"{r}/h", b"4")],
        ],
        {0: (1, errno.ENOENT, 0, "/none/f", None)},
    ),
    "a name that is no UTF-8": (
        lambda r: [[put(f"{r}/\udcff\u00e9", b"x"), Rename(f"{r}/\udcff\u00e9", f"{r}/e")]],
        {},
    ),
}


@native
@pytest.mark.parametrize("name", CASES)
def test_both_do_the_same(tmp_path: Path, name: str) -> None:
    case, failures = CASES[name]
    assert both(tmp_path, case) == failures


@native
def test_both_stop_where_no_more_fits(tmp_path: Path) -> None:
    with files_no_larger_than(8192):
        found = both(tmp_path, lambda r: [[put(f"{r}/f", b"x" * 5000, b"y" * 5000)], [put(f"{r}/g", b"fits")]])
    assert found == {0: (0, errno.EFBIG, 0, "/f", None)}
    assert (tmp_path / "c" / "f").stat().st_size == 8192


@native
def test_both_say_that_the_disk_is_full() -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    chains = [[put("/dev/full", b"x", create=False)]]
    assert (
        plain(RealFs().run(chains))
        == plain(run_steps(RealFs(), chains))
        == {0: (0, errno.ENOSPC, 0, "/dev/full", None)}
    )


@native
@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_both_write_long_content_in_pieces(tmp_path: Path, piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "LONG", 100)
    monkeypatch.setattr(steps, "PIECE", piece)
    parts = [bytes([65 + n % 26]) * (n % 5) for n in range(300)]
    assert both(tmp_path, lambda r: [[put(f"{r}/ten", *parts, offset=3, sync=True)]]) == {}
    assert (tmp_path / "c" / "ten").read_bytes() == b"012" + b"".join(parts)


NAMES = st.sampled_from(["f", "g", "dir", "dir/f", "new", "new/f", "ten", "ten/f"])
PARTS = st.lists(st.binary(max_size=6), max_size=4)
STEPS = st.one_of(
    st.builds(lambda path: ("dir", path), NAMES),
    st.builds(lambda *what: ("put", *what), NAMES, st.booleans(), st.integers(0, 12), PARTS, st.booleans()),
    st.builds(lambda path: ("sync", path), NAMES),
    st.builds(lambda *what: ("rename", *what), NAMES, NAMES),
)


def made(root: str, step: tuple[Any, ...]) -> Any:
    kind, path, *rest = step
    match kind:
        case "dir":
            return MakeDir(f"{root}/{path}")
        case "sync":
            return SyncDir(f"{root}/{path}")
        case "rename":
            return Rename(f"{root}/{path}", f"{root}/{rest[0]}")
        case _:
            return Put(f"{root}/{path}", *rest)


@native
@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(STEPS, max_size=5), max_size=4))
def test_both_do_the_same_with_anything(tmp_path_factory: pytest.TempPathFactory, chains: list[Any]) -> None:
    both(tmp_path_factory.mktemp("any"), lambda r: [[made(r, step) for step in chain] for chain in chains])


@native
def test_the_lock_is_free_while_steps_are_done(tmp_path: Path) -> None:
    go, woke = threading.Event(), 0.0

    def other() -> None:
        nonlocal woke
        go.wait()
        woke = time.monotonic()

    thread = threading.Thread(target=other)
    thread.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(100)  # nobody takes the lock away from who does not give it
    try:
        go.set()
        failures = RealFs().run([[put(f"{tmp_path}/{n}", *[b"x" * 65536] * 200, sync=True)] for n in range(3)])
        ended = time.monotonic()
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    assert not failures
    assert woke < ended


@native
def test_buffers_are_free_again_whatever_happened(tmp_path: Path) -> None:
    buffer = bytearray(b"abc")
    good, bad = put(f"{tmp_path}/f", buffer), put(f"{tmp_path}/none/f", buffer)
    assert list(RealFs().run([[good], [bad, good]])) == [1]
    for wrong in (
        put(f"{tmp_path}/f", buffer, "text"),
        ("no step",),
        MakeDir(Path("/")),
        put("a\0b", buffer),
        put("f", buffer, offset=-1),
        put("f", buffer, offset=2**63 - 1),
    ):
        with pytest.raises((TypeError, ValueError)):
            RealFs().run([[good], [wrong]])  # type: ignore[list-item]
    assert not (tmp_path / "a").exists()
    buffer.append(1)  # BufferError while somebody holds it


@native
def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    chains = [[put(f"{tmp_path}/f", b"x"), SyncDir(str(tmp_path)), put(f"{tmp_path}/f", b"x", offset=9)]] * 5
    assert len(RealFs().run(chains)) == 5
    assert os.listdir("/proc/self/fd") == before
