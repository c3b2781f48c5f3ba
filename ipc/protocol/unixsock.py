"""Unix sockets by path. Promise: paths of any length work; a live server's socket is never taken away, a dead
one's is replaced; a socket never has wider permissions than asked for, not even for a moment.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from topicd.errors import Forbidden

# sun_path has 108 bytes, the last of which is zero.
PATH_MAX = 107
_PROBE_TIMEOUT_S = 1.0
_TIMEVAL = struct.Struct("ll")  # seconds, microseconds
_UCRED = struct.Struct("iII")  # pid, uid, gid, in the machine's own layout


def listen(path: Path, mode: int, backlog: int = 1024) -> socket.socket:
    """A non-blocking listening socket. OSError(EADDRINUSE) if somebody answers there already."""
    _remove_stale(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as address:
            before = os.umask(0o777 & ~mode)
            try:
                sock.bind(address)
            finally:
                os.umask(before)
        sock.listen(backlog)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def connect(path: Path, timeout: float | None = None) -> socket.socket:
    """A connected blocking socket with that timeout; OSError as connect() gives it.

    A full backlog is waited for: Linux does so only on a socket without O_NONBLOCK, so the kernel keeps the time.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _set_send_timeout(sock, timeout or 0.0)
        with _short(path) as address:
            sock.connect(address)
        _set_send_timeout(sock, 0.0)
        sock.settimeout(timeout)
    except BlockingIOError:
        sock.close()
        raise TimeoutError(errno.ETIMEDOUT, "nobody accepted the connection in time", os.fspath(path)) from None
    except BaseException:
        sock.close()
        raise
    return sock


def inherited(fd: int) -> socket.socket:
    """A socket that the parent made; children of this process do not get it."""
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


def remove(path: Path) -> None:
    """Take away a socket file that is ours; a missing one is fine."""
    path.unlink(missing_ok=True)


def peer_credentials(sock: socket.socket) -> tuple[int, int, int]:
    """(pid, uid, gid) of the process that connected, as the kernel saw it then."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    pid, uid, gid = _UCRED.unpack(raw)
    return pid, uid, gid


def _set_send_timeout(sock: socket.socket, seconds: float) -> None:
    """Zero: no limit."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1_000_000)))


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """An address for path that fits sun_path: through a descriptor of its directory when it is too long."""
    text = os.fspath(path)
    if len(os.fsencode(text)) <= PATH_MAX:
        yield text
        return
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        short = f"/proc/self/fd/{fd}/{path.name}"
        if len(os.fsencode(short)) > PATH_MAX:
            raise OSError(errno.ENAMETOOLONG, "socket file name too long", text)
        yield short
    finally:
        os.close(fd)


def _remove_stale(path: Path) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise OSError(errno.EEXIST, "exists and is not a socket", os.fspath(path))
    try:
        connect(path, _PROBE_TIMEOUT_S).close()
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
        return
    except OSError:
        # A full backlog, a timeout, missing rights: somebody may well be there.
        pass
    raise OSError(errno.EADDRINUSE, "another process listens there", os.fspath(path))


def not_welcome(uid: int, allowed: frozenset[int]) -> Forbidden:
    """To a peer whose user is not among those that may connect."""
    known = ", ".join(map(str, sorted(allowed)))
    return Forbidden(
        f"uid {uid} may not connect; this daemon runs as uid {os.geteuid()} and lets in {known}: run as one of them, "
        f"or add {uid} to the setting allowed_uids (live: SIGHUP)",
        uid=uid,
        allowed=sorted(allowed),
    )
