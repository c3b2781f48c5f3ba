"""Dead letters as records: a job with where it came from and what became of it in its meta, and back again."""

from __future__ import annotations

from typing import Any

import msgpack

from topicd.frames import core
from topicd.limits import MAX_DATA_AND_META, MAX_META, MAX_META_KEYS, PRIORITY_DEFAULT
from topicd.shards.delivery.queues.facts import Past
from topicd.shards.delivery.queues.jobs import Jobs

PREFIX = "$dead_letter_"
FROM, DELIVERIES, SRC_SEQ = f"{PREFIX}from", f"{PREFIX}deliveries", f"{PREFIX}src_seq"
REASON, FIRST_TS, LAST_TS = f"{PREFIX}reason", f"{PREFIX}first_ts", f"{PREFIX}last_ts"
PRIORITY, GROUP = f"{PREFIX}priority", f"{PREFIX}group"


def letter(frames: bytes, queue: str, jobs: Jobs, past: Past) -> bytearray:
    """The frame of a dead letter, as a client would lay it out, from the stored frame of the job."""
    ((seq, _, node, tag, meta, data),) = core.decode_frames(frames, 0, len(frames))
    given: dict[str, Any] = {} if not meta else dict(msgpack.unpackb(meta))
    origin = {FROM: queue, DELIVERIES: str(past.deliveries), SRC_SEQ: str(seq)}
    more = {REASON: past.reason, FIRST_TS: str(past.first_ms), LAST_TS: str(past.last_ms)}
    lane = jobs.lane_of(seq)
    if lane.band.priority != PRIORITY_DEFAULT:
        more[PRIORITY] = str(lane.band.priority)
    if lane.group.name:
        more[GROUP] = lane.group.name
    for extra in ({**origin, **more}, origin, {}):
        packed = msgpack.packb({**given, **extra}) if given or extra else b""
        fits = len(packed) <= MAX_META and len(given) + len(extra) <= MAX_META_KEYS
        if fits and len(packed) + len(data) + 2 <= MAX_DATA_AND_META:
            break  # a job that is as large as any may be goes without the rest
    return core.encode_batch([bytes(data)], _one(tag), _one(node), [packed or None])


def _one(name: Any) -> list[bytes | None] | None:
    return None if name is None else [bytes(name)]


class Returned:
    """A dead letter that goes back."""

    __slots__ = ("frames", "options", "queue")

    def __init__(self, queue: str, frames: bytearray, options: bytes) -> None:
        self.queue = queue
        self.frames = frames
        self.options = options  # as an append has them; empty: plain


def origin(meta: Any) -> str:
    """The queue that a record is a dead letter of; empty: it is none."""
    if not meta:
        return ""
    found = msgpack.unpackb(meta).get(FROM, "")
    return found if isinstance(found, str) else ""


def returned(row: Any) -> Returned:
    """The job that a dead letter was."""
    _, _, node, tag, meta, data = row
    given = dict(msgpack.unpackb(meta))
    rest = {key: value for key, value in given.items() if not str(key).startswith(PREFIX)}
    options: dict[str, Any] = {}
    if str(given.get(PRIORITY, "")).isdigit():
        options["priority"] = int(given[PRIORITY])
    if given.get(GROUP):
        options["group"] = str(given[GROUP])
    frames = core.encode_batch([bytes(data)], _one(tag), _one(node), [msgpack.packb(rest)] if rest else None)
    return Returned(str(given[FROM]), frames, msgpack.packb([[0, 1, options]]) if options else b"")
