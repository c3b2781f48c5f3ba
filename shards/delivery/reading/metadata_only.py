"""Frames without their data, for readers that only want to know what is there."""

from __future__ import annotations

from topicd._native.interface import Buffer
from topicd.frames import HEADER, FrameFlag, FrameType, core

_NO_CHECKSUM = bytes(8)


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
