"""What many small directories hold, read at once. Promise: what is said was read just now, whole; where that was not
possible nothing is said, and whoever needs it asks by single calls, which say why.

Fs.look_into takes directories. The real filesystem reads all of them in C, without the interpreter's lock;
look_by_calls below is what that means, call by call, and serves where there is no C and where tests want to see, fail
or crash every call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topicd._native.interface import Listing
from topicd.disk.interface import Fs
from topicd.limits import KIB, MIB

__all__ = ["BUDGET", "HEAD", "MOST_FILES", "WHOLE", "Listing", "look_by_calls"]

WHOLE = 32 * KIB  # files up to this size are read whole
HEAD = 4 * KIB  # so much of larger ones
MOST_FILES = 64  # in a directory; one with more is left to single calls
BUDGET = 16 * MIB  # bytes of all files and names of one look; what exceeds them is left to single calls


def look_by_calls(fs: Fs, directories: Sequence[str]) -> list[Listing | None]:
    """Fs.look_into by the single calls of fs."""
    found: list[Listing | None] = []
    used = 0
    for directory in directories:
        try:
            names = fs.listdir(Path(directory))
        except OSError:
            found.append(None)
            continue
        if len(names) > MOST_FILES or used > BUDGET:
            found.append(None)
            continue
        listing: Listing = {}
        for name in names:
            listing[name] = file = _file(fs, f"{directory}/{name}", BUDGET - used)
            used += len(name) + (len(file[1]) if file is not None else 0)
        found.append(listing)
    return found


def _file(fs: Fs, path: str, left: int) -> tuple[int, bytes] | None:
    try:
        file = fs.open(path)
        try:
            size = file.size()
            wanted = size if size <= WHOLE else HEAD
            content = file.pread(wanted, 0) if wanted <= left else b""
        finally:
            file.close()
    except OSError:
        return None
    return (size, content) if len(content) == wanted else None
