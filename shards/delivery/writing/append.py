"""From a client's batch to the ring. Promise: everything is checked before a seq is assigned, and a batch that
cannot be stored leaves no trace; nothing is visible before its class is met.

Batches that arrive together for one topic travel as one entry: a client with many small writes in flight costs
little more than one with a few large ones.
"""

from __future__ import annotations

from array import array
from functools import partial

from topicd._native.interface import Buffer
from topicd.errors import Forbidden, InvalidRequest, NotReady, TopicdError, TopicNotFound
from topicd.frames import codec_error, core, producer_frame, ts_at
from topicd.ipc.protocol.wire import (
    APPEND,
    FLAG_CONFLICT,
    FLAG_COPY,
    FLAG_DEDUPED,
    FLAG_JUDGE,
    FLAG_KEY,
    FLAG_OPTIONS,
    FLAG_PERFORMANCE,
    HEADER,
)
from topicd.limits import FRAME_OVERHEAD, IDEMPOTENCY_KEY_MAX, ROUTED
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.queues.options import Asked
from topicd.shards.delivery.queues.publishing import Publishing
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.flight import Replier, RunWaiter, Waiter
from topicd.shards.delivery.topic.inflows import is_routed
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.admission import WriteAdmission
from topicd.shards.delivery.writing.copy_ranges import CopiedRanges, RangeFinder
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.entry import pieces
from topicd.shards.delivery.writing.in_flight import AppendEntry, Commits, DerivedEntry
from topicd.shards.delivery.writing.log import Log
from topicd.shards.delivery.writing.reservation import reserve_seqs
from topicd.shards.delivery.writing.schema import is_checked, judged
from topicd.shards.delivery.writing.schema import refusal as schema_refusal
from topicd.words import counted

_ANSWER_FLAGS = FLAG_DEDUPED | FLAG_CONFLICT
_RUN_MESSAGE = HEADER.size + APPEND.size + FRAME_OVERHEAD  # the least that an append of one record can be


class Appender:
    def __init__(
        self,
        place: Place,
        catalog: Catalog,
        log: Log,
        commits: Commits,
        admission: WriteAdmission,
        ranges: RangeFinder,
        publishing: Publishing,
    ) -> None:
        self._place = place
        self._clock = place.clock
        self._topics = catalog.by_id
        self._log = log
        self._commits = commits
        self._admission = admission
        self._ranges = ranges
        self._publishing = publishing
        self._keys = commits.keys
        self._direct = commits.direct
        self._small = place.small_batch
        self._together = place.gathered_bytes
        self._open: AppendEntry | None = None  # takes further small batches until the input is used up
        log.place_gathered = self.close_entry

    def append(
        self,
        replier: Replier,
        request_id: int,
        flags: int,
        body: memoryview,
        asked: Asked | None = None,
        keeps: str = "",
    ) -> None:
        """Take one APPEND body. Raises what refuses it; otherwise the replier is told later. asked: options of its
        jobs, if they do not stand in it. keeps: which of topicd's own topics the replier writes."""
        if len(body) < APPEND.size:
            raise InvalidRequest(f"append has {len(body)} bytes of body, the fixed fields alone are {APPEND.size}")
        topic_id, producer_id, batch_no, count = APPEND.unpack_from(body)
        topic = self._topics.get(topic_id)
        if topic is None or not topic.live:
            raise TopicNotFound(f"no topic with id {topic_id}", topic_id=topic_id)
        flags &= ~_ANSWER_FLAGS
        at, key = APPEND.size, b""
        if flags & FLAG_KEY:
            if flags & FLAG_COPY:
                raise InvalidRequest("a copy has a number and no idempotency key")
            key, at = _cut_key(body, at)
        topic.check_own(keeps)
        if is_routed(producer_id):
            raise Forbidden("only topicd itself writes as a router")
        packed: memoryview | None = None
        if flags & FLAG_OPTIONS:
            packed, at = _cut_options(body, at, flags)
        if flags & FLAG_JUDGE:
            found = self._judge(topic, body[at:], count, copied=bool(flags & FLAG_COPY))
            replier.deduped(Waiter(replier, request_id, flags & FLAG_PERFORMANCE, 0, found), topic.seqs.visible)
            return
        if producer_id and not topic.producers.is_next(producer_id, batch_no):
            _, first_seq, records = topic.producers.lookup(producer_id, batch_no)
            flags |= FLAG_DEDUPED if records else FLAG_DEDUPED | FLAG_CONFLICT
            self._answer_again(topic, Waiter(replier, request_id, flags, first_seq, records))
            return
        if key and (known := self._keys.lookup(topic_id, key)) is not None:
            self._answer_again(topic, Waiter(replier, request_id, flags | FLAG_DEDUPED, *known))
            return
        copied: CopiedRanges | None = self._ranges.find(body[at:], count) if flags & FLAG_COPY else None
        size = len(body) - at if copied is None else copied.size
        refusal = self._admission.refusal(topic, size, count, producer_id)
        if refusal is not None:
            raise refusal
        if packed is not None:
            asked = self._publishing.parse(topic, packed, count)
            holder = self._publishing.holder(topic, asked, partial(_conflict, replier, request_id, flags, topic))
            if holder:
                if producer_id:
                    topic.producers.assign(producer_id, batch_no, holder, 0)
                if holder > 0 and not asked.rescheduled:
                    self._answer_again(topic, Waiter(replier, request_id, flags | FLAG_CONFLICT, holder, 0))
                return
        self._take_over(topic)
        direct = bool(producer_id and not key and asked is None) and self._direct.takes(
            topic, size, count, copied=copied is not None
        )
        entry = self._entry_for(topic, size, count, direct=direct)
        start = len(entry.frames)
        if copied is None:
            entry.frames += body[at:]
        else:
            copied.put(entry.frames)
        checked = topic.policy.schema is not None and is_checked(producer_id)
        if checked and topic.commits.is_judged(producer_id, batch_no):
            checked = False
        first_seq = self._add(entry, start, count, producer_id, batch_no, asked, checked=checked)
        if len(topic.commits) and producer_id:
            content = len(entry.frames) - start - FRAME_OVERHEAD * count
            topic.commits.take(producer_id, batch_no, first_seq, count, content, self._clock.now_ms())
        entry.waiters.append(Waiter(replier, request_id, flags, first_seq, count))
        if key:
            entry.keys.append(key)
            self._keys.remember(topic_id, key, first_seq, count, topic.config.idempotency_window_ms)
        if flags & FLAG_PERFORMANCE and not entry.started_at:
            entry.started_at = self._clock.monotonic()
        if direct or size >= self._small:
            self.close_entry()

    def _judge(self, topic: Topic, records: memoryview, count: int, *, copied: bool) -> int:
        """How many of these records the topic's schema has nothing against, from the first on."""
        parts: list[Buffer] = self._ranges.find(records, count).parts if copied else [records]
        try:
            return judged(topic.name, topic.policy.schema, parts, count)
        except ValueError as exc:
            raise codec_error(exc) from None

    def forward(
        self, replier: Replier, topic: Topic, router_id: int, cursor: int, frames: bytearray, count: int
    ) -> None:
        """Copies that a router has made, as `core.copy_frames` lays them out, and with them how far it has come. Raises
        what refuses them; otherwise the replier is told later."""
        topic.inflows.begin(router_id, cursor, count)
        try:
            if topic.inflows.derived == router_id:
                self._derive(replier, topic, router_id, cursor, frames, count)
            else:
                self._append_own(replier, topic, frames, count, ROUTED + router_id, cursor, copied=True)
        except TopicdError:
            topic.inflows.failed(ROUTED + router_id)
            raise

    def append_own(self, replier: Replier, topic: Topic, frames: bytearray, count: int, once: int = 0) -> None:
        """Records of the shard itself, as a client lays them out. Raises what refuses them. once: what comes again with
        the same number is not stored again."""
        if once and not topic.producers.is_next(once, 1):
            _, first_seq, records = topic.producers.lookup(once, 1)
            self._answer_again(topic, Waiter(replier, 0, int(FLAG_DEDUPED), first_seq, records))
            return
        self._take_over(topic)
        self._append_own(replier, topic, frames, count, once, 1 if once else 0, copied=False)

    def _derive(
        self, replier: Replier, topic: Topic, router_id: int, cursor: int, frames: bytearray, count: int
    ) -> None:
        """Copies that no log has: visible at once, for their records are as durable as this topic promises."""
        refusal = self._admission.refusal(topic, len(frames), count)
        if refusal is not None:
            raise refusal
        seqs = topic.seqs
        try:
            packed = core.stamp_copies(frames, 0, len(frames), topic.id, seqs.head + 1, seqs.last_ts)
        except ValueError as exc:
            raise codec_error(exc) from None
        offsets = array("I", packed)
        entry = DerivedEntry(self._commits, topic, Need.PLACED, ts_at(frames, offsets[-1]))
        entry.frames = frames
        self._note_batch(entry, packed, 0, count)
        entry.producers.append((ROUTED + router_id, cursor))
        entry.waiters.append(Waiter(replier, 0, 0, entry.first_seq, count))
        entry.answer()
        entry.committed()

    def _take_over(self, topic: Topic) -> None:
        """Somebody else than the one router writes to it."""
        inflows = topic.inflows
        if inflows.derived is None:
            return
        if inflows.remaking:
            raise NotReady(f"the copies in topic {topic.name} are being made again", retry_after_ms=20)
        self._log.log_copies(topic, "others write to it")

    def _append_own(
        self,
        replier: Replier,
        topic: Topic,
        frames: bytearray,
        count: int,
        producer_id: int,
        number: int,
        *,
        copied: bool,
    ) -> None:
        refusal = self._admission.refusal(topic, len(frames), count)
        if refusal is not None:
            raise refusal
        entry = self._entry_for(topic, len(frames), count, direct=False)
        start = len(entry.frames)
        entry.frames += frames
        first_seq = self._add(entry, start, count, producer_id, number, None, copied=copied)
        entry.waiters.append(Waiter(replier, 0, 0, first_seq, count))
        if len(frames) >= self._small:
            self.close_entry()

    def close_entry(self) -> None:
        """The input is used up, or something else comes first: what was gathered goes to the ring."""
        entry, self._open = self._open, None
        if entry is not None and (entry.waiters or entry.runs):
            self._place_entry(entry)

    # ---- runs ----

    def take_run(self, replier: Replier, room: int, buf: memoryview, start: int, end: int) -> tuple[int, int]:
        """Take the plain single-record appends that follow each other at start as one entry, at most `room` of them:
        (the bytes used up, how many there were). (0, 0): the first of them is no such append, or something may be in
        its way: `append` says what."""
        if end - start < _RUN_MESSAGE:
            return 0, 0
        topic_id, producer_id, batch_no, count = APPEND.unpack_from(buf, start + HEADER.size)
        topic = self._topics.get(topic_id)
        if topic is None or not topic.live or topic.policy.capped or not 0 < producer_id < ROUTED or count != 1:
            return 0, 0
        if topic.policy.own or topic.policy.schema is not None or topic.inflows.derived is not None:
            return 0, 0
        if not topic.producers.is_next(producer_id, batch_no):
            return 0, 0
        if self._admission.refusal(topic, end - start, 1) is not None:
            return 0, 0
        self.close_entry()
        most = min(room, (end - start) // _RUN_MESSAGE)
        if most <= 0:
            return 0, 0
        seqs = topic.seqs
        need, first, ts = topic.need_for(seqs.head + most), seqs.head + 1, max(self._clock.now_ms(), seqs.last_ts)
        taken = core.take_run(
            *(buf, start, end, topic_id, producer_id, batch_no),
            *(first, ts, need is Need.SYNCED, most, self._together),
        )
        if taken is None:
            return 0, 0
        used, frames, offsets, wire, request_ids = taken
        entry = self._open = AppendEntry(self._commits, topic, need, ts)
        entry.frames = frames
        entry.wire.append(wire)
        entry.runs.append(RunWaiter(replier, request_ids, first))
        entry.producers.append((producer_id, batch_no))
        count = len(offsets) // 4
        self._note_batch(entry, offsets, 0, count)
        topic.producers.assign_run(producer_id, batch_no, first, count)
        return used, count

    # ---- gathering ----

    def _entry_for(self, topic: Topic, size: int, count: int, *, direct: bool) -> AppendEntry:
        """The open entry if the batch may join it, else a new one."""
        need = topic.need_for(topic.seqs.head + count)
        entry = self._open
        if entry is not None:
            joins = entry.topic is topic and entry.need is need and size < self._small and not direct
            if joins and len(entry.frames) + size <= self._together:
                return entry
            self.close_entry()
            # Placing it may have changed what the next one needs.
            need = topic.need_for(topic.seqs.head + count)
        ts = max(self._clock.now_ms(), topic.seqs.last_ts)
        entry = self._open = AppendEntry(self._commits, topic, Need.STORED if direct else need, ts)
        return entry

    def _add(
        self,
        entry: AppendEntry,
        start: int,
        count: int,
        producer_id: int,
        batch_no: int,
        asked: Asked | None,
        *,
        copied: bool = False,
        checked: bool = False,
    ) -> int:
        """Stamp the batch that begins at start, behind those that were in the entry before; its first seq. A bad batch
        leaves nothing behind. checked: by the topic's schema, too."""
        topic, frames = entry.topic, entry.frames
        first, end = topic.seqs.head + 1, len(frames)
        try:
            packed = core.stamp_frames(frames, start, end, topic.id, first, entry.ts, entry.need >= Need.SYNCED, copied)
            found = len(packed) // 4
            if found != count:
                raise ValueError("invalid_request", f"the write says {counted(count, 'record')} and holds {found}")
            text = topic.policy.schema if checked else None
            bad = None if text is None else schema_refusal(topic.name, text, core.payloads(frames, start, end))
        except ValueError as exc:
            bad = codec_error(exc)
        if bad is not None:
            del frames[start:]
            if not (entry.waiters or entry.runs):
                self._open = None
            raise bad
        self._note_batch(entry, packed, start, count)
        if producer_id:
            if not copied:
                topic.producers.assign(producer_id, batch_no, first, count)
            entry.producers.append((producer_id, batch_no))
        if end - start >= self._small:
            # Now, while they are at hand: once they are stored, each look at a record is a look at cold memory.
            entry.untagged = start == 0 and not core.frame_tags(frames, 0, end)
        if entry.direct:
            return first
        if producer_id:
            entry.wire.append(producer_frame(topic.id, first, entry.ts, producer_id, batch_no, count))
        if asked is not None:
            entry.wire.append(self._publishing.frame(topic, asked, first, count, entry.ts))
            entry.optioned.append(first)
        if end - start < self._small:
            entry.wire.append(frames[start:end])
        else:
            entry.wire += pieces(frames, memoryview(packed).cast("I"), self._place.piece_bytes)
        return first

    @staticmethod
    def _note_batch(entry: AppendEntry, packed: bytes, start: int, count: int) -> None:
        if count == 1:
            entry.offsets.append(start)  # type: ignore[attr-defined]
        elif start == 0:
            entry.offsets = array("I", packed)
        else:
            entry.offsets.extend([start + offset for offset in memoryview(packed).cast("I")])  # type: ignore[attr-defined]
        topic = entry.topic
        topic.flight.take(entry, count, len(entry.frames) - start - FRAME_OVERHEAD * count)
        topic.seqs.give_out(count, entry.ts)

    def _place_entry(self, entry: AppendEntry) -> None:
        topic = entry.topic
        if topic.policy.reserves and not entry.direct:
            reserve_seqs(self._log, topic)
        if not topic.policy.logged and entry.need is Need.PLACED:
            entry.answer()
            entry.committed()
        elif entry.direct or topic.flight.behind_direct:
            self._direct.place(topic, entry)
        else:
            self._log.append(topic, entry.wire, entry)

    @staticmethod
    def _answer_again(topic: Topic, waiter: Waiter) -> None:
        """A retry: the first answer once more, or a place among those who wait for it."""
        entry = topic.flight.holder_of(waiter.first_seq)
        if entry is not None:
            entry.waiters.append(waiter)
        else:
            waiter.replier.deduped(waiter, topic.seqs.visible)


def _conflict(
    replier: Replier, request_id: int, flags: int, topic: Topic, holder: int, error: TopicdError | None
) -> None:
    """Another job has the key; it has got the time of this one, or could not."""
    if error is not None:
        replier.append_refused(request_id, error)
    else:
        replier.deduped(Waiter(replier, request_id, flags | FLAG_CONFLICT, holder, 0), topic.seqs.visible)


def _cut_options(body: memoryview, at: int, flags: int) -> tuple[memoryview, int]:
    if flags & FLAG_COPY:
        raise InvalidRequest("a copy has no options of jobs")
    length = int.from_bytes(body[at : at + 4], "little")
    at += 4
    if len(body) < at + length:
        raise InvalidRequest("the options of jobs are cut off")
    return body[at : at + length], at + length


def _cut_key(body: memoryview, at: int) -> tuple[bytes, int]:
    if len(body) < at + 2:
        raise InvalidRequest("the idempotency key is cut off")
    length = int.from_bytes(body[at : at + 2], "little")
    at += 2
    if not 0 < length <= IDEMPOTENCY_KEY_MAX or len(body) < at + length:
        raise InvalidRequest(f"an idempotency key has 1 to {IDEMPOTENCY_KEY_MAX} bytes, this one says {length}")
    return bytes(body[at : at + length]), at + length
