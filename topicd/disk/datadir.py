"""The data directory: its lock and its FORMAT. Promise: one daemon at a time, and never one that meets
files of a format it does not know.

LOCK holds the pid of the supervisor. Children inherit the descriptor, so that the lock outlives a killed
supervisor until the last of its children has left: two WAL writers can never meet. FORMAT is JSON:
version, created_ms, wal_seed, and since version 4 a checksum of the three. It is believed byte for byte or not
at all: with a wrong seed every group of the log would look like free space.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import stat
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from topicd.clock import SystemClock
from topicd.disk.fs import Fs, no_file, read_all, replace_file
from topicd.errors import FormatError
from topicd.limits import MAX_U64
from topicd.paths import DataDir

FORMAT_VERSION = 7
_UNCHECKED = (1, 2, 3)  # without a checksum; 1 also without direct frames in the log, 2 without commit frames
# 4: without packed and cold segments, 5: without copies of routers that no log has, 6: without judged commits
_OLDER = (*_UNCHECKED, 4, 5, 6)
_FORMAT_MAX = 64 * 1024
_POLL_S = 0.05

log = logging.getLogger(__name__)


class LockHeld(Exception):
    """Another daemon uses the directory."""


class Format(NamedTuple):
    version: int
    created_ms: int
    wal_seed: int  # u64, makes checksums of this directory's WAL differ from any other's


def make_directory(fs: Fs, path: Path) -> None:
    """Make path and its missing parents, each durable: synced data in a directory that vanishes is lost data."""
    missing = [folder for folder in (path, *path.parents) if not fs.exists(folder)]
    fs.mkdir(path)
    for folder in missing:
        with suppress(PermissionError):
            fs.sync_dir(folder.parent)


def take_lock(data: DataDir, patience_s: float) -> int:
    """The descriptor that holds the lock. Waits up to patience_s for the children of a dead supervisor."""
    fd = _open_lock(data.lock)
    deadline = time.monotonic() + patience_s
    waited = False
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            holder = _holder(fd)
            dead = holder is not None and not _alive(holder)
            if dead and time.monotonic() < deadline:
                if not waited:
                    log.info("waiting for the children of a dead supervisor", extra={"pid": holder})
                waited = True
                time.sleep(_POLL_S)
                continue
            os.close(fd)
            raise LockHeld(_refusal(data, holder, dead)) from None
        except OSError:
            os.close(fd)
            raise
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError:
        os.close(fd)
        raise
    return fd


def _open_lock(path: Path) -> int:
    """A file of its own: what a link leads to may be anybody's, and two links to it would be two locks."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o640)
    except OSError as exc:
        if exc.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise FormatError(f"{path} is no plain file; remove it if no topicd runs here") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FormatError(f"{path} is no plain file; remove it if no topicd runs here")
    return fd


def _refusal(data: DataDir, holder: int | None, dead: bool) -> str:
    if dead:
        return f"{data.root} is still in use by processes of a dead topicd (it had pid {holder})"
    return f"{data.root} is in use by another topicd" + (f" (pid {holder})" if holder else "")


def _holder(fd: int) -> int | None:
    text = os.pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None


def _alive(pid: int) -> bool:
    """A zombie is dead: nobody has asked for its exit code yet, that is all."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def open_format(fs: Fs, data: DataDir) -> Format:
    """What FORMAT says; a new directory gets one. The caller holds the lock."""
    if what := no_file(fs, data.format):
        raise _damaged(data, f"it {what}")
    if fs.exists(data.format):
        return _parse(data, read_all(fs, data.format, _FORMAT_MAX))
    if fs.exists(data.identity) or fs.listdir(data.wal) or fs.listdir(data.topics):
        raise FormatError(f"{data.format} is missing although there is data; restore it from a backup")
    # Their names become durable with FORMAT's; shards only add to them.
    for directory in (data.meta, data.wal, data.topics):
        fs.mkdir(directory)
    made = Format(FORMAT_VERSION, SystemClock().now_ms(), int.from_bytes(os.urandom(8)))
    _write(fs, data, made)
    return made


def upgrade(fs: Fs, data: DataDir, found: Format) -> Format:
    """Before anything is written that an older topicd would take for damage, it is told to keep away."""
    if found.version == FORMAT_VERSION:
        return found
    upgraded = found._replace(version=FORMAT_VERSION)
    _write(fs, data, upgraded)
    return upgraded


def _parse(data: DataDir, raw: bytes) -> Format:
    try:
        body: Any = json.loads(raw)
        found = Format(*(body[name] for name in Format._fields))
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise _damaged(data, repr(exc)) from None
    # JSON has more than one way to say a number; a file that topicd wrote has one.
    if any(type(value) is not int or not 0 <= value <= MAX_U64 for value in found):
        raise _damaged(data, "its fields are not whole numbers of 64 bits")
    if found.version not in (*_OLDER, FORMAT_VERSION):
        raise FormatError(f"{data.format}: version {found.version}, this topicd knows version {FORMAT_VERSION}")
    if found.version in _UNCHECKED:
        if body.keys() != set(Format._fields):
            raise _damaged(data, f"a field that version {found.version} does not have")
    elif raw != _render(found):
        raise _damaged(data, "it fails its checksum")
    return found


def _damaged(data: DataDir, why: str) -> FormatError:
    return FormatError(f"{data.format} is damaged ({why}); restore it from a backup")


def _render(made: Format) -> bytes:
    checksum = xxhash.xxh3_64(" ".join(map(str, made)).encode()).hexdigest()
    return (json.dumps({**made._asdict(), "checksum": checksum}, indent=2) + "\n").encode()


def _write(fs: Fs, data: DataDir, made: Format) -> None:
    replace_file(fs, data.format, [_render(made)])
