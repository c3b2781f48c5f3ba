"""A look in C finds what the single calls find, and says nothing where it could not read all of it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from topicd import _native
from topicd.disk import look
from topicd.disk.fs import RealFs
from topicd.disk.look import HEAD, MOST_FILES, WHOLE, Listing, look_by_calls

native = pytest.mark.skipif(_native.look is None, reason="the native core is not built")


def both(directories: list[Path]) -> list[Listing | None]:
    names = [str(directory) for directory in directories]
    found = RealFs().look_into(names)
    assert found == look_by_calls(RealFs(), names)
    return found


@native
def test_small_files_come_whole_and_large_ones_with_their_beginning(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "small é").write_bytes(b"0123456789")
    (tmp_path / "just").write_bytes(bytes(WHOLE))
    (tmp_path / "large").write_bytes(b"x" * (WHOLE + 1))
    assert both([tmp_path]) == [
        {
            "empty": (0, b""),
            "small é": (10, b"0123456789"),
            "just": (WHOLE, bytes(WHOLE)),
            "large": (WHOLE + 1, b"x" * HEAD),
        }
    ]


@native
def test_what_is_no_file_is_not_known_and_what_is_no_directory_neither(tmp_path: Path) -> None:
    (tmp_path / "dir" / "inside").mkdir(parents=True)
    (tmp_path / "dir" / "file").write_bytes(b"1")
    (tmp_path / "file").write_bytes(b"1")
    (tmp_path / "full").mkdir()
    for number in range(MOST_FILES + 1):
        (tmp_path / "full" / str(number)).write_bytes(b"1")
    found = both([tmp_path / name for name in ("dir", "missing", "file", "full")])
    assert found == [{"inside": None, "file": (1, b"1")}, {}, None, None]


@native
def test_what_exceeds_the_bytes_of_one_look_is_not_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "BUDGET", 100)
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(b"x" * 60)
    found = RealFs().look_into([str(tmp_path / name) for name in ("a", "b", "c")])
    assert found[0] == {"file": (60, b"x" * 60)} and found[1] == {"file": None}
    assert look_by_calls(RealFs(), [str(tmp_path / name) for name in ("a", "b")]) == found[:2]


@native
def test_a_file_without_a_name_in_this_encoding_is_found_again_by_its_name(tmp_path: Path) -> None:
    strange = tmp_path / "\udcff\udcfe"
    strange.write_bytes(b"1")
    ((name, _),) = (both([tmp_path])[0] or {}).items()
    assert (tmp_path / name).read_bytes() == b"1"


@native
def test_what_is_no_path_is_refused() -> None:
    assert _native.look is not None
    for wrong in ([b"bytes"], [1], ["nul\0inside"], 7):
        with pytest.raises((TypeError, ValueError)):
            _native.look(wrong, WHOLE, HEAD, 1, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE, errno.ENOMEM])
def test_a_call_that_fails_leaves_its_file_unknown_and_nothing_else(code: int) -> None:
    root = Path("/data")
    disk = FakeDisk(directories=[root / "a", root / "b"])
    for name in ("a/1", "a/2", "b/3"):
        disk.open(root / name, write=True, create=True).pwrite([name.encode()], 0)
    whole = {"a": {"1": (3, b"a/1"), "2": (3, b"a/2")}, "b": {"3": (3, b"b/3")}}
    counting = FaultFs(disk, reads=True)
    counting.look_into([str(root / "a"), str(root / "b")])
    assert counting.count >= 8
    for number in range(1, counting.count + 1):
        fs = FaultFs(disk, number, code, reads=True)
        found = dict(zip("ab", fs.look_into([str(root / "a"), str(root / "b")]), strict=True))
        unknown = 0
        for directory, files in whole.items():
            listing = found[directory]
            unknown += listing is None
            for name, file in files.items() if listing is not None else ():
                unknown += listing is not None and listing[name] is None
                assert listing is not None and listing[name] in (None, file)
        assert unknown == 1, fs.calls[number - 1]
