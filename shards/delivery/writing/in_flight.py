"""What is under way to the WAL for one topic: batches that arrived together, and who waits for each of them.

Promise: all of its batches become visible together, or none does and the topic is as it was before.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from topicd.errors import TopicdError
from topicd.limits import FRAME_OVERHEAD
from topicd.shards.delivery.topic.tail import Blob
from topicd.shards.delivery.writing.outlet import Entry, Need, Part

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic.topic import Topic

_SERVED_FIRST = 8  # followers of a topic; of more, a writer would notice the time that their pushes take


class Replier(Protocol):
    """Who waits for the outcome of an append."""

    def appended(self, waiter: Waiter, head: int, entry: AppendEntry) -> None: ...

    def run_appended(self, request_ids: bytes, first_seq: int, head: int) -> None: ...

    def deduped(self, waiter: Waiter, head: int) -> None: ...

    def append_refused(self, request_id: int, error: TopicdError) -> None: ...


class Waiter(NamedTuple):
    replier: Replier
    request_id: int
    flags: int
    first_seq: int
    records: int


class Run(NamedTuple):
    """Who waits for single records that came one behind the other."""

    replier: Replier
    request_ids: bytes  # packed u32
    first_seq: int


class AppendEntry(Entry):
    __slots__ = (
        *("actor", "frames", "offsets", "topic", "ts", "first_seq", "wire"),
        *("waiters", "runs", "producers", "keys", "started_at", "untagged", "announced", "pin"),
    )

    def __init__(self, actor: Actor, topic: Topic, need: Need, ts: int) -> None:
        super().__init__(need)
        self.actor = actor
        self.topic = topic
        self.ts = ts
        self.first_seq = topic.head + 1
        self.frames = bytearray()  # append frames of all batches: what readers will see
        self.wire: list[Part] = []  # the same with a producer frame before each batch: what the WAL gets
        self.offsets: Sequence[int] = array("I")
        self.waiters: list[Waiter] = []
        self.runs: list[Run] = []
        self.producers: list[tuple[int, int]] = []  # (producer id, batch number)
        self.keys: list[bytes] = []
        self.started_at = 0.0
        self.untagged = False  # it is known that no record has a tag
        self.announced = False  # a direct write whose claim is on its way, or there
        self.pin: int | None = None  # of a direct write: where the log speaks of it

    @property
    def count(self) -> int:
        return len(self.offsets)

    @property
    def last_seq(self) -> int:
        return self.first_seq + len(self.offsets) - 1

    @property
    def direct(self) -> bool:
        return self.need is Need.STORED

    @property
    def content(self) -> int:
        return len(self.frames) - FRAME_OVERHEAD * len(self.offsets)

    @property
    def awaited(self) -> bool:
        return 0 < len(self.topic.followers) <= _SERVED_FIRST

    def answer(self) -> None:
        head = self.first_seq + len(self.offsets) - 1
        for replier, request_ids, first_seq in self.runs:
            replier.run_appended(request_ids, first_seq, head)
        for waiter in self.waiters:
            waiter[0].appended(waiter, head, self)

    def committed(self) -> None:
        topic, count, content = self.topic, len(self.offsets), self.content
        self._leave(count, content)
        topic.visible = self.first_seq + count - 1
        topic.count += count
        topic.bytes += content
        blob = self.blob()
        topic.tail.append(blob)
        self.actor.note_visible(topic, blob, count, self.untagged)
        if topic.lane:
            self.actor.direct.look(topic)

    def blob(self) -> Blob:
        return Blob(self.frames, 0, len(self.frames), self.first_seq, self.offsets, self.ts, self.ts)

    def failed(self, error: TopicdError) -> None:
        topic = self.topic
        if topic.lane and topic.lane[-1].first_seq > self.first_seq:
            self.actor.direct.fail(topic, error)  # what comes later goes first
        self._leave(len(self.offsets), self.content)
        topic.head = min(topic.head, self.first_seq - 1)
        for producer_id, batch_no in reversed(self.producers):
            topic.producers.take_back(producer_id, batch_no)
        for key in self.keys:
            self.actor.keys.forget(topic, key)
        for run in self.runs:
            for request_id in memoryview(run.request_ids).cast("I"):
                run.replier.append_refused(request_id, error)
        for waiter in self.waiters:
            waiter.replier.append_refused(waiter.request_id, error)

    def _leave(self, count: int, content: int) -> None:
        topic = self.topic
        topic.pending_count -= count
        topic.pending_bytes -= content
        if self.need is Need.SYNCED:
            topic.pending_synced -= 1
        topic.under_way.remove(self)  # commits take the oldest, failures the newest: both ends are near
