"""Which records a reader wants, and how much of each."""

from __future__ import annotations

from typing import NamedTuple

from topicd._native.interface import Buffer
from topicd.frames import HEADER, FrameFlag, FrameType, core
from topicd.model import TagMatch

_NO_CHECKSUM = bytes(8)


class ReadFilter(NamedTuple):
    match: TagMatch | None = None
    nodes: tuple[bytes, ...] = ()  # never to be received
    metadata_only: bool = False


NO_FILTER = ReadFilter()


def without_data(frames: Buffer) -> bytes:
    """The same records with data and meta cut off; data_len is 0 and the checksum is zero."""
    out = []
    for seq, ts, node, tag, _, _ in core.decode_frames(frames, 0, len(frames)):
        flags = (FrameFlag.NODE if node else 0) | (FrameFlag.TAG if tag else 0)
        names = (node or b"") + (tag or b"")
        length = HEADER.size - 4 + len(names) + len(_NO_CHECKSUM)
        head = HEADER.pack(length, FrameType.APPEND, flags, 0, seq, ts, len(node or b""), len(tag or b""), 0)
        out.append(head + names + _NO_CHECKSUM)
    return b"".join(out)
