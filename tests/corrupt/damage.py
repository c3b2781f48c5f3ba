"""Random damage to the files of a data directory: what disks, people and backup scripts do to them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random

PAGE = 4096


def flip(path: Path, files: list[Path], random: Random) -> str:
    raw = bytearray(path.read_bytes())
    if not raw:
        return "nothing to flip"
    at, bit = random.randrange(len(raw)), random.randrange(8)
    raw[at] ^= 1 << bit
    path.write_bytes(raw)
    return f"bit {bit} of byte {at}"


def flip_near_the_front(path: Path, files: list[Path], random: Random) -> str:
    """WAL files are mostly zeros: most of what matters is here."""
    raw = bytearray(path.read_bytes())
    if not raw:
        return "nothing to flip"
    at, bit = random.randrange(min(len(raw), 2 * PAGE)), random.randrange(8)
    raw[at] ^= 1 << bit
    path.write_bytes(raw)
    return f"bit {bit} of byte {at}"


def zero(path: Path, files: list[Path], random: Random) -> str:
    raw = bytearray(path.read_bytes())
    at = random.randrange(len(raw) // PAGE + 1) * PAGE
    size = min(PAGE, len(raw) - at)
    raw[at : at + size] = bytes(size)
    path.write_bytes(raw)
    return f"{size} bytes at {at}"


def truncate(path: Path, files: list[Path], random: Random) -> str:
    size = random.randrange(path.stat().st_size + 1)
    with path.open("r+b") as file:
        file.truncate(size)
    return f"to {size} bytes"


def empty(path: Path, files: list[Path], random: Random) -> str:
    path.write_bytes(b"")
    return ""


def delete(path: Path, files: list[Path], random: Random) -> str:
    path.unlink()
    return ""


def swap(path: Path, files: list[Path], random: Random) -> str:
    """With another of its kind."""
    others = [other for other in files if other != path and other.suffix == path.suffix and other.is_file()]
    if not others:
        return "with nothing"
    other = random.choice(others)
    beside = path.with_name("swapped")
    path.rename(beside)
    other.rename(path)
    beside.rename(other)
    return f"with {other.parent.name}/{other.name}"


def foreign(path: Path, files: list[Path], random: Random) -> str:
    """Other bytes under its name: random ones, text, or those of any other file."""
    kind = random.choice(["random", "text", "copy"])
    if kind == "random":
        path.write_bytes(random.randbytes(random.choice([10, 500, 50_000])))
    elif kind == "text":
        path.write_bytes(b"a line that topicd did not write\n" * random.randrange(1, 200))
    else:
        other = random.choice([file for file in files if file.is_file()])
        path.write_bytes(other.read_bytes())
        return f"a copy of {other.parent.name}/{other.name}"
    return kind


def directory(path: Path, files: list[Path], random: Random) -> str:
    path.unlink()
    path.mkdir()
    if random.random() < 0.5:
        (path / "file").write_bytes(b"x")
    return ""


def to_pipe(path: Path) -> None:
    os.mkfifo(path)


def to_link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def to_link_to_nowhere(path: Path) -> None:
    path.symlink_to("/nonexistent/disk")


def to_endless_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def to_hungry_device(path: Path) -> None:
    path.symlink_to("/dev/null")


NO_FILES = (to_pipe, to_link_to_itself, to_link_to_nowhere, to_endless_device, to_hungry_device)


def no_file(path: Path, files: list[Path], random: Random) -> str:
    chosen = random.choice(NO_FILES)
    path.unlink()
    chosen(path)
    return chosen.__name__


KINDS: tuple[Callable[[Path, list[Path], Random], str], ...] = (
    *(flip, flip_near_the_front, zero, truncate, empty),
    *(delete, swap, foreign, directory, no_file),
)


def damage(root: Path, random: Random) -> list[str]:
    """One to three places; what was done, for the report."""
    done = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != "LOCK")
        # Each kind of file as often as the others, however many there are of it.
        kinds = sorted({(path.suffix, path.parent.parent.name) for path in files})
        chosen = random.choice(kinds)
        path = random.choice([p for p in files if (p.suffix, p.parent.parent.name) == chosen])
        kind = random.choice(KINDS)
        what = kind(path, files, random)
        done.append(f"{kind.__name__} {path.relative_to(root)} {what}".rstrip())
    return done


def copy(source: Path, target: Path) -> Path:
    """Names and bytes; no times or modes, so that a thousand copies are cheap."""
    shutil.rmtree(target, ignore_errors=True)
    for place, _, names in os.walk(source):
        into = os.path.join(target, os.path.relpath(place, source))
        os.makedirs(into)
        for name in names:
            there, here = os.path.join(place, name), os.path.join(into, name)
            mode = os.lstat(there).st_mode
            if stat.S_ISLNK(mode):
                os.symlink(os.readlink(there), here)
            elif stat.S_ISFIFO(mode):
                os.mkfifo(here)
            else:
                with open(there, "rb") as file:
                    raw = file.read()
                with open(here, "wb") as file:
                    file.write(raw)
    return target
