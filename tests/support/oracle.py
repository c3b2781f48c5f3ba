"""What was sent, what was promised, and whether what is there agrees. Promise: check() finds every loss, duplicate,
reordering, hole, half batch and resurrection among the records of a topic; what it does not know it does not blame.

    acked survives:      acked <= recovered <= acked or submitted
    order:               seqs rise, as acked, and per producer in the order of sending
    no holes:            every seq up to the newest is there, or its absence is explained by a delete or a cap
    whole batches:       all records of a batch or none, side by side
    deletes stay:        nothing below an acknowledged delete, nothing with a tag deleted after it was stored

Payloads must be unique within a topic. Thread-safe; operations are ordered by one counter, taken when they
begin and when their answer arrives.
"""

from __future__ import annotations

import copy
import itertools
import json
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

SHOWN = 12  # problems of one kind that are spelled out


class Life(StrEnum):
    ALIVE = "alive"
    DOUBTFUL = "doubtful"  # a delete whose outcome or order is unknown may have taken it
    DEAD = "dead"


class Seen(NamedTuple):
    """One record as a reader got it."""

    seq: int
    data: bytes


@dataclass(slots=True)
class Batch:
    producer: str
    payloads: Sequence[bytes]
    tag: str | None
    sent_at: int
    acked_at: int = 0  # 0: no answer
    first_seq: int = 0
    refused: bool = False  # the daemon said: not stored

    @property
    def acked(self) -> bool:
        return self.acked_at > 0

    @property
    def seqs(self) -> range:
        return range(self.first_seq, self.first_seq + len(self.payloads))


@dataclass(slots=True)
class Removal:
    """A delete by tag, or of everything below a seq."""

    tag: str | None
    before_seq: int
    begun_at: int
    done_at: int = 0


@dataclass
class Sent:
    """One life of a topic: from its creation to its deletion."""

    batches: list[Batch] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    cap_records: int = 0


class Oracle:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = itertools.count(1)
        self._topics: dict[str, Sent] = {}
        self._ghosts: dict[str, set[bytes]] = {}  # payloads of topics that were deleted
        self._heads: dict[str, int] = {}  # newest seq ever seen or acked

    # ---- what happens ----

    def topic(self, name: str, *, cap_records: int = 0) -> None:
        with self._lock:
            self._topics.setdefault(name, Sent()).cap_records = cap_records

    def submit(self, topic: str, producer: str, payloads: Sequence[bytes], tag: str | None = None) -> Batch:
        """Before it is sent."""
        with self._lock:
            batch = Batch(producer, list(payloads), tag, next(self._count))
            self._topics.setdefault(topic, Sent()).batches.append(batch)
            return batch

    def acked(self, batch: Batch, first_seq: int) -> None:
        with self._lock:
            batch.first_seq = first_seq
            batch.acked_at = next(self._count)

    def refused(self, batch: Batch) -> None:
        """An error that promises that nothing was stored."""
        batch.refused = True

    def delete(self, topic: str, *, tag: str | None = None, before_seq: int = 0) -> Removal:
        """Before the request; before_seq must not be above what is acknowledged."""
        with self._lock:
            removal = Removal(tag, before_seq, next(self._count))
            self._topics.setdefault(topic, Sent()).removals.append(removal)
            return removal

    def deleted(self, removal: Removal) -> None:
        with self._lock:
            removal.done_at = next(self._count)

    def topic_deleted(self, topic: str) -> None:
        """Acknowledged: nothing of it may ever come back, and seqs begin anew."""
        with self._lock:
            old = self._topics.pop(topic, Sent())
            self._ghosts.setdefault(topic, set()).update(data for b in old.batches for data in b.payloads)
            self._heads.pop(topic, None)

    def twins(self, copied: Oracle) -> dict[int, Batch]:
        """By identity of each batch here, the same batch in a copy of this oracle."""
        found: dict[int, Batch] = {}
        for name, sent in self._topics.items():
            found |= {id(a): b for a, b in zip(sent.batches, copied._topics[name].batches, strict=True)}
        return found

    def accept(self, topic: str, found: Sequence[Seen]) -> None:
        """Take what is there for all there ever was: a class that promises nothing lost its newest records."""
        with self._lock:
            there = {record.data for record in found}
            for batch in self._topics.get(topic, Sent()).batches:
                if not there.issuperset(batch.payloads):
                    batch.acked_at = 0
            self._heads.pop(topic, None)

    def names(self) -> list[str]:
        with self._lock:
            return sorted(self._topics)

    def newest_acked(self, topic: str) -> int:
        with self._lock:
            sent = self._topics.get(topic, Sent())
            return max((b.seqs[-1] for b in sent.batches if b.acked), default=0)

    def counts(self) -> tuple[int, int]:
        """(records acked, records sent without an answer) in topics that live."""
        with self._lock:
            batches = [b for sent in self._topics.values() for b in sent.batches if not b.refused]
            return (
                sum(len(b.payloads) for b in batches if b.acked),
                sum(len(b.payloads) for b in batches if not b.acked),
            )

    # ---- what must hold ----

    def check(
        self,
        topic: str,
        found: Sequence[Seen],
        *,
        head_seq: int | None = None,
        tail_may_be_lost: bool = False,
        gaps: Iterable[tuple[int, int]] = (),
    ) -> list[str]:
        """Problems of what is there now, nobody writing; empty when all is well. head_seq: what the daemon says.
        gaps: seqs that the daemon says were lost with the power, in-band.

        tail_may_be_lost: power was lost and the class promises no sync. The newest records and deletes may be gone
        then, but not one from the middle, and the head is checked only against what was acknowledged."""
        with self._lock:
            sent = self._topics.get(topic, Sent())
            check = _Check(topic, sent, self._ghosts.get(topic, set()), found, tail_may_be_lost, list(gaps))
            newest = max(found[-1].seq if found else 0, head_seq or 0)
            if not tail_may_be_lost:
                check.head(newest, self._heads.get(topic, 0), head_seq)
                self._heads[topic] = max(newest, self._heads.get(topic, 0))
            check.all()
            return check.problems

    def copy(self) -> Oracle:
        """What is known now, to check several futures against."""
        twin = Oracle()
        with self._lock:
            twin._topics = copy.deepcopy(self._topics)
            twin._ghosts = copy.deepcopy(self._ghosts)
            twin._heads = dict(self._heads)
            twin._count = itertools.count(next(self._count))
        return twin

    def check_watched(self, topic: str, watched: Sequence[Seen], found: Sequence[Seen]) -> list[str]:
        """A watcher that began before the first record, against what is there: nothing missed, nothing twice."""
        with self._lock:
            sent = self._topics.get(topic, Sent())
            check = _Check(topic, sent, set(), watched)
            check.rising()
            check.watched(found)
            return [f"watcher: {problem}" for problem in check.problems]

    def dump(self, path: Path, **more: Any) -> None:
        """Everything as JSON, to look at after a violation."""
        with self._lock:
            topics = {name: _sent_json(sent) for name, sent in self._topics.items()}
        path.write_text(json.dumps({**more, "topics": topics}, indent=1, default=str))


class _Check:
    def __init__(
        self,
        topic: str,
        sent: Sent,
        ghosts: set[bytes],
        found: Sequence[Seen],
        lossy: bool = False,
        gaps: Sequence[tuple[int, int]] = (),
    ) -> None:
        self._topic = topic
        self._lossy = lossy
        self._gaps = gaps
        self._sent = sent
        self._ghosts = ghosts
        self._found = found
        self._at = {record.data: record.seq for record in found}
        self._owner = {data: batch for batch in sent.batches for data in batch.payloads}
        self.problems: list[str] = []

    def all(self) -> None:
        self.rising()
        self.nothing_unknown()
        self.acked_is_there()
        self.deleted_is_gone()
        self.batches_are_whole()
        self.producers_in_order()
        self.no_holes()

    def head(self, newest: int, before: int, claimed: int | None) -> None:
        if newest < before:
            self._say(f"head went back from {before} to {newest}")
        acked = max((b.seqs[-1] for b in self._sent.batches if b.acked), default=0)
        if newest < acked:
            self._say(f"head is {newest}, but {acked} was acknowledged")
        if claimed is not None and self._found and self._found[-1].seq > claimed:
            self._say(f"the daemon says head {claimed} and serves {self._found[-1].seq}")

    def rising(self) -> None:
        pairs = itertools.pairwise(self._found)
        self._list("seqs do not rise", [f"{a.seq} then {b.seq}" for a, b in pairs if b.seq <= a.seq])
        seen: dict[bytes, int] = {}
        twice = []
        for seq, data in self._found:
            if data in seen:
                twice.append(f"{_short(data)} at {seen[data]} and {seq}")
            seen[data] = seq
        self._list("stored twice", twice)

    def nothing_unknown(self) -> None:
        strange, ghosts, refused = [], [], []
        for seq, data in self._found:
            batch = self._owner.get(data)
            if data in self._ghosts:
                ghosts.append(f"{seq} {_short(data)}")
            elif batch is None:
                strange.append(f"{seq} {_short(data)}")
            elif batch.refused:
                refused.append(f"{seq} {_short(data)}")
        self._list("of a topic that was deleted", ghosts)
        self._list("never sent", strange)
        self._list("refused and yet there", refused)

    def acked_is_there(self) -> None:
        lost, moved = [], []
        kept_from = self._kept_from()
        for batch in self._sent.batches:
            if not batch.acked:
                continue
            life = self._life(batch)
            for seq, data in zip(batch.seqs, batch.payloads, strict=True):
                at = self._at.get(data)
                if at is None:
                    tail = self._lossy and (not self._found or seq > self._found[-1].seq or self._in_gap(seq))
                    if life is Life.ALIVE and seq >= max(self._floor(doubtful=True), kept_from) and not tail:
                        lost.append(f"{seq} {_short(data)}")
                elif at != seq:
                    moved.append(f"{_short(data)} acked as {seq}, found at {at}")
        self._list("acknowledged and lost", lost)
        self._list("not at the seq that was acknowledged", moved)

    def deleted_is_gone(self) -> None:
        if self._lossy:
            return
        floor = max(self._floor(doubtful=False), self._kept_from(exact=True))
        back = [f"{seq} {_short(data)}" for seq, data in self._found if seq < floor]
        for batch in self._sent.batches:
            if self._life(batch) is Life.DEAD:
                back += [f"{self._at[data]} {_short(data)}" for data in batch.payloads if data in self._at]
        self._list("deleted and yet there", back)

    def batches_are_whole(self) -> None:
        halves = []
        floor = max(self._floor(doubtful=True), self._kept_from())
        for batch in self._sent.batches:
            seqs = [self._at[data] for data in batch.payloads if data in self._at]
            if not seqs or batch.acked:
                continue
            first = seqs[-1] - len(batch.payloads) + 1
            expected = [seq for seq in range(first, seqs[-1] + 1) if seq >= floor]
            if [seq for seq in seqs if seq >= floor] != expected:
                halves.append(f"{_short(batch.payloads[0])} and {len(batch.payloads) - 1} more: only {seqs[:5]}…")
        self._list("half a batch", halves)

    def producers_in_order(self) -> None:
        """By acknowledgement: a batch nobody answered for may have been stored behind its successors."""
        newest: dict[str, int] = {}
        wrong = []
        for batch in sorted((b for b in self._sent.batches if b.acked), key=lambda b: b.sent_at):
            if batch.first_seq <= newest.get(batch.producer, 0):
                wrong.append(f"{batch.producer}: {batch.first_seq} after {newest[batch.producer]}")
            newest[batch.producer] = batch.seqs[-1]
        self._list("a producer's batches out of order", wrong)
        taken: dict[int, Batch] = {}
        shared = []
        for batch in self._sent.batches:
            for seq in batch.seqs if batch.acked else ():
                if seq in taken:
                    shared.append(f"{seq} for {_short(batch.payloads[0])} and {_short(taken[seq].payloads[0])}")
                taken[seq] = batch
        self._list("a seq acknowledged twice", shared)

    def no_holes(self) -> None:
        if not self._found:
            return
        there = {seq for seq, _ in self._found}
        explained: set[int] = set()
        doubtful_tags = {removal.tag for removal in self._sent.removals if removal.tag is not None}
        # Unanswered batches whose tag was deleted may have been anywhere.
        loose = sum(
            len(b.payloads) for b in self._sent.batches if not b.acked and b.tag in doubtful_tags and not b.refused
        )
        for batch in self._sent.batches:
            if batch.acked and self._life(batch) is not Life.ALIVE:
                explained.update(batch.seqs)
        low = max(self._floor(doubtful=True), self._kept_from(), 1)
        holes = [
            seq
            for seq in range(low, self._found[-1].seq)
            if seq not in there and seq not in explained and not self._in_gap(seq)
        ]
        if len(holes) > loose:
            self._list("nothing at seq", [str(seq) for seq in holes])

    def watched(self, found: Sequence[Seen]) -> None:
        """found: what a read gives now. The watcher has it all, and what else it has was removed since."""
        have = dict(self._found)
        self._list("missed or other", [f"{seq} {_short(data)}" for seq, data in found if have.get(seq) != data])
        there = {seq for seq, _ in found}
        kept_from = max(self._floor(doubtful=True), self._kept_from())
        vanished = []
        for seq, data in self._found:
            batch = self._owner.get(data)
            if seq in there or seq < kept_from:
                continue
            if batch is None or self._life(batch) is Life.ALIVE:
                vanished.append(f"{seq} {_short(data)}")
        self._list("seen and then gone", vanished)

    # ---- inside ----

    def _in_gap(self, seq: int) -> bool:
        return any(first <= seq <= last for first, last in self._gaps)

    def _life(self, batch: Batch) -> Life:
        """As far as deletes by tag go; deletes by seq are a floor."""
        life = Life.ALIVE
        for removal in self._sent.removals:
            if removal.tag is None or removal.tag != batch.tag:
                continue
            if removal.done_at and batch.sent_at > removal.done_at:
                continue
            if removal.done_at and batch.acked and batch.acked_at < removal.begun_at:
                return Life.DEAD
            life = Life.DOUBTFUL
        return life

    def _floor(self, *, doubtful: bool) -> int:
        bounds = [r.before_seq for r in self._sent.removals if r.tag is None and (r.done_at or doubtful)]
        return max(bounds, default=0)

    def _kept_from(self, *, exact: bool = False) -> int:
        """The first seq that a cap keeps. Deletes make room, so without exactness it only bounds from above."""
        cap = self._sent.cap_records
        if not cap or not self._found:
            return 0
        if exact and self._sent.removals:
            return 0
        return self._found[-1].seq - cap + 1

    def _say(self, text: str) -> None:
        self.problems.append(f"{self._topic}: {text}")

    def _list(self, what: str, cases: list[str]) -> None:
        if cases:
            more = f" and {len(cases) - SHOWN} more" if len(cases) > SHOWN else ""
            self._say(f"{what} ({len(cases)}): {'; '.join(cases[:SHOWN])}{more}")


def _short(data: bytes) -> str:
    return data[:40].decode("latin-1")


def _sent_json(sent: Sent) -> dict[str, Any]:
    return {
        "cap_records": sent.cap_records,
        "batches": [
            {
                "producer": b.producer,
                "payloads": [_short(p) for p in b.payloads],
                "tag": b.tag,
                "sent_at": b.sent_at,
                "acked_at": b.acked_at,
                "first_seq": b.first_seq,
                "refused": b.refused,
            }
            for b in sent.batches
        ],
        "removals": [{"tag": r.tag, "before_seq": r.before_seq, "at": [r.begun_at, r.done_at]} for r in sent.removals],
    }


def seen(records: Iterable[Any]) -> list[Seen]:
    """Records of the client library as the oracle wants them."""
    return [Seen(record.seq, record.data) for record in records]
