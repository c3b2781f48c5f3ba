"""A sealed segment, compressed. Promise: any offset can be read without unpacking what lies before it.

    0  64 bytes of header, with the end offset and the method
   64  for each block of up to 256 KiB of messages:
         u32 LE 0x184D2A5C, u32 LE 8     a frame that zstd skips
         u32 LE packed bytes, u32 LE plain bytes
         a zstd frame with its checksum

Everything behind the header is one zstd stream: `tail -c +65 segment.0.z | zstd -dc` gives the messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from topicd.disk.fs import File
from topicd.errors import InvalidRequest
from topicd.filechannel.layout import HEADER_BYTES, Header, Span
from topicd.limits import KIB

BLOCK_BYTES = 256 * KIB
_LEVEL = 3
_SKIPPED = 0x184D2A5C
_HEAD = struct.Struct(
    "<"
    "I"  # magic of a skippable frame
    "I"  # its length: 8
    "I"  # packed bytes
    "I"  # plain bytes
)
_PACKED_MAX = BLOCK_BYTES * 2


class Block(NamedTuple):
    begin: int  # offset of its first byte
    plain: int  # bytes
    position: int  # of the zstd frame in the file
    packed: int


class PackedDamage(Exception):
    """A block cannot be read; the span says which offsets are gone with it."""

    def __init__(self, span: Span, reason: str) -> None:
        super().__init__(reason)
        self.span = span


def zstd() -> Any:
    """The standard library's module, or its backport before Python 3.14."""
    try:
        from compression import zstd as found
    except ImportError:
        try:
            from backports import zstd as found
        except ImportError:
            raise InvalidRequest("compressed segments need zstd: pip install backports.zstd") from None
    return found


def pack_blocks(source: Iterator[bytes]) -> Iterator[bytes]:
    """Blocks of plain bytes as they lie in the file."""
    module = zstd()
    options = {module.CompressionParameter.compression_level: _LEVEL, module.CompressionParameter.checksum_flag: 1}
    for plain in source:
        packed = module.compress(plain, options=options)
        yield _HEAD.pack(_SKIPPED, 8, len(packed), len(plain)) + packed


def read_index(file: File, header: Header) -> list[Block]:
    """Where each block lies. Ends early if the file does: its last offsets are then in no block."""
    blocks: list[Block] = []
    offset, position, size = header.begin, HEADER_BYTES, file.size()
    while position + _HEAD.size <= size:
        magic, length, packed, plain = _HEAD.unpack(file.pread(_HEAD.size, position))
        position += _HEAD.size
        if magic != _SKIPPED or length != 8 or packed > _PACKED_MAX or not 0 < plain <= BLOCK_BYTES:
            break
        if position + packed > size:
            break
        blocks.append(Block(offset, plain, position, packed))
        offset, position = offset + plain, position + packed
    return blocks


def read_block(file: File, block: Block) -> bytes:
    module = zstd()
    span = Span(block.begin, block.begin + block.plain)
    try:
        plain: bytes = module.decompress(file.pread(block.packed, block.position))
    except module.ZstdError as error:
        raise PackedDamage(span, f"a compressed block fails: {error}") from error
    if len(plain) != block.plain:
        raise PackedDamage(span, f"a compressed block holds {len(plain)} bytes, expected {block.plain}")
    return plain
