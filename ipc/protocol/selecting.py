"""Some of the records in a buffer of frames, by name instead of by position."""

from __future__ import annotations

from typing import Any

from topicd._native import core
from topicd._native.interface import Selection
from topicd.limits import MAX_SEQ
from topicd.model import TagMatch

_ANY_NUMBER = 2**31
_ANY_SIZE = 2**62


def select(
    buffer: Any,
    start: int,
    end: int,
    *,
    after_seq: int = 0,
    up_to_seq: int = MAX_SEQ,
    limit: int = _ANY_NUMBER,
    max_bytes: int = _ANY_SIZE,
    match: TagMatch | None = None,
    without_nodes: tuple[bytes, ...] = (),
    dead: bytes = b"",
) -> Selection:
    """Frames of buffer[start:end] with after_seq < seq <= up_to_seq and that tag, without those of some nodes and
    without the dead (packed pairs of seqs); at most so many records and bytes, but one at least. Raises ValueError when
    they are malformed."""
    equal = None if match is None or match.prefix else match.value
    prefix = match.value if match is not None and match.prefix else None
    return core.select_frames(
        buffer, start, end, after_seq, up_to_seq, limit, max_bytes, 0, equal, prefix, without_nodes, dead
    )
