"""A real file with a real bad sector: the kernel says EIO for one page of it, to every process. Promise: all other
bytes are those of the file, writes go to it, and everything is as before when the block ends.

A filesystem in user space (/dev/fuse) whose root is no directory but the file, mounted over the file itself. It needs
the right to mount. Only what such a root is asked for is spoken: attributes, open, read, write, truncate, sync.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

PAGE = 4096
_BUFFER = 1 << 20
_IN = struct.Struct("<IIQQIIIHH")  # length, opcode, unique, node, uid, gid, pid, extension, padding
_OUT = struct.Struct("<IiQ")  # length, errno, unique
_ATTR = struct.Struct("<QQQQQQIIIIIIIIII")
_SETATTR = struct.Struct("<IIQQ")  # valid, padding, handle, size
_WRITE = struct.Struct("<QQIIQII")  # handle, offset, size, …
_READ = struct.Struct("<QQI")  # handle, offset, size
_INIT = struct.Struct("<IIII")
_INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
_FATTR_SIZE = 1 << 3
GETATTR, SETATTR, OPEN, READ, WRITE, STATFS, RELEASE, FSYNC = 3, 4, 14, 15, 16, 17, 18, 20
FORGET, GETXATTR, LISTXATTR, FLUSH, INIT, DESTROY, BATCH_FORGET, FALLOCATE = 2, 22, 23, 25, 26, 38, 42, 43
INTERRUPT = 36


class NotPermitted(Exception):
    """No filesystem may be mounted here."""


class BadSector:
    def __init__(self, path: Path, page: int) -> None:
        self._path = path
        self._bad = (page * PAGE, (page + 1) * PAGE)
        self._file = self._fuse = -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        libc = ctypes.CDLL(None, use_errno=True)
        kind = stat.S_IFMT(self._path.stat().st_mode)
        self._file = os.open(self._path, os.O_RDONLY if kind == stat.S_IFDIR else os.O_RDWR)
        try:
            self._fuse = os.open("/dev/fuse", os.O_RDWR)
        except OSError as exc:
            os.close(self._file)
            raise NotPermitted(str(exc)) from exc
        options = f"fd={self._fuse},rootmode={kind:o},user_id={os.getuid()},group_id={os.getgid()},allow_other"
        if libc.mount(b"badsector", bytes(self._path), b"fuse", 0, options.encode()) != 0:
            code = ctypes.get_errno()
            os.close(self._fuse)
            os.close(self._file)
            raise NotPermitted(os.strerror(code))
        self._thread = threading.Thread(target=self._serve, name="badsector", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        detach = 2
        ctypes.CDLL(None).umount2(bytes(self._path), detach)
        if self._thread is not None:
            self._thread.join(10)
        os.close(self._fuse)
        os.close(self._file)

    def _serve(self) -> None:
        while True:
            try:
                raw = os.read(self._fuse, _BUFFER + PAGE)
            except OSError as exc:
                if exc.errno in {errno.EINTR, errno.EAGAIN, errno.ENOENT}:
                    continue
                return  # unmounted
            _, op, unique, *_ = _IN.unpack_from(raw)
            if op in {FORGET, BATCH_FORGET, INTERRUPT}:
                continue
            if self._waits(op):
                threading.Thread(target=self._reply, args=(op, unique, raw), daemon=True).start()
            elif not self._reply(op, unique, raw) or op == DESTROY:
                return

    def _waits(self, op: int) -> bool:
        """Does its answer take so long that others must not wait for it?"""
        return False

    def _reply(self, op: int, unique: int, raw: bytes) -> bool:
        """False: nobody is there any more."""
        try:
            body, code = self._answer(op, raw[_IN.size :]), 0
        except OSError as exc:
            body, code = b"", -(exc.errno or errno.EIO)
        try:
            os.write(self._fuse, _OUT.pack(_OUT.size + len(body), code, unique) + body)
        except OSError:
            return False
        return True

    def _answer(self, op: int, body: bytes) -> bytes:
        match op:
            case _ if op == INIT:
                _, minor, ahead, _ = _INIT.unpack_from(body)
                return _INIT_OUT.pack(7, min(minor, 31), ahead, 0, 12, 10, _BUFFER, 1, _BUFFER // PAGE, 0, 0)
            case _ if op == GETATTR:
                return self._attributes()
            case _ if op == SETATTR:
                valid, _, _, size = _SETATTR.unpack_from(body)
                if valid & _FATTR_SIZE:
                    os.ftruncate(self._file, size)
                return self._attributes()
            case _ if op == OPEN:
                return struct.pack("<QII", 0, 0, 0)
            case _ if op == READ:
                _, offset, size = _READ.unpack_from(body)
                return self._read(offset, size)
            case _ if op == WRITE:
                _, offset, size, *_ = _WRITE.unpack_from(body)
                return struct.pack("<II", os.pwrite(self._file, body[_WRITE.size : _WRITE.size + size], offset), 0)
            case _ if op in {RELEASE, FSYNC, FLUSH, DESTROY}:
                return b""
            case _:
                raise OSError(errno.ENOSYS, "not spoken here")

    def _read(self, offset: int, size: int) -> bytes:
        start, end = self._bad
        if offset < end and start < offset + size and start < os.fstat(self._file).st_size:
            raise OSError(errno.EIO, "a bad sector")
        return os.pread(self._file, size, offset)

    def _attributes(self) -> bytes:
        at = os.fstat(self._file)
        times = (int(at.st_atime), int(at.st_mtime), int(at.st_ctime))
        attr = _ATTR.pack(
            *(1, at.st_size, at.st_blocks, *times, 0, 0, 0, at.st_mode, 1, at.st_uid, at.st_gid, 0, PAGE, 0)
        )
        return struct.pack("<QII", 0, 0, 0) + attr


class SilentFile(BadSector):
    """A file whose disk does not answer those who open or read it, and says no error either, until `answers` is set."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, -1)
        self.answers = threading.Event()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.answers.set()  # whoever waits in the kernel cannot be killed before
        super().__exit__(kind, exc, trace)

    def _waits(self, op: int) -> bool:
        return op in {OPEN, READ} and not self.answers.is_set()

    def _answer(self, op: int, body: bytes) -> bytes:
        if op in {OPEN, READ}:
            self.answers.wait()
        return super()._answer(op, body)


class SilentDirectory(SilentFile):
    """A whole disk that does not answer: whoever asks for anything in or of that directory waits. With `answers` set
    they are told EIO; the directory is there again, as it was, when the block ends."""

    def _waits(self, op: int) -> bool:
        return op not in {INIT, DESTROY} and not self.answers.is_set()

    def _answer(self, op: int, body: bytes) -> bytes:
        if op in {INIT, DESTROY}:
            return super()._answer(op, body)
        self.answers.wait()
        raise OSError(errno.EIO, "the disk was away")
