"""What a router makes of records. Promise: the same record gives the same copy, whenever it is made; data is never
touched, and what was a record stays one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgpack

from topicd.frames import HOPS_AT, copied_frame, core
from topicd.ipc.protocol.selecting import select
from topicd.limits import HOPS_MAX, MAX_META_KEYS, MAX_NODE, MAX_TAG, MIB
from topicd.shards.delivery.routing.definition import FIELD, Definition

STAMP = "_topics_router"
ORIGINAL = "_topics_original_meta"
_KEY = "router:"  # with this a stamp's idempotency_key begins
_CHARACTER_MAX = 4  # bytes in UTF-8
_BATCH_BYTES = MIB


class Copies(NamedTuple):
    """A batch to be stamped, and the last source seq that it covers."""

    frames: bytearray
    records: int
    last_seq: int
    complete: bool  # nothing of the piece lies behind it


def without_first(made: Copies, count: int) -> Copies:
    """Without so many of its records."""
    if not count:
        return made
    offsets = memoryview(core.frame_offsets(made.frames, 0, len(made.frames))).cast("I")
    left = made.frames[offsets[count] :] if count < made.records else bytearray()
    return made._replace(frames=left, records=made.records - count)


def make(one: Definition, buffer: Any, start: int, end: int, after: int, limit: int) -> Copies:
    """Of the frames buffer[start:end] those behind `after`, at most so many."""
    found = select(buffer, start, end, after_seq=after, limit=limit, max_bytes=_BATCH_BYTES)
    if len(found.ranges) == 1:
        source, (at, to) = buffer, found.ranges[0]
    else:
        view = memoryview(buffer)
        source = b"".join(view[a:b] for a, b in found.ranges)
        at, to = 0, len(source)
    if one.plain:
        frames = core.copy_frames(source, at, to, HOPS_MAX, one.preserve_node, one.preserve_tag)
        records = len(core.frame_offsets(frames, 0, len(frames))) // 4
    else:
        frames, records = _changed(one, source, at, to)
    return Copies(frames, records, max(after, found.last_seq), found.end >= end)


def _changed(one: Definition, source: Any, at: int, to: int) -> tuple[bytearray, int]:
    offsets = memoryview(core.frame_offsets(source, at, to)).cast("I")
    chosen = []
    for offset, record in zip(offsets, core.decode_frames(source, at, to), strict=True):
        hops = source[at + offset + HOPS_AT]
        if hops < HOPS_MAX and _sampled(one, record[0]):
            chosen.append((hops, record))
    out = bytearray()
    for n, (hops, (seq, ts, node, tag, meta, data)) in enumerate(chosen):
        names = {"tag": _text(tag), "node": _text(node), "source": one.source}
        new_tag = _filled(one.set_tag, names, MAX_TAG) if one.set_tag is not None else tag if one.preserve_tag else b""
        new_node = (
            _filled(one.set_node, names, MAX_NODE) if one.set_node is not None else node if one.preserve_node else b""
        )
        new_meta = _stamped(one, seq, meta or b"") if one.stamped else meta or b""
        more = n + 1 < len(chosen)
        out += copied_frame(new_node or b"", new_tag or b"", new_meta, data, hops + 1, ts, more=more)
    return out, len(chosen)


def _sampled(one: Definition, seq: int) -> bool:
    if one.sample == 1:
        return True
    key = one.source_id.to_bytes(8, "little") + seq.to_bytes(8, "little")
    return core.xxh3_64(key) % one.sample == 0


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", "surrogateescape")


def _filled(template: str, names: dict[str, str], most: int) -> bytes:
    """The template with its fields, which are no templates themselves; what is too long is cut behind a whole
    character."""
    text = FIELD.sub(lambda found: names[found[1]], template)
    raw = text.encode("utf-8", "surrogateescape")
    end = min(most, len(raw))
    while end > most - _CHARACTER_MAX and end < len(raw) and raw[end] & 0xC0 == 0x80:
        end -= 1  # inside a character
    return raw[:end]


def _stamped(one: Definition, seq: int, meta: bytes) -> bytes:
    """With the word whose copy it is, in the place of the one before it. A meta that is full, or has something else
    there, goes one level down."""
    original: dict[Any, Any] = msgpack.unpackb(meta, strict_map_key=False) if meta else {}
    if _is_stamp(original.get(STAMP)):
        del original[STAMP]
    if STAMP in original or len(original) >= MAX_META_KEYS:
        original = {ORIGINAL: original}
    original[STAMP] = {
        "idempotency_key": f"{_KEY}{one.router}:{one.source_id}:{one.source_id}:{seq}",
        "router": one.router,
        "source_topic": one.source,
        "source_topic_id": one.source_id,
        "source_epoch": one.source_id,
        "source_seq": seq,
    }
    raw: bytes = msgpack.packb(original)
    return raw


def _is_stamp(found: Any) -> bool:
    return isinstance(found, dict) and str(found.get("idempotency_key", "")).startswith(_KEY)
