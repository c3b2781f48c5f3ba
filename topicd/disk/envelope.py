"""Small files whole: written beside, synced, renamed over the old one; read only if every byte checks out.

Promise: once save() returned, the new body survives power loss; after a failed or interrupted save the old or
the new one is there, whole; load() never guesses.

    0  4s  magic     what kind of file
    4  u16 version   of the body's layout
    6  u16 flags     0
    8  u32 body_len
   12  u64 xxh3_64   over bytes 0..12 and the body
   20  body          msgpack
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgpack
import xxhash

from topicd.disk.fs import Fs, read_all, replace_file
from topicd.errors import FormatError
from topicd.limits import SMALL_FILE_MAX

_HEADER = struct.Struct(
    "<"  # little-endian, unpadded
    "4s"  # magic
    "H"  # version
    "H"  # flags
    "I"  # body_len
)
_CHECKSUM = struct.Struct("<Q")
HEADER_BYTES = _HEADER.size + _CHECKSUM.size


def save(fs: Fs, path: Path, magic: bytes, version: int, body: Any) -> None:
    """Replace path by the new body, durably. The directory must exist."""
    replace_file(fs, path, [pack(path, magic, version, body)])


def load(fs: Fs, path: Path, magic: bytes, version: int) -> Any:
    """The body. FileNotFoundError without such a file; FormatError if its bytes are not what save() wrote."""
    return unpack(path, magic, version, read_all(fs, path, SMALL_FILE_MAX))


def version_of(raw: bytes) -> int | None:
    """What the head says, not checked yet."""
    return int(_HEADER.unpack_from(raw)[1]) if len(raw) >= HEADER_BYTES else None


def pack(path: Path, magic: bytes, version: int, body: Any) -> bytes:
    return enclose(path, magic, version, bytes(msgpack.packb(body, use_bin_type=True)))


def enclose(path: Path, magic: bytes, version: int, packed: bytes) -> bytes:
    """The file around a body that is msgpack already."""
    return b"".join(enclosed(path, magic, version, [packed]))


def enclosed(path: Path, magic: bytes, version: int, pieces: Sequence[bytes], most: int | None = None) -> list[bytes]:
    """The file around a body in pieces, in pieces: to put a large one together would keep the interpreter's lock for
    as long as its pages take to come, tens of milliseconds."""
    if len(magic) != 4:
        raise ValueError(f"magic must have 4 bytes, not {magic!r}")
    size, most = sum(map(len, pieces)), most or SMALL_FILE_MAX
    if HEADER_BYTES + size > most:
        raise _wrong(path, "size", HEADER_BYTES + size, f"at most {most}")
    head = _HEADER.pack(magic, version, 0, size)
    return [head + _CHECKSUM.pack(_checksum(head, *pieces)), *pieces]


def unpack(path: Path, magic: bytes, version: int, raw: bytes) -> Any:
    body = _checked(path, magic, version, raw)
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException) as error:
        raise _wrong(path, "body", str(error) or type(error).__name__, "msgpack") from error


def check(path: Path, magic: bytes, version: int, raw: bytes) -> None:
    """Raises what unpack() would, without looking into the body: a thread that does this holds nobody up."""
    _checked(path, magic, version, raw)


def _checked(path: Path, magic: bytes, version: int, raw: bytes) -> memoryview:
    if len(raw) < HEADER_BYTES:
        raise _wrong(path, "size", len(raw), f"at least {HEADER_BYTES}")
    found_magic, found_version, flags, body_len = _HEADER.unpack_from(raw)
    (checksum,) = _CHECKSUM.unpack_from(raw, _HEADER.size)
    if found_magic != magic:
        raise _wrong(path, "magic", found_magic, magic)
    if found_version != version:
        raise _wrong(path, "version", found_version, version)
    if flags != 0:
        raise _wrong(path, "flags", flags, 0)
    if len(raw) != HEADER_BYTES + body_len:
        raise _wrong(path, "size", len(raw), HEADER_BYTES + body_len)
    body = memoryview(raw)[HEADER_BYTES:]
    actual = _checksum(raw[: _HEADER.size], body)
    if actual != checksum:
        raise _wrong(path, "checksum", f"{actual:016x}", f"{checksum:016x}")
    return body


def _checksum(head: bytes, *pieces: bytes | memoryview) -> int:
    state = xxhash.xxh3_64(head)
    for piece in pieces:
        state.update(piece)
    return state.intdigest()


def _wrong(path: Path, what: str, found: object, expected: object) -> FormatError:
    message = f"{path}: {what} is {found}, expected {expected}"
    return FormatError(message, path=str(path), what=what, found=found, expected=expected)
