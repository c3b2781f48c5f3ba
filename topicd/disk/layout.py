"""The directories of a data directory: is each of them one, and may this user use it? Promise: where one is not, the
daemon is refused before anything changes, with the path, what is wrong and what to do; `topicctl fsck` says the same.

Files are judged by whoever reads them: around a rotten one the rest is served. Of a data directory whose log or topics
somebody has put aside nothing can be said.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from topicd.errors import FormatError
from topicd.paths import DataDir, parse_shard_dir


class Obstacle(NamedTuple):
    path: Path
    what: str  # is wrong with it, and what to do


def check(data: DataDir) -> None:
    """FormatError with the first obstacle. What is missing is none, if it can be made."""
    for path, what in obstacles(data, to_write=True):
        raise FormatError(f"{path} {what}", path=str(path))


def obstacles(data: DataDir, *, to_write: bool = False) -> Iterator[Obstacle]:
    """What lies where topicd has a directory and is none, or may not be read by this user, or written."""
    for path in _places(data):
        what = _wrong(path, to_write)
        if what:
            yield Obstacle(path, what)


def _places(data: DataDir) -> Iterator[Path]:
    """The data directory, or what it would be made in; what topicd has in it; a directory for each shard."""
    yield next(path for path in (data.root, *data.root.parents) if os.path.lexists(path))
    for path in (data.meta, data.wal, data.topics, data.channels, data.chats, data.trash, data.quarantine):
        yield path
        if path in (data.meta, data.wal, data.chats):
            yield from (path / name for name in _names(path) if parse_shard_dir(name) is not None)


def _names(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except OSError:
        return []  # there are none, or _wrong() says why


def _wrong(path: Path, to_write: bool) -> str:
    """Empty: nothing, or it is not there."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        if not os.path.islink(path):
            return ""
        return f"is a link to {os.readlink(path)}, which is not there; mount or make that, or remove the link"
    except OSError as error:
        if error.errno in (errno.EACCES, errno.ELOOP) and not os.path.islink(path):
            return ""  # what it lies in is closed, or no directory, and that is said
        return f"cannot be used: {error.strerror}; mend it, or put it back from a backup"
    if not stat.S_ISDIR(mode):
        return "is no directory; put the directory back if you have it, and move away what is there now"
    if not os.access(path, os.R_OK | os.X_OK, effective_ids=True):
        return f"may not be read by the user with id {os.geteuid()}; give it to that user (chown)"
    if to_write and not os.access(path, os.W_OK, effective_ids=True):
        user = f"the user with id {os.geteuid()}"
        return f"may not be written by {user}; give it to that user (chown), or mount it for writing"
    return ""
