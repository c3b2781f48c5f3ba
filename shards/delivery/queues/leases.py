"""Who holds which job, under which number, until when. Promise: a number is given out once and is larger than all
before it; a job that nobody holds is in none of these.

Neighbouring jobs that were handed out together are one grant: the number of a job follows from its place in it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

RUN_SHIFT = 32  # of a lease number: above it stands the run of the daemon
NUMBERS_AHEAD = 1 << 16  # the mark in the log is so far ahead of what is given out


class Holder:
    """A stream that holds jobs as long as its connection lives."""

    def __init__(self) -> None:
        self.held = 0
        self.grants: set[Grant] = set()


class Grant:
    __slots__ = ("base", "deadline", "first", "holder", "last", "left", "node", "since", "size")

    def __init__(self, first: int, last: int, base: int, deadline: int, node: bytes, holder: Holder | None) -> None:
        self.first = first
        self.last = last
        self.base = base  # number of the first job
        self.deadline = deadline
        self.node = node
        self.holder = holder
        self.left = 0  # jobs that it holds yet
        self.since = 0  # when they were handed out; 0: not known
        self.size = -1  # bytes of all their records; -1: not known

    def number(self, seq: int) -> int:
        return self.base + seq - self.first


class Leases:
    def __init__(self) -> None:
        self._held: dict[int, Grant] = {}
        self._due: list[tuple[int, int, Grant]] = []  # (deadline, n, grant): a heap; grants may be empty by now
        self._given = 0
        self.next_number = 0
        self.marked = 0  # a mark in the log says: numbers below this may have been given out

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, seq: int) -> bool:
        return seq in self._held

    def get(self, seq: int) -> Grant | None:
        return self._held.get(seq)

    def begin_run(self, run: int) -> None:
        """Numbers of a new run are above all of earlier ones; within a run they go on behind the mark."""
        self.next_number = max(self.next_number, self.marked, (run << RUN_SHIFT) + 1)

    @property
    def needs_mark(self) -> bool:
        return self.next_number + NUMBERS_AHEAD // 2 > self.marked

    def give(self, first: int, last: int, base: int, deadline: int, node: bytes, holder: Holder | None) -> Grant:
        """These jobs are held now; before, perhaps under another grant."""
        grant = Grant(first, last, base, deadline, node, holder)
        if last == first:
            self._leave(first)
            self._held[first] = grant
            grant.left = 1
        else:
            seqs = range(first, last + 1)
            if not self._held.keys().isdisjoint(seqs):
                for seq in seqs:
                    self._leave(seq)
            self._held.update(dict.fromkeys(seqs, grant))
            grant.left = last - first + 1
        if holder is not None:
            holder.held += grant.left
            holder.grants.add(grant)
        self._given += 1
        heapq.heappush(self._due, (deadline, self._given, grant))
        if len(self._due) > 64 + 4 * len(self._held):
            self._due = [row for row in self._due if row[2].left]
            heapq.heapify(self._due)
        return grant

    def is_held(self, seq: int, number: int, node: bytes) -> bool:
        """Under this number, unless it is 0, and by this node, unless it is empty."""
        grant = self._held.get(seq)
        if grant is None:
            return False
        return (not number or grant.base + seq - grant.first == number) and (not node or grant.node == node)

    def end(self, seq: int) -> Grant | None:
        """Nobody holds it any more."""
        return self._leave(seq)

    def end_whole(self, first: int, last: int, number: int) -> Grant | None:
        """Nobody holds these neighbours any more, if they are all that was handed out together, under these numbers,
        and all are held; None: nothing has changed."""
        grant = self._held.get(first)
        if grant is None or grant.first != first or grant.last != last or grant.base != number:
            return None
        if grant.left != last - first + 1:
            return None
        for seq in range(first, last + 1):
            del self._held[seq]
        holder, grant.left = grant.holder, 0
        if holder is not None:
            holder.held -= last - first + 1
            holder.grants.discard(grant)
        return grant

    def _leave(self, seq: int) -> Grant | None:
        grant = self._held.pop(seq, None)
        if grant is not None:
            grant.left -= 1
            holder = grant.holder
            if holder is not None:
                holder.held -= 1
                if not grant.left:
                    holder.grants.discard(grant)
        return grant

    def take_expired(self, now_ms: int) -> list[tuple[int, Grant]]:
        """Jobs whose time is over; nobody holds them any more."""
        found: list[tuple[int, Grant]] = []
        due = self._due
        while due and due[0][0] < now_ms:
            grant = heapq.heappop(due)[2]
            if not grant.left:
                continue
            for seq in range(grant.first, grant.last + 1):
                if self._held.get(seq) is grant:
                    self._leave(seq)
                    found.append((seq, grant))
        return found

    @property
    def next_end(self) -> int | None:
        """From when on the next one is expired."""
        due = self._due
        while due and not due[0][2].left:
            heapq.heappop(due)
        return due[0][0] + 1 if due else None

    def of(self, grant: Grant) -> list[int]:
        return [seq for seq in range(grant.first, grant.last + 1) if self._held.get(seq) is grant]

    def seqs(self) -> Iterator[int]:
        return iter(list(self._held))

    def rows(self) -> list[list[object]]:
        """[first, last, number of the first, deadline, node], as they are given again by `give`."""
        rows: list[list[object]] = []
        seen: set[int] = set()
        for grant in list(self._held.values()):
            if id(grant) in seen:
                continue
            seen.add(id(grant))
            first = last = 0
            for seq in [*self.of(grant), 0]:
                if first and seq != last + 1:
                    rows.append([first, last, grant.number(first), grant.deadline, grant.node])
                    first = 0
                first, last = first or seq, seq
        return rows
