"""Whole files in memory: what the disk does not give is zero, is named, and costs no more than its page."""

from __future__ import annotations

import ast
import errno
import os
from pathlib import Path

import pytest

from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from topicd.disk import loading
from topicd.disk.fs import RealFs
from topicd.disk.interface import File
from topicd.disk.loading import PAGE, BadRange, PartLoaded, load, load_file

ROOT = Path(__file__).resolve().parents[3]
FILE = Path("/f")
PAGES = 600  # more than two pieces
CONTENT = os.urandom(PAGES * PAGE + 100)


@pytest.fixture
def disk() -> FakeDisk:
    disk = FakeDisk()
    disk.open(FILE, write=True, create=True).pwrite([CONTENT], 0)
    return disk


def zeroed(*pages: int) -> bytes:
    content = bytearray(CONTENT)
    for page in pages:
        content[page * PAGE : (page + 1) * PAGE] = bytes(PAGE)
    return bytes(content)


def test_no_more_of_a_file_is_held_than_the_longest_of_ours_has(
    disk: FakeDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "WHOLE_MAX", 5 * PAGE)
    assert bytes(load_file(disk, FILE).view) == CONTENT[: 5 * PAGE]
    file = disk.open(FILE)
    assert bytes(load(file, PAGE).view) == CONTENT[PAGE : 6 * PAGE]
    assert bytes(load(file, 0, 9 * PAGE).view) == CONTENT[: 9 * PAGE]


def test_a_file_is_loaded_as_it_is(disk: FakeDisk) -> None:
    found = load_file(disk, FILE)
    assert (bytes(found.view), found.bad, found.problem) == (CONTENT, [], "")
    assert found.view.readonly
    part = load(disk.open(FILE), 5_000, 9_000)
    assert (bytes(part.view), part.bad) == (CONTENT[5_000:9_000], [])
    beyond = load(disk.open(FILE), len(CONTENT) - 10, len(CONTENT) + 10)
    assert bytes(beyond.view) == CONTENT[-10:]
    assert len(load(disk.open(FILE), 7, 7).view) == 0


def test_a_bad_sector_costs_its_page_and_neighbours_are_one_place(disk: FakeDisk) -> None:
    for page in (3, 300, 301):
        disk.spoil(FILE, page * PAGE + 17, page * PAGE + 18)
    found = load_file(disk, FILE)
    assert bytes(found.view) == zeroed(3, 300, 301)
    assert found.bad == [
        BadRange(3 * PAGE, 4 * PAGE, errno.EIO),
        BadRange(300 * PAGE, 302 * PAGE, errno.EIO),
    ]
    assert str(found.bad[0]) == "bytes 12288 to 16383 cannot be read (Input/output error)"
    assert found.touches(4 * PAGE - 1, 4 * PAGE) and not found.touches(4 * PAGE, 300 * PAGE)


def test_pages_are_those_of_the_file_wherever_the_reading_begins(disk: FakeDisk) -> None:
    disk.spoil(FILE, 2 * PAGE, 3 * PAGE)
    found = load(disk.open(FILE), PAGE + 100, 4 * PAGE)
    assert bytes(found.view) == zeroed(2)[PAGE + 100 : 4 * PAGE]
    assert found.bad == [BadRange(2 * PAGE, 3 * PAGE, errno.EIO)]


def test_a_read_that_fails_once_is_repeated(disk: FakeDisk) -> None:
    fs = FaultFs(disk, 2, reads=True)  # behind open
    found = load_file(fs, FILE)
    assert (fs.failures, bytes(found.view), found.bad) == (1, CONTENT, [])


def test_a_disk_that_gives_nothing_is_not_asked_for_every_page(disk: FakeDisk) -> None:
    disk.spoil(FILE, 0, len(CONTENT))
    fs = FaultFs(disk, reads=True)
    found = load_file(fs, FILE)
    assert found.bad == [BadRange(0, len(CONTENT), errno.EIO)]
    assert bytes(found.view) == bytes(len(CONTENT))
    assert fs.count < 80


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EISDIR, errno.EACCES])
def test_what_says_nothing_about_the_bytes_is_raised(disk: FakeDisk, code: int) -> None:
    for number in (1, 2):
        with pytest.raises(OSError) as caught:
            load_file(FaultFs(disk, number, code, reads=True), FILE)
        assert caught.value.errno == code


@pytest.mark.fault("RDF-06")
def test_a_file_that_is_cut_off_while_it_is_read_is_shorter(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(CONTENT)
    real = RealFs().open(path)

    class Cutting:
        """Whoever reads it for the second time finds it cut off."""

        reads = 0

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        def read_into(self, target: memoryview, offset: int) -> int:
            self.reads += 1
            if self.reads == 2:
                os.truncate(path, 300 * PAGE + 7)
            return real.read_into(target, offset)

    file: File = Cutting()  # type: ignore[assignment]
    found = load(file)
    assert (bytes(found.view), found.bad) == (CONTENT[: 300 * PAGE + 7], [])


def test_no_module_maps_a_file() -> None:
    """A map is SIGBUS where a read is an error. Memory that processes share is mapped, and memory of no file at all;
    and room that a sender has reserved, where a store under a guard fails as a write does."""
    shared, guarded = {"ipc/shm.py", "topicd/filechannel/page.py"}, {"topicd/filechannel/ahead.py"}
    allowed = {*shared, *guarded, "topicd/disk/loading.py", "topicd/_native/interface.py"}
    mapping = set()
    for folder in ("topicd", "ipc", "shards", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
                if "mmap" in names or (isinstance(node, ast.ImportFrom) and node.module == "mmap"):
                    mapping.add(str(path.relative_to(ROOT)))
    assert {name for name in mapping if not name.startswith(("topicd/ipc/", "topicd/shards/"))} == allowed


# ---- read where somebody looks ----


def test_what_is_wanted_is_there_and_the_rest_is_not_read(disk: FakeDisk) -> None:
    disk.spoil(FILE, 400 * PAGE, 400 * PAGE + 1)  # a read of it would show
    part = PartLoaded(disk.open(FILE))
    part.want(5_000, 5_040)
    part.want(200 * PAGE - 20, 200 * PAGE + 20)
    assert part.content.view[5_000:5_040] == CONTENT[5_000:5_040]
    assert part.content.view[200 * PAGE - 20 : 200 * PAGE + 20] == CONTENT[200 * PAGE - 20 : 200 * PAGE + 20]
    assert part.content.bad == [] and not any(part.content.view[300 * PAGE : 310 * PAGE])
    part.want(len(CONTENT) - 10, len(CONTENT) + 10)
    assert part.content.view[-10:] == CONTENT[-10:]


def test_a_bad_page_is_named_once_however_often_it_is_wanted(disk: FakeDisk) -> None:
    for page in (399, 400, 3):  # a step ends between the first two
        disk.spoil(FILE, page * PAGE + 17, page * PAGE + 18)
    part = PartLoaded(disk.open(FILE))
    part.want(400 * PAGE, 400 * PAGE + 1)
    part.want(0, part.size)
    part.want(0, part.size)
    assert part.content.view == zeroed(3, 399, 400)
    assert part.content.bad == [
        BadRange(3 * PAGE, 4 * PAGE, errno.EIO),
        BadRange(399 * PAGE, 401 * PAGE, errno.EIO),
    ]


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("at", [0, 3, (1 << 20) - 2, (1 << 20) + 4, 2 * (1 << 20) - 1, len(CONTENT) - 4])
def test_bytes_are_found_wherever_they_stand(disk: FakeDisk, at: int, loaded: bool) -> None:
    disk.open(FILE, write=True).pwrite([bytes(len(CONTENT))], 0)
    disk.open(FILE, write=True).pwrite([b"here"], at)
    part = PartLoaded(disk.open(FILE))
    if loaded:
        part.want(0, part.size)
    assert part.find(b"here", 0, part.size) == at
    assert part.find(b"here", at, part.size) == at
    assert part.find(b"here", at + 1, part.size) == -1
    assert part.find(b"here", 0, at + 3) == -1


def test_what_stands_behind_a_bad_page_is_found_and_the_page_is_named(disk: FakeDisk) -> None:
    disk.open(FILE, write=True).pwrite([b"0123456789"], 500 * PAGE)
    disk.spoil(FILE, 300 * PAGE, 300 * PAGE + 1)
    part = PartLoaded(disk.open(FILE))
    assert part.find(b"0123456789", 0, part.size) == 500 * PAGE
    assert part.content.bad == [BadRange(300 * PAGE, 301 * PAGE, errno.EIO)]
