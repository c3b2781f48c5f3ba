"""Named POSIX shared memory with a header that says what it is. Promise: nobody maps bytes of another kind,
version, size or instance by mistake, and every page of a region exists before anybody maps it: whoever fills /dev/shm
later takes nothing from it. Only the supervisor creates and unlinks; shards attach.

    0  8s   magic        b"topicd\\0\\0"
    8  u32  version
   12  u32  kind         RegionKind
   16  u64  body_len     bytes behind this header
   24  16s  instance     ascii, the supervisor's run
   64  body
"""

from __future__ import annotations

import mmap
import os
import struct
from enum import IntEnum

import posix_ipc

from topicd import paths
from topicd.errors import FormatError

MAGIC = b"topicd\0\0"
VERSION = 1
HEADER = struct.Struct(
    "<"  # little-endian, unpadded
    "8s"  # magic
    "I"  # version
    "I"  # kind
    "Q"  # body_len
    "16s"  # instance
)
BODY_AT = 64


class RegionKind(IntEnum):
    RING = 1
    SLOTS = 2
    STATS = 3
    BELLS = 4
    PRESSURE = 5
    TALLY = 6


class Region:
    """One mapped region. `memory` is the whole mapping; the body begins at BODY_AT."""

    def __init__(self, name: str, memory: mmap.mmap, body_len: int) -> None:
        self.name = name
        self.memory = memory
        self.body_len = body_len

    def close(self) -> None:
        # A view that still points into the mapping keeps it alive; the process exit frees it then.
        try:
            self.memory.close()
        except BufferError:
            return


def create(name: str, kind: RegionKind, body_len: int, instance: str) -> Region:
    """A new zero-filled region; an existing one of that name is an error, never reused. OSError if there is no memory
    for all of it: then it does not exist."""
    size = BODY_AT + body_len
    shm = posix_ipc.SharedMemory(name, posix_ipc.O_CREX, mode=0o600, size=size)
    try:
        # A hole would be filled at its first touch, or kill whoever touches it.
        os.posix_fallocate(shm.fd, 0, size)
        memory = mmap.mmap(shm.fd, size)
    except OSError:
        unlink(name)
        raise
    finally:
        shm.close_fd()
    HEADER.pack_into(memory, 0, MAGIC, VERSION, kind, body_len, instance.encode())
    return Region(name, memory, body_len)


def attach(name: str, kind: RegionKind, instance: str) -> Region:
    try:
        shm = posix_ipc.SharedMemory(name)
    except posix_ipc.ExistentialError:
        raise FormatError(f"shared memory {name} does not exist; is the supervisor that made it gone?") from None
    try:
        size = os.fstat(shm.fd).st_size
        if size < BODY_AT:
            raise FormatError(f"shared memory {name} has {size} bytes, a header needs {BODY_AT}")
        memory = mmap.mmap(shm.fd, size)
    finally:
        shm.close_fd()
    magic, version, found_kind, body_len, found_instance = HEADER.unpack_from(memory, 0)
    wanted = (MAGIC, VERSION, int(kind), size - BODY_AT, instance)
    found = (magic, version, found_kind, body_len, found_instance.rstrip(b"\0").decode("ascii", "replace"))
    for label, want, have in zip(("magic", "version", "kind", "size", "instance"), wanted, found, strict=True):
        if want != have:
            memory.close()
            raise FormatError(f"shared memory {name}: {label} is {have!r}, expected {want!r}")
    return Region(name, memory, body_len)


def unlink(name: str) -> None:
    try:
        posix_ipc.unlink_shared_memory(name)
    except posix_ipc.ExistentialError:
        return


def names_of(instance: str) -> list[str]:
    """Every region of one instance that is still there."""
    prefix = paths.shm_prefix(instance).lstrip("/")
    return sorted(f"/{entry}" for entry in os.listdir(paths.SHM_DIR) if entry.startswith(prefix))
