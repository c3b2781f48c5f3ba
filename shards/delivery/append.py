"""From a client's batch to the ring. Promise: everything is checked before a seq is assigned, and a batch that
cannot be stored leaves no trace; nothing is visible before its class is met.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from topicd.errors import BatchTooLarge, InvalidRequest, Throttled, TopicdError, TopicFull, TopicNotFound
from topicd.frames import codec_error, core, producer_frame
from topicd.ipc.protocol import APPEND, FLAG_DEDUPED, FLAG_KEY, FLAG_PERFORMANCE
from topicd.limits import FRAME_OVERHEAD, IDEMPOTENCY_KEY_MAX, MAX_BATCH_RECORDS
from topicd.shards.delivery.outlet import Entry, Need, Part
from topicd.shards.delivery.reservation import reserve_seqs
from topicd.shards.delivery.tail import Blob

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic import Topic

_RETRY_MS = 20


class Replier(Protocol):
    """Who waits for the outcome of an append."""

    def appended(
        self, request_id: int, flags: int, first_seq: int, count: int, head: int, entry: AppendEntry
    ) -> None: ...

    def deduped(self, request_id: int, flags: int, first_seq: int, count: int, head: int) -> None: ...

    def append_refused(self, request_id: int, error: TopicdError) -> None: ...


class AppendEntry(Entry):
    """One batch on its way."""

    __slots__ = (
        *("actor", "batch_no", "blob", "content", "count", "key", "last_seq"),
        *("producer_id", "started_at", "topic", "waiters"),
    )

    def __init__(
        self, actor: Actor, topic: Topic, blob: Blob, need: Need, producer_id: int, batch_no: int, key: bytes
    ) -> None:
        self.need = need
        self.actor = actor
        self.topic = topic
        self.blob = blob
        self.count = count = len(blob.offsets)
        self.last_seq = blob.first_seq + count - 1
        self.content = blob.end - FRAME_OVERHEAD * count
        self.producer_id = producer_id
        self.batch_no = batch_no
        self.key = key
        self.waiters: list[tuple[Replier, int, int]] = []
        self.started_at = 0.0

    def committed(self) -> None:
        topic, blob, count = self.topic, self.blob, self.count
        topic.pending_count -= count
        topic.pending_bytes -= self.content
        if self.need is Need.SYNCED:
            topic.pending_synced -= 1
        topic.tail.append(blob)
        topic.visible = self.last_seq
        topic.count += count
        topic.bytes += self.content
        if self.producer_id or self.key:
            self.actor.under_way.pop((topic.id, blob.first_seq), None)
        self.actor.note_visible(topic, blob, count)
        for replier, request_id, flags in self.waiters:
            replier.appended(request_id, flags, blob.first_seq, count, self.last_seq, self)

    def failed(self, error: TopicdError) -> None:
        topic, blob = self.topic, self.blob
        topic.head = min(topic.head, blob.first_seq - 1)
        topic.pending_count -= self.count
        topic.pending_bytes -= self.content
        if self.need is Need.SYNCED:
            topic.pending_synced -= 1
        if self.producer_id:
            topic.producers.take_back(self.producer_id, self.batch_no)
        self.actor.keys.forget(topic, self.key)
        self.actor.under_way.pop((topic.id, blob.first_seq), None)
        for replier, request_id, _ in self.waiters:
            replier.append_refused(request_id, error)


class Appender:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor

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
            key, at = _cut_key(body, at)
        if producer_id and not topic.producers.is_next(producer_id, batch_no):
            _, first_seq, records = topic.producers.lookup(producer_id, batch_no)
            self._answer_again(topic, first_seq, records, replier, request_id, flags)
            return
        if key and (known := self._actor.keys.lookup(topic, key)) is not None:
            self._answer_again(topic, known[0], known[1], replier, request_id, flags)
            return
        frames = bytearray(body[at:])
        self._admit(topic, len(frames), count)
        entry = self._assign(topic, frames, count, producer_id, batch_no, key)
        entry.waiters.append((replier, request_id, flags))
        if flags & FLAG_PERFORMANCE:
            entry.started_at = self._actor.clock.monotonic()
        self._place(topic, entry)

    def _admit(self, topic: Topic, size: int, count: int) -> None:
        """Everything that can refuse a batch without looking at its records."""
        actor = self._actor
        outlet = actor.outlets[topic.outlet]
        if not 0 < count <= MAX_BATCH_RECORDS:
            code = BatchTooLarge if count else InvalidRequest
            raise code(f"a write has 1 to {MAX_BATCH_RECORDS} records, this one says {count}")
        if outlet.read_only_errno and not topic.ephemeral:
            raise outlet.refusal()
        if outlet.in_flight_bytes and outlet.in_flight_bytes + size > actor.settings.max_inflight_bytes:
            raise Throttled(
                f"{outlet.in_flight_bytes} bytes are under way, {actor.settings.max_inflight_bytes} are allowed",
                limit="max_inflight_bytes",
                retry_after_ms=_RETRY_MS,
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

    def _assign(
        self, topic: Topic, frames: bytearray, count: int, producer_id: int, batch_no: int, key: bytes
    ) -> AppendEntry:
        actor = self._actor
        first = topic.head + 1
        ts = max(actor.clock.now_ms(), topic.last_ts)
        need = topic.need_for(first + count - 1)
        try:
            packed = core.stamp_frames(frames, 0, len(frames), topic.id, first, ts, need is Need.SYNCED)
        except ValueError as exc:
            raise codec_error(exc) from None
        offsets = memoryview(packed).cast("I")
        if len(offsets) != count:
            raise InvalidRequest(f"the write says {count} records and holds {len(offsets)}")
        blob = Blob(frames, 0, len(frames), first, offsets, ts, ts)
        entry = AppendEntry(actor, topic, blob, need, producer_id, batch_no, key)
        topic.head = first + count - 1
        topic.last_ts = ts
        topic.pending_count += count
        topic.pending_bytes += entry.content
        if need is Need.SYNCED:
            topic.pending_synced += 1
        if producer_id:
            topic.producers.assign(producer_id, batch_no, first, count)
        if key:
            actor.keys.remember(topic, key, first, count)
        if producer_id or key:
            actor.under_way[(topic.id, first)] = entry
        return entry

    def _place(self, topic: Topic, entry: AppendEntry) -> None:
        if topic.ephemeral and entry.need is Need.PLACED:
            entry.committed()
            return
        blob = entry.blob
        frames: Part = blob.data  # type: ignore[assignment]  # a bytearray of its own, see append()
        outlet = self._actor.outlets[topic.outlet]
        parts: list[Part] = []
        size = blob.end - blob.start
        if entry.producer_id:
            mark = producer_frame(
                topic.id, blob.first_seq, blob.first_ts, entry.producer_id, entry.batch_no, entry.count
            )
            parts.append(mark)
            size += len(mark)
        piece = self._actor.piece_bytes
        if size <= piece:
            parts.append(frames)
        else:
            parts.extend(pieces(blob, piece))
        if topic.reserves:
            reserve_seqs(self._actor, topic)
        outlet.submit(parts, size, entry)
        self._actor.to_ring.add(outlet)

    def _answer_again(
        self, topic: Topic, first_seq: int, count: int, replier: Replier, request_id: int, flags: int
    ) -> None:
        """A retry: the first answer once more, or a place among those who wait for it."""
        waiting = self._actor.under_way.get((topic.id, first_seq))
        flags |= FLAG_DEDUPED
        if waiting is not None:
            waiting.waiters.append((replier, request_id, flags))
            return
        replier.deduped(request_id, flags, first_seq, count, topic.visible)


def _used(topic: Topic, what: str) -> int:
    if what == "records":
        return topic.count + topic.pending_count
    return topic.bytes + topic.pending_bytes


def pieces(blob: Blob, piece: int) -> list[memoryview]:
    """The blob cut at frame boundaries into parts of at most `piece` bytes (a frame is always smaller)."""
    view = memoryview(blob.data)
    found, start = [], blob.start
    for seq in range(blob.first_seq + 1, blob.last_seq + 2):
        end = blob.offset_of(seq)
        following = blob.offset_of(seq + 1) if seq <= blob.last_seq else end
        if seq > blob.last_seq or following - start > piece:
            found.append(view[start:end])
            start = end
    return found


def _cut_key(body: memoryview, at: int) -> tuple[bytes, int]:
    if len(body) < at + 2:
        raise InvalidRequest("the idempotency key is cut off")
    length = int.from_bytes(body[at : at + 2], "little")
    at += 2
    if not 0 < length <= IDEMPOTENCY_KEY_MAX or len(body) < at + length:
        raise InvalidRequest(
            f"an idempotency key has 1 to {IDEMPOTENCY_KEY_MAX} bytes, this one says {length}"
        )
    return bytes(body[at : at + length]), at + length
