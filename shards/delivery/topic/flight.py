"""What is under way for a topic: batches that arrived together, and who waits for each of them. Promise: they leave
oldest first when they commit, newest first when they fail.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from topicd.errors import TopicdError
from topicd.limits import FRAME_OVERHEAD
from topicd.shards.delivery.topic.tail import Blob
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.entry import Entry, Part


class Replier(Protocol):
    """Who waits for the outcome of an append."""

    def appended(self, waiter: Waiter, head: int, entry: InFlight) -> None: ...

    def run_appended(self, request_ids: bytes, first_seq: int, head: int) -> None: ...

    def deduped(self, waiter: Waiter, head: int) -> None: ...

    def append_refused(self, request_id: int, error: TopicdError) -> None: ...


class Waiter(NamedTuple):
    replier: Replier
    request_id: int
    flags: int
    first_seq: int
    records: int


class RunWaiter(NamedTuple):
    """Who waits for single records that came one behind the other."""

    replier: Replier
    request_ids: bytes  # packed u32
    first_seq: int


class InFlight(Entry):
    """Batches of one topic on their way. What their outcome means to the topic: writing/in_flight.py."""

    __slots__ = (
        *("frames", "offsets", "ts", "first_seq", "wire", "waiters", "runs"),
        *("producers", "keys", "started_at", "untagged", "announced", "pin", "optioned"),
    )

    def __init__(self, need: Need, first_seq: int, ts: int) -> None:
        super().__init__(need)
        self.first_seq = first_seq
        self.ts = ts
        self.frames = bytearray()  # append frames of all batches: what readers will see
        self.wire: list[Part] = []  # the same with a producer frame before each batch: what the WAL gets
        self.offsets: Sequence[int] = array("I")
        self.waiters: list[Waiter] = []
        self.runs: list[RunWaiter] = []
        self.producers: list[tuple[int, int]] = []  # (producer id, batch number)
        self.keys: list[bytes] = []
        self.started_at = 0.0
        self.untagged = False  # it is known that no record has a tag
        self.announced = False  # a direct write whose claim is on its way, or there
        self.optioned: list[int] = []  # first seqs of batches that have options of jobs
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
    def took_us(self) -> tuple[int, int, int]:
        """(waiting for company, write, sync) of the WAL shard that stored it, or something behind it."""
        return 0, 0, 0

    def blob(self) -> Blob:
        return Blob(self.frames, 0, len(self.frames), self.first_seq, self.offsets, self.ts, self.ts)

    def answer(self) -> None:
        head = self.first_seq + len(self.offsets) - 1
        for replier, request_ids, first_seq in self.runs:
            replier.run_appended(request_ids, first_seq, head)
        for waiter in self.waiters:
            waiter[0].appended(waiter, head, self)

    def refuse_waiters(self, error: TopicdError) -> None:
        for run in self.runs:
            for request_id in memoryview(run.request_ids).cast("I"):
                run.replier.append_refused(request_id, error)
        for waiter in self.waiters:
            waiter.replier.append_refused(waiter.request_id, error)


class Flight:
    __slots__ = ("behind_direct", "bytes", "count", "debris", "synced", "under_way")

    def __init__(self) -> None:
        self.count = 0  # records
        self.bytes = 0  # their content
        self.synced = 0  # entries that wait for a sync
        self.under_way: deque[InFlight] = deque()  # oldest first
        self.behind_direct: deque[InFlight] = deque()  # of these, the oldest direct write and all behind it
        self.debris = False  # a direct write failed and may have left bytes behind the last record

    def take(self, entry: InFlight, count: int, content: int) -> None:
        """So many more records travel in the entry, which may be new."""
        if len(entry.offsets) == count:
            self.under_way.append(entry)
            if entry.need is Need.SYNCED:
                self.synced += 1
        self.count += count
        self.bytes += content

    def leave(self, entry: InFlight, content: int) -> None:
        self.count -= len(entry.offsets)
        self.bytes -= content
        if entry.need is Need.SYNCED:
            self.synced -= 1
        self.under_way.remove(entry)  # commits take the oldest, failures the newest: both ends are near

    def holder_of(self, seq: int) -> InFlight | None:
        return next((e for e in self.under_way if e.first_seq <= seq < e.first_seq + len(e.offsets)), None)

    @property
    def direct_is_next(self) -> bool:
        """Everything before the oldest direct write is committed."""
        return bool(self.behind_direct) and self.under_way[0] is self.behind_direct[0]
