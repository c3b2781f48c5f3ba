"""Commits that are being published into a topic: the room held for them, and which seqs are theirs. Promise: what was
held is there for whoever it was held for, until its time is over; what was judged before its decision is not refused
behind it, whatever schema the topic has got; readers that want whole commits only are told up to
where there are none but whole ones.

A commit is known by its producer and the number of its first batch. Room is held for a while; the seqs of what was
published are kept until the commit is closed or abandoned, however long that takes. Why: docs/adr/0012.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from topicd.errors import Throttled
from topicd.shards.delivery.topic.part import TopicPart
from topicd.shards.storage.ranges import Ranges

COMMITS_MAX = 256  # of a topic, open at the same time


class OpenCommit:
    __slots__ = ("bytes", "fenced", "first_no", "hold_ms", "judged", "records", "seqs", "until_ms")

    def __init__(self, first_no: int) -> None:
        self.first_no = first_no
        self.records = 0  # room that is left
        self.bytes = 0
        self.hold_ms = 0
        self.until_ms = 0  # so long others do not get it
        self.seqs = Ranges()  # published, or under way
        self.fenced = False  # it is being abandoned and takes nothing more
        self.judged = False  # no schema is asked about its batches any more


class _Taken(NamedTuple):
    first_seq: int
    records: int
    content: int  # bytes


class CommitTable(TopicPart):
    KEY: ClassVar[str] = "commits"

    def __init__(self) -> None:
        self._open: dict[int, OpenCommit] = {}  # by producer
        self._under_way: dict[tuple[int, int], _Taken] = {}  # by producer and batch number

    def __len__(self) -> int:
        return len(self._open)

    def get(self, producer_id: int, first_no: int) -> OpenCommit | None:
        found = self._open.get(producer_id)
        return found if found is not None and found.first_no == first_no else None

    # ---- its life ----

    def check_room(self, producer_id: int, now_ms: int) -> None:
        """May there be one more?"""
        self._forget_expired(now_ms)
        if producer_id not in self._open and len(self._open) >= COMMITS_MAX:
            raise Throttled(f"{COMMITS_MAX} commits are open already", limit="open commits", retry_after_ms=1_000)

    def open(
        self,
        producer_id: int,
        first_no: int,
        records: int,
        content: int,
        hold_ms: int,
        until_ms: int,
        judged: bool = False,
    ) -> None:
        """Or opened again, with the room that the rest needs. One that comes after a newer one is over."""
        found = self._open.get(producer_id)
        if found is not None and found.first_no > first_no:
            return
        if found is None or found.first_no < first_no:
            found = self._open[producer_id] = OpenCommit(first_no)
        found.records, found.bytes = records, content
        found.hold_ms, found.until_ms, found.judged = hold_ms, until_ms, judged

    def close(self, producer_id: int, first_no: int) -> None:
        if self.get(producer_id, first_no) is not None:
            del self._open[producer_id]

    def _forget_expired(self, now_ms: int) -> None:
        """Nothing was published, and nothing is held any more: as if it had never been."""
        over = [one for one, commit in self._open.items() if commit.until_ms <= now_ms and not len(commit.seqs)]
        for producer_id in over:
            del self._open[producer_id]

    # ---- room ----

    def held(self, but: int, now_ms: int) -> tuple[int, int]:
        """(records, bytes) that are held for others than this producer."""
        found = [commit for one, commit in self._open.items() if one != but and commit.until_ms > now_ms]
        return sum(commit.records for commit in found), sum(commit.bytes for commit in found)

    def covers(self, producer_id: int, records: int, content: int, now_ms: int) -> bool:
        """Is there room held for this batch?"""
        found = self._open.get(producer_id)
        return found is not None and found.until_ms > now_ms and records <= found.records and content <= found.bytes

    def is_judged(self, producer_id: int, batch_no: int) -> bool:
        """Is this a batch of a commit whose records were looked at before it was decided?"""
        found = self._open.get(producer_id)
        return found is not None and found.judged and batch_no >= found.first_no

    def is_fenced(self, producer_id: int) -> bool:
        found = self._open.get(producer_id)
        return found is not None and found.fenced

    # ---- batches ----

    def take(self, producer_id: int, batch_no: int, first_seq: int, records: int, content: int, now_ms: int) -> None:
        """A batch is on its way. As long as they come, the room stays."""
        found = self._open.get(producer_id)
        if found is None or batch_no < found.first_no:
            return
        found.records = max(0, found.records - records)
        found.bytes = max(0, found.bytes - content)
        found.until_ms = max(found.until_ms, now_ms + found.hold_ms)
        found.seqs.add(first_seq, first_seq + records - 1)
        self._under_way[producer_id, batch_no] = _Taken(first_seq, records, content)

    def stored(self, batches: list[tuple[int, int]]) -> None:
        if self._under_way:
            for key in batches:
                self._under_way.pop(key, None)

    def failed(self, batches: list[tuple[int, int]]) -> None:
        """They were not stored: their room is held again."""
        for key in batches if self._under_way else ():
            taken, found = self._under_way.pop(key, None), self._open.get(key[0])
            if taken is not None and found is not None:
                found.records += taken.records
                found.bytes += taken.content
                found.seqs = Ranges(found.seqs.within(0, taken.first_seq - 1))

    def is_under_way(self, producer_id: int) -> bool:
        return any(one == producer_id for one, _ in self._under_way)

    def settled(self, visible: int) -> int:
        """Up to here there is nothing of a commit that is not closed."""
        firsts = [next(iter(commit.seqs))[0] for commit in self._open.values() if len(commit.seqs)]
        return min([first - 1 for first in firsts], default=visible) if firsts else visible

    @property
    def published(self) -> int:
        """Open ones of which something can be seen."""
        return sum(1 for commit in self._open.values() if len(commit.seqs))

    # ---- restarts ----

    def replay_change(self, body: dict[str, Any]) -> None:
        producer_id, first_no = int(body["producer_id"]), int(body["first_no"])
        if body["action"] == "open":
            records, content, hold_ms, until_ms = (
                int(body[one]) for one in ("records", "bytes", "hold_ms", "until_ms")
            )
            self.open(producer_id, first_no, records, content, hold_ms, until_ms, bool(body.get("judged")))
        else:
            self.close(producer_id, first_no)

    def replay_batch(self, producer_id: int, batch_no: int, first_seq: int, records: int) -> None:
        """From the log. The room stays whole: who publishes says anew what the rest needs."""
        found = self._open.get(producer_id)
        if found is not None and batch_no >= found.first_no and records:
            found.seqs.add(first_seq, first_seq + records - 1)

    def to_snapshot(self, visible: int) -> list[Any]:
        return [
            [
                *(producer_id, one.first_no, one.records, one.bytes, one.hold_ms, one.until_ms),
                *(_seqs(one, visible), one.judged),
            ]
            for producer_id, one in self._open.items()
        ]

    def restore(self, body: list[Any]) -> None:
        for producer_id, first_no, records, content, hold_ms, until_ms, seqs, *judged in body:  # earlier: without it
            self.open(producer_id, first_no, records, content, hold_ms, until_ms, judged=bool(judged and judged[0]))
            self._open[producer_id].seqs = Ranges((first, last) for first, last in seqs)


def _seqs(commit: OpenCommit, visible: int) -> list[list[int]]:
    return [[first, last] for first, last in commit.seqs.within(0, visible)]
