"""Opening a topic whose files are as a clean stop leaves them, from a look at its directory. Promise: what it says is
what load_segments would say, after the same checks; of anything out of the ordinary it says nothing, and load_segments
is asked.

Ordinary is: segments one after the other, sealed ones with data, index and seal, the newest perhaps with data and index
only, and nothing else; no deletion marks. The records of one that is not sealed are checked one by one, and so is its
index; of a sealed one the seal, the sizes and the first record, as readers check the rest when they read it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from topicd._native import core
from topicd._native.interface import Listing
from topicd.disk.envelope import HEADER_BYTES
from topicd.errors import FormatError
from topicd.paths import TOPIC_NAME_FILE
from topicd.shards.storage.segment.index import ENTRY_BYTES
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.names import DATA, IDX, TAGS
from topicd.shards.storage.segment.places import by_segment
from topicd.shards.storage.segment.reindex import APPEND
from topicd.shards.storage.segment.tags import parse_seal

_FRAME_LENGTH = 4  # bytes
_UNSEALED = {DATA, IDX}
_SEALED = {DATA, IDX, TAGS}


class Plain(NamedTuple):
    segments: list[SegmentInfo]
    active: bytes  # the frames of the newest one if it is not sealed


def plain_segments(directory: str, topic_id: int, listing: Listing) -> Plain | None:
    """None: it is not plain, or not all of what is needed was read."""
    label = listing.get(TOPIC_NAME_FILE)
    if label is None or label[0] < HEADER_BYTES:
        return None if listing else Plain([], b"")
    found = by_segment(listing)
    if found is None:
        return None
    segments: list[SegmentInfo] = []
    active = b""
    due = newest = max(found, default=0)
    for first in sorted(found) if len(found) > 1 else found:
        parts = found[first]
        data, index = parts.get(DATA), parts.get(IDX)
        if data is None or index is None or (segments and first != due):
            return None
        if len(parts) == len(_UNSEALED) and first == newest:
            info = _active(first, topic_id, data, index)
            active = data[1]
        elif parts.keys() == _SEALED:
            info = _sealed(directory, first, topic_id, data, index, parts[TAGS])
        else:
            return None
        if info is None:
            return None
        segments.append(info)
        due = info.last_seq + 1
    return Plain(segments, active)


def _active(first: int, topic_id: int, data: tuple[int, bytes], index: tuple[int, bytes]) -> SegmentInfo | None:
    """Frames from the first byte to the last, and the index that follows from them."""
    size, frames = data
    if not size or len(frames) != size or len(index[1]) != index[0]:
        return None
    scan = core.scan_frames(frames, 0, size)
    if scan.end != size or len(scan.runs) != 1:
        return None
    run = scan.runs[0]
    if run.type != APPEND or run.topic_id != topic_id or run.first_seq != first:
        return None
    if core.index_entries(frames, 0, size, 0) != index[1]:
        return None
    return SegmentInfo(first, run.count, size, run.first_ts, run.last_ts, run.first_ts, sealed=False)


def _sealed(
    directory: str,
    first: int,
    topic_id: int,
    data: tuple[int, bytes],
    index: tuple[int, bytes],
    tags: tuple[int, bytes] | None,
) -> SegmentInfo | None:
    if tags is None:
        return None
    try:
        seal = parse_seal(Path(directory), tags[1], tags[0], first)
    except FormatError:
        return None
    if seal is None or seal.damaged or len(seal.gone):
        return None
    if index[0] != seal.count * ENTRY_BYTES or data[0] != seal.data_bytes:
        return None
    head = data[1]
    end = int.from_bytes(head[:_FRAME_LENGTH], "little") + _FRAME_LENGTH
    runs = core.scan_frames(head, 0, end).runs if end <= len(head) else []
    if not runs or runs[0].type != APPEND or runs[0].topic_id != topic_id or runs[0].first_seq != first:
        return None
    return SegmentInfo(first, seal.count, seal.data_bytes, seal.first_ts, seal.last_ts, seal.created_ms, sealed=True)
