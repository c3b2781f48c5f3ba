"""Append, producer and direct frames of the WAL, back into the tails of their topics. Promise: a batch counts when it
is whole, what a segment holds already is passed over, and a hole between what is there and what comes is noted.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from topicd._native.interface import Run
from topicd.disk.refusal import raise_refusal
from topicd.errors import TopicdError
from topicd.frames import core, frame_checksum, parse_direct, parse_producer
from topicd.shards.delivery.reading.segments import Segments
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.topic.inflows import is_routed
from topicd.shards.delivery.topic.tail import Blob
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.ranges import Ranges


@dataclass
class _Pending:
    """Frames of a batch whose last frame was not seen yet."""

    pieces: list[bytes] = field(default_factory=list)
    first_seq: int = 0
    count: int = 0
    first_ts: int = 0


@dataclass
class _Mark:
    """A producer frame, and how many records of its batch came behind it."""

    producer_id: int
    batch_no: int
    first_seq: int
    count: int
    seen: int = 0


@dataclass
class _Options:
    """Options of jobs, and how many records of their batch came behind them."""

    body: dict[str, Any]
    first_seq: int
    count: int
    seen: int = 0


class AppendReplay:
    def __init__(self, segments: Segments, backlog: Backlog) -> None:
        self._segments = segments
        self._backlog = backlog
        self._pending: dict[int, _Pending] = {}
        self._announced: dict[int, _Mark] = {}  # by topic: a producer frame whose batch is not whole yet
        self._options: dict[int, _Options] = {}  # by topic: options of jobs whose batch is not whole yet
        self.holes: dict[int, list[tuple[int, int]]] = {}  # by topic: first and last seq that no frame has
        self.claims: dict[int, Ranges] = {}  # by topic: seqs that went past the log, or were to
        self.records = 0

    def claim(self, topic: Topic, view: memoryview, run: Run) -> None:
        """A direct write. It counts if the segments hold it: its last frame says so, for it was written last."""
        claim = parse_direct(view, run.start, run.end)
        self.claims.setdefault(topic.id, Ranges()).add(claim.first_seq, claim.last_seq)
        if topic.seqs.stored >= claim.last_seq and self._checksum_at(topic, claim.last_seq) == claim.last_xxh3:
            _stored(topic, claim.producer_id, claim.batch_no, claim.first_seq, claim.count)

    def _checksum_at(self, topic: Topic, seq: int) -> int | None:
        """None: it is not there any more, and whoever took it away did so after a snapshot that knows the batch."""
        segments = topic.contents.segments
        at = bisect_right(segments, seq, key=lambda info: info.first_seq) - 1
        if at < 0 or seq > segments[at].last_seq:
            return None
        try:
            frames = self._segments.reader(topic, segments[at]).read(seq, seq)
        except (OSError, TopicdError) as exc:
            raise_refusal(exc)
            return None
        return frame_checksum(frames) if len(frames) else None

    def announce(self, topic: Topic, view: memoryview, run: Run) -> None:
        """A producer frame: it counts once the batch behind it is whole."""
        self._announced[topic.id] = _Mark(*parse_producer(view, run.start, run.end))

    def hold_options(self, topic: Topic, first_seq: int, body: dict[str, Any]) -> None:
        """What the jobs of the batch behind it were published with: it counts once that is whole."""
        self._options[topic.id] = _Options(body, first_seq, int(body.get("n", 1)))

    def take(self, topic: Topic, view: memoryview, run: Run) -> None:
        last = run.first_seq + run.count - 1
        self._count_announced(topic, run)
        if self._options:
            self._count_options(topic, run)
        if last <= topic.seqs.head:
            return
        pending = self._pending.get(topic.id)
        start, first, count = run.start, run.first_seq, run.count
        if first <= topic.seqs.head:
            skip = topic.seqs.head + 1 - first
            offsets = memoryview(core.frame_offsets(view, run.start, run.end)).cast("I")
            start, first, count = run.start + offsets[skip], topic.seqs.head + 1, count - skip
        expected = topic.seqs.head + 1 + (pending.count if pending is not None else 0)
        if pending is not None and first != expected:
            # The rest of that batch never came: a failure or a crash of its writer. It was not acknowledged.
            self._pending.pop(topic.id)
            pending = None
        if first > topic.seqs.head + 1 and pending is None:
            self._note_hole(topic, first)
        whole_count = max(0, run.first_seq + run.whole_count - first)
        if whole_count:
            self._take_whole(topic, view[start : run.whole_end], first, whole_count, run, pending)
            start, first, count = run.whole_end, first + whole_count, count - whole_count
        if count:
            self._hold(topic, view[start : run.end], first, count, run)

    def _take_whole(
        self, topic: Topic, frames: memoryview, first: int, count: int, run: Run, pending: _Pending | None
    ) -> None:
        first_ts = run.first_ts
        if pending is not None:
            self._pending.pop(topic.id)
            data = b"".join([*pending.pieces, frames])
            first, count, first_ts = pending.first_seq, pending.count + count, pending.first_ts
        else:
            data = bytes(frames)
        offsets = memoryview(core.frame_offsets(data, 0, len(data))).cast("I")
        blob = Blob(data, 0, len(data), first, offsets, first_ts, run.last_ts)
        topic.contents.replay(blob)
        topic.seqs.reach(blob.last_seq)
        topic.seqs.last_ts = max(topic.seqs.last_ts, run.last_ts)
        topic.last_write_ms = run.last_ts
        self._backlog.note_records(topic, blob)
        self.records += count

    def _hold(self, topic: Topic, frames: memoryview, first: int, count: int, run: Run) -> None:
        pending = self._pending.get(topic.id)
        if pending is None:
            pending = self._pending[topic.id] = _Pending(first_seq=first, first_ts=run.first_ts)
        pending.pieces.append(bytes(frames))
        pending.count += count

    def _count_announced(self, topic: Topic, run: Run) -> None:
        """A producer frame counts once the batch right behind it is whole; whoever gets those seqs later is another."""
        mark = self._announced.get(topic.id)
        if mark is None:
            return
        if run.first_seq == mark.first_seq + mark.seen:
            mark.seen += run.count
            if run.first_seq + run.whole_count >= mark.first_seq + mark.count:
                _stored(topic, mark.producer_id, mark.batch_no, mark.first_seq, mark.count)
            elif mark.seen < mark.count:
                return
        del self._announced[topic.id]

    def _count_options(self, topic: Topic, run: Run) -> None:
        held = self._options.get(topic.id)
        if held is None:
            return
        if run.first_seq == held.first_seq + held.seen:
            held.seen += run.count
            if run.first_seq + run.whole_count >= held.first_seq + held.count:
                if topic.queue is not None:
                    topic.queue.replay_options(held.first_seq, held.body)
            elif held.seen < held.count:
                return
        del self._options[topic.id]

    def _note_hole(self, topic: Topic, first: int) -> None:
        """Seqs between what is there and the next frame. Whether they are missed shows at the end of the log."""
        self.holes.setdefault(topic.id, []).append((topic.seqs.head + 1, first - 1))
        topic.seqs.reach(first - 1)


def _stored(topic: Topic, producer_id: int, batch_no: int, first_seq: int, count: int) -> None:
    if is_routed(producer_id):
        topic.inflows.replay_batch(producer_id, batch_no, count)
        return
    topic.producers.replay_batch(producer_id, batch_no, first_seq, count)
    topic.commits.replay_batch(producer_id, batch_no, first_seq, count)
