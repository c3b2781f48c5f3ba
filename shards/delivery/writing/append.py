"""From a client's batch to the ring. Promise: everything is checked before a seq is assigned, and a batch that
cannot be stored leaves no trace; nothing is visible before its class is met.

Batches that arrive together for one topic travel as one entry: a client with many small writes in flight costs
little more than one with a few large ones.
"""

from __future__ import annotations

import errno
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topicd.errors import BatchTooLarge, InvalidRequest, Throttled, TopicFull, TopicNotFound
from topicd.frames import codec_error, core, producer_frame
from topicd.ipc.protocol.wire import APPEND, FLAG_COPY, FLAG_DEDUPED, FLAG_KEY, FLAG_PERFORMANCE, HEADER
from topicd.limits import FRAME_OVERHEAD, IDEMPOTENCY_KEY_MAX, KIB, MAX_BATCH_RECORDS
from topicd.shards.delivery.writing.copy_ranges import Copied
from topicd.shards.delivery.writing.in_flight import AppendEntry, Replier, Run, Waiter
from topicd.shards.delivery.writing.outlet import Need, storage_failed
from topicd.shards.delivery.writing.reservation import reserve_seqs

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.sessions.session import Session
    from topicd.shards.delivery.topic.topic import Topic

_RETRY_MS = 20
_SMALL = 16 * KIB  # a batch below this may travel with others
_TOGETHER = 256 * KIB  # as long as they are together no more than this
_RUN_MESSAGE = HEADER.size + APPEND.size + FRAME_OVERHEAD  # the least that an append of one record can be


class Appender:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self._open: AppendEntry | None = None  # takes further small batches until the input is used up

    def append(self, replier: Replier, request_id: int, flags: int, body: memoryview) -> None:
        """Take one APPEND body. Raises what refuses it; otherwise the replier is told later."""
        if len(body) < APPEND.size:
            raise InvalidRequest(f"append has {len(body)} bytes of body, the fixed fields alone are {APPEND.size}")
        topic_id, producer_id, batch_no, count = APPEND.unpack_from(body)
        topic = self._actor.topics.by_id.get(topic_id)
        if topic is None or not topic.live:
            raise TopicNotFound(f"no topic with id {topic_id}", topic_id=topic_id)
        at, key = APPEND.size, b""
        if flags & FLAG_KEY:
            if flags & FLAG_COPY:
                raise InvalidRequest("a copy has a number and no idempotency key")
            key, at = _cut_key(body, at)
        if producer_id and not topic.producers.is_next(producer_id, batch_no):
            _, first_seq, records = topic.producers.lookup(producer_id, batch_no)
            self._answer_again(topic, Waiter(replier, request_id, flags | FLAG_DEDUPED, first_seq, records))
            return
        if key and (known := self._actor.keys.lookup(topic, key)) is not None:
            self._answer_again(topic, Waiter(replier, request_id, flags | FLAG_DEDUPED, *known))
            return
        copied: Copied | None = Copied(self._actor, body[at:], count) if flags & FLAG_COPY else None
        size = len(body) - at if copied is None else copied.size
        self._admit(topic, size, count)
        direct = bool(producer_id and not key) and self._actor.direct.takes(
            topic, size, count, copied=copied is not None
        )
        entry = self._entry_for(topic, size, count, direct=direct)
        start = len(entry.frames)
        if copied is None:
            entry.frames += body[at:]
        else:
            copied.put(entry.frames)
        first_seq = self._add(entry, start, count, producer_id, batch_no)
        entry.waiters.append(Waiter(replier, request_id, flags, first_seq, count))
        if key:
            entry.keys.append(key)
            self._actor.keys.remember(topic, key, first_seq, count)
        if flags & FLAG_PERFORMANCE and not entry.started_at:
            entry.started_at = self._actor.clock.monotonic()
        if direct or size >= _SMALL:
            self.close_entry()

    def close_entry(self) -> None:
        """The input is used up, or something else comes first: what was gathered goes to the ring."""
        entry, self._open = self._open, None
        if entry is not None and (entry.waiters or entry.runs):
            self._place(entry)

    # ---- runs ----

    def take_run(self, session: Session, buf: memoryview, start: int, end: int) -> int:
        """Take the plain single-record appends that follow each other at start as one entry; the bytes used up.
        0: the first of them is no such append, or something may be in its way: `append` says what."""
        if end - start < _RUN_MESSAGE:
            return 0
        actor = self._actor
        topic_id, producer_id, batch_no, count = APPEND.unpack_from(buf, start + HEADER.size)
        topic = actor.topics.by_id.get(topic_id)
        if topic is None or not topic.live or topic.capped or not producer_id or count != 1:
            return 0
        if not topic.producers.is_next(producer_id, batch_no) or not self._has_room(topic, end - start):
            return 0
        self.close_entry()
        most = min(actor.settings.max_inflight_per_connection - session.in_flight, (end - start) // _RUN_MESSAGE)
        if most <= 0:
            return 0
        if not topic.ephemeral:
            session.outlet = actor.outlets[topic.outlet]
            session.outlet.rouse()
        need, first, ts = topic.need_for(topic.head + most), topic.head + 1, max(actor.clock.now_ms(), topic.last_ts)
        taken = core.take_run(
            *(buf, start, end, topic_id, producer_id, batch_no),
            *(first, ts, need is Need.SYNCED, most, _TOGETHER),
        )
        if taken is None:
            return 0
        used, frames, offsets, wire, request_ids = taken
        entry = self._open = AppendEntry(actor, topic, need, ts)
        entry.frames = frames
        entry.wire.append(wire)
        entry.runs.append(Run(session, request_ids, first))
        entry.producers.append((producer_id, batch_no))
        count = len(offsets) // 4
        self._note_batch(entry, offsets, 0, count)
        topic.producers.assign_run(producer_id, batch_no, first, count)
        session.in_flight += count
        return used

    def _has_room(self, topic: Topic, size: int) -> bool:
        """Nothing that `_admit` looks at stands in the way."""
        actor = self._actor
        outlet = actor.outlets[topic.outlet]
        return not (
            actor.draining
            or topic.debris
            or (outlet.read_only_errno and not topic.ephemeral)
            or outlet.in_flight_bytes + actor.direct.bytes + size > actor.settings.max_inflight_bytes
            or actor.checkpointer.failing
            or actor.checkpointer.full
            or actor.total_bytes_share is not None
        )

    # ---- admission ----

    def _admit(self, topic: Topic, size: int, count: int) -> None:
        """Everything that can refuse a batch without looking at its records."""
        actor = self._actor
        outlet = actor.outlets[topic.outlet]
        if not 0 < count <= MAX_BATCH_RECORDS:
            code = BatchTooLarge if count else InvalidRequest
            raise code(f"a write has 1 to {MAX_BATCH_RECORDS} records, this one says {count}")
        if outlet.read_only_errno and not topic.ephemeral:
            raise outlet.refusal()
        if topic.debris:
            raise storage_failed(actor.checkpointer.failing or errno.EIO)
        under_way = outlet.in_flight_bytes + actor.direct.bytes
        if under_way and under_way + size > actor.settings.max_inflight_bytes:
            raise Throttled(
                f"{under_way} bytes are under way, {actor.settings.max_inflight_bytes} are allowed",
                limit="max_inflight_bytes",
                retry_after_ms=_RETRY_MS,
            )
        if actor.checkpointer.failing and actor.checkpointer.behind and not topic.ephemeral:
            raise storage_failed(actor.checkpointer.failing)
        if actor.checkpointer.full:
            raise Throttled(
                "the disk does not keep up: too much waits in memory for its checkpoint",
                limit="checkpoint_bytes",
                retry_after_ms=100,
            )
        total = actor.total_bytes_share
        if total is not None and actor.total_bytes() + size > total:
            raise Throttled(
                f"this shard holds {actor.total_bytes()} bytes, its share of max_total_bytes is {total}",
                limit="max_total_bytes",
                retry_after_ms=1_000,
            )
        if topic.capped:
            self._check_caps(topic, count, size - FRAME_OVERHEAD * count)

    def _check_caps(self, topic: Topic, count: int, content: int) -> None:
        config = topic.config
        for cap, size, what in ((config.cap_records, count, "records"), (config.cap_bytes, content, "bytes")):
            if not cap:
                continue
            if size > cap:
                raise InvalidRequest(f"one write of {size} {what} is larger than the whole cap of {cap} {what}")
            if config.discard == "reject" and _used(topic, what) + size > cap:
                self._actor.retention.expire(topic)
                used = _used(topic, what)
                if used + size > cap:
                    message = f"topic {topic.name} holds {used} {what} of {cap}"
                    raise TopicFull(message, cap=cap, used=used, what=what)

    # ---- gathering ----

    def _entry_for(self, topic: Topic, size: int, count: int, *, direct: bool) -> AppendEntry:
        """The open entry if the batch may join it, else a new one."""
        need = topic.need_for(topic.head + count)
        entry = self._open
        if entry is not None:
            joins = entry.topic is topic and entry.need is need and size < _SMALL and not direct
            if joins and len(entry.frames) + size <= _TOGETHER:
                return entry
            self.close_entry()
            # Placing it may have changed what the next one needs.
            need = topic.need_for(topic.head + count)
        ts = max(self._actor.clock.now_ms(), topic.last_ts)
        entry = self._open = AppendEntry(self._actor, topic, Need.STORED if direct else need, ts)
        return entry

    def _add(self, entry: AppendEntry, start: int, count: int, producer_id: int, batch_no: int) -> int:
        """Stamp the batch that begins at start, behind those that were in the entry before; its first seq. A bad batch
        leaves nothing behind."""
        topic, frames = entry.topic, entry.frames
        first, end = topic.head + 1, len(frames)
        try:
            packed = core.stamp_frames(frames, start, end, topic.id, first, entry.ts, entry.need >= Need.SYNCED)
            found = len(packed) // 4
            if found != count:
                raise ValueError("invalid_request", f"the write says {count} records and holds {found}")
        except ValueError as exc:
            del frames[start:]
            if not (entry.waiters or entry.runs):
                self._open = None
            raise codec_error(exc) from None
        self._note_batch(entry, packed, start, count)
        if producer_id:
            topic.producers.assign(producer_id, batch_no, first, count)
            entry.producers.append((producer_id, batch_no))
        if end - start >= _SMALL:
            # Now, while they are at hand: once they are stored, each look at a record is a look at cold memory.
            entry.untagged = start == 0 and not core.frame_tags(frames, 0, end)
        if entry.direct:
            return first
        if producer_id:
            entry.wire.append(producer_frame(topic.id, first, entry.ts, producer_id, batch_no, count))
        if end - start < _SMALL:
            entry.wire.append(frames[start:end])
        else:
            entry.wire += pieces(frames, memoryview(packed).cast("I"), self._actor.piece_bytes)
        return first

    @staticmethod
    def _note_batch(entry: AppendEntry, packed: bytes, start: int, count: int) -> None:
        topic = entry.topic
        if count == 1:
            entry.offsets.append(start)  # type: ignore[attr-defined]
        elif start == 0:
            entry.offsets = array("I", packed)
        else:
            entry.offsets.extend([start + offset for offset in memoryview(packed).cast("I")])  # type: ignore[attr-defined]
        if len(entry.offsets) == count:
            topic.under_way.append(entry)
            if entry.need is Need.SYNCED:
                topic.pending_synced += 1
        topic.head += count
        topic.last_ts = entry.ts
        topic.pending_count += count
        topic.pending_bytes += len(entry.frames) - start - FRAME_OVERHEAD * count

    def _place(self, entry: AppendEntry) -> None:
        topic, actor = entry.topic, self._actor
        if (topic.reserves or topic.ephemeral) and not entry.direct:
            reserve_seqs(actor, topic)
        if topic.ephemeral and entry.need is Need.PLACED:
            entry.answer()
            entry.committed()
        elif entry.direct or topic.lane:
            actor.direct.place(entry)
        else:
            self.submit(entry)

    def submit(self, entry: AppendEntry) -> None:
        """To the ring: nothing of its topic is under way past the log."""
        actor = self._actor
        outlet = actor.outlets[entry.topic.outlet]
        wire = entry.wire
        if len(wire) > 1 and len(entry.frames) < _TOGETHER + _SMALL:
            wire = [b"".join(wire)]
        outlet.submit(wire, sum(map(len, wire)), entry)
        actor.to_ring.add(outlet)

    def _answer_again(self, topic: Topic, waiter: Waiter) -> None:
        """A retry: the first answer once more, or a place among those who wait for it."""
        for entry in topic.under_way:
            if entry.first_seq <= waiter.first_seq < entry.first_seq + entry.count:
                entry.waiters.append(waiter)
                return
        waiter.replier.deduped(waiter, topic.visible)


def _used(topic: Topic, what: str) -> int:
    if what == "records":
        return topic.count + topic.pending_count
    return topic.bytes + topic.pending_bytes


def pieces(frames: bytearray, offsets: Sequence[int], piece: int) -> list[memoryview]:
    """The frames cut at frame boundaries into parts of at most `piece` bytes (a frame is always smaller)."""
    view = memoryview(frames)
    if len(frames) <= piece:
        return [view]
    found, start = [], 0
    for end, following in zip(offsets[1:], [*offsets[2:], len(frames)], strict=True) if len(offsets) > 1 else ():
        if following - start > piece:
            found.append(view[start:end])
            start = end
    found.append(view[start:])
    return found


def _cut_key(body: memoryview, at: int) -> tuple[bytes, int]:
    if len(body) < at + 2:
        raise InvalidRequest("the idempotency key is cut off")
    length = int.from_bytes(body[at : at + 2], "little")
    at += 2
    if not 0 < length <= IDEMPOTENCY_KEY_MAX or len(body) < at + length:
        raise InvalidRequest(f"an idempotency key has 1 to {IDEMPOTENCY_KEY_MAX} bytes, this one says {length}")
    return bytes(body[at : at + length]), at + length
