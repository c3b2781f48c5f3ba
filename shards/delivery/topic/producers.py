"""Who has sent which batch to a topic. Promise: a batch number is stored once, however often it is sent.

The table is rebuilt from producer frames in the log and from snapshots; it is bounded in producers and in answers
remembered for each. Ids from `LASTING` on belong to producers that may be silent for days and go on: ordinary ones,
however many, do not make the table forget them. Ids from `SCATTERED` to there are those that jobs of a queue write as:
their numbers are the seqs of jobs and come in any order, so they are kept as ranges (scattered.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from itertools import repeat
from typing import Any, ClassVar

from topicd.errors import Conflict, OutOfOrder
from topicd.limits import LASTING, SCATTERED
from topicd.shards.delivery.topic.part import TopicPart
from topicd.shards.delivery.topic.scattered import Scattered

ANSWERS_KEPT = 1_024  # per producer: more batches than a client may have in flight
ANSWERS_SAVED = 64  # of these in a snapshot; newer ones are in the log
PRODUCERS_KEPT = 1_024  # per topic, least recently used go first
LASTING_KEPT = 4_096  # of those that are not released; then these, too
SCATTERED_KEPT = 256  # per topic, least recently used go first
_FENCE = 1 << 32


Assigned = tuple[int, int, int]  # batch number, first seq, records


class ProducerState:
    __slots__ = ("answers", "last_no", "newest")

    def __init__(self, last_no: int = 0) -> None:
        self.last_no = last_no  # assigned last, stored or under way
        self.newest = 0  # seq at which its last batch begins
        self.answers: deque[Assigned] = deque(maxlen=ANSWERS_KEPT)

    def find(self, batch_no: int) -> Assigned | None:
        if not self.answers:
            return None
        # Numbers are contiguous, so the position follows from the newest one.
        index = len(self.answers) - 1 - (self.answers[-1][0] - batch_no)
        if 0 <= index < len(self.answers) and self.answers[index][0] == batch_no:
            return self.answers[index]
        return next((answer for answer in self.answers if answer[0] == batch_no), None)


class ProducerTable(TopicPart):
    """Its frames are no changes of their own but open batches of records: starting/replay.py counts them."""

    KEY: ClassVar[str] = "producers"

    def __init__(self) -> None:
        self._states: dict[int, ProducerState] = {}
        self._lasting: set[int] = set()  # of these, not released
        self._scattered: dict[int, Scattered] = {}

    def __len__(self) -> int:
        return len(self._states) + len(self._scattered)

    def is_next(self, producer_id: int, batch_no: int) -> bool:
        """The common case: nothing was sent twice or too early."""
        if SCATTERED <= producer_id < LASTING:
            scattered = self._scattered.get(producer_id)
            return scattered is None or not scattered.knows(batch_no)
        state = self._states.get(producer_id)
        if state is None:
            # A lasting one begins at the beginning: anything else is a repetition that comes after its release.
            return producer_id < LASTING or batch_no == 1
        return batch_no == state.last_no + 1

    def expected(self, producer_id: int, visible: int) -> int:
        """The number behind its last batch that is stored, not merely under way; 1 if it is not known."""
        if SCATTERED <= producer_id < LASTING:
            scattered = self._scattered.get(producer_id)
            return 1 if scattered is None else scattered.highest + 1
        state = self._states.get(producer_id)
        if state is None:
            return 1
        stored = (number for number, first, count in reversed(state.answers) if first + count - 1 <= visible)
        last = next(stored, state.answers[0][0] - 1 if state.answers else state.last_no)
        return last + 1

    def lookup(self, producer_id: int, batch_no: int) -> Assigned:
        """The first answer to a batch that was assigned before, stored or under way."""
        if SCATTERED <= producer_id < LASTING:
            return self._scattered[producer_id].answer(batch_no)
        state = self._states.get(producer_id) or ProducerState()
        if batch_no > state.last_no:
            raise OutOfOrder(f"batch {batch_no} came before batch {state.last_no + 1}", expected=state.last_no + 1)
        answer = state.find(batch_no)
        if answer is None:
            raise Conflict(
                f"batch {batch_no} of producer {producer_id:016x} is too old to be answered again", last=state.last_no
            )
        return answer

    def assign(self, producer_id: int, batch_no: int, first_seq: int, count: int) -> None:
        if SCATTERED <= producer_id < LASTING:
            self._scattered_of(producer_id).add(batch_no, first_seq, count)
            return
        state = self._states.get(producer_id)
        if state is None:
            state = self._admit(producer_id, ProducerState())
        state.last_no = batch_no
        state.newest = first_seq
        state.answers.append((batch_no, first_seq, count))

    def _scattered_of(self, producer_id: int) -> Scattered:
        found = self._scattered.get(producer_id)
        if found is None:
            if len(self._scattered) >= SCATTERED_KEPT:
                del self._scattered[min(self._scattered, key=lambda one: self._scattered[one].newest)]
            found = self._scattered[producer_id] = Scattered()
        return found

    def _admit(self, producer_id: int, state: ProducerState) -> ProducerState:
        if producer_id >= LASTING:
            if len(self._lasting) >= LASTING_KEPT:
                self._forget_oldest(self._lasting)
            self._lasting.add(producer_id)
        elif len(self._states) - len(self._lasting) >= PRODUCERS_KEPT:
            self._forget_oldest(self._states.keys() - self._lasting)
        self._states[producer_id] = state
        return state

    def assign_run(self, producer_id: int, batch_no: int, first_seq: int, batches: int) -> None:
        """As many batches of one record each, one behind the other."""
        self.assign(producer_id, batch_no, first_seq, 1)
        if batches > 1:
            state = self._states[producer_id]
            state.last_no = batch_no + batches - 1
            state.newest = first_seq + batches - 1
            numbers = range(batch_no + 1, batch_no + batches)
            state.answers.extend(zip(numbers, range(first_seq + 1, first_seq + batches), repeat(1)))

    def _forget_oldest(self, among: Set[int]) -> None:
        """The producer whose last batch is the oldest; one that comes back is a new one."""
        oldest = min(among, key=lambda producer_id: self._states[producer_id].newest)
        del self._states[oldest]
        self._lasting.discard(oldest)

    def release(self, producer_id: int) -> None:
        """A lasting producer is like any other from now on. Not in the log: after a restart it lasts again, which
        costs room and nothing else."""
        if producer_id in self._lasting:
            if len(self._states) - len(self._lasting) >= PRODUCERS_KEPT:
                self._forget_oldest(self._states.keys() - self._lasting)
            self._lasting.discard(producer_id)

    def fence_above(self, producer_id: int) -> int:
        """A number that is far above all that this producer may have sent."""
        state = self._states.get(producer_id)
        return (0 if state is None else state.last_no) + _FENCE

    def fence(self, producer_id: int, number: int) -> None:
        """It goes on behind that number: whoever still sends what came before is refused."""
        state = self._states.get(producer_id) or self._admit(producer_id, ProducerState())
        if number > state.last_no:
            state.last_no = number
            state.answers.clear()
            state.answers.append((number, 1, 0))

    def take_back(self, producer_id: int, batch_no: int) -> None:
        """The batch was not stored; its number may be used again."""
        if SCATTERED <= producer_id < LASTING:
            self._scattered_of(producer_id).take_back(batch_no)
            return
        state = self._states.get(producer_id)
        if state is None:
            return
        while state.answers and state.answers[-1][0] >= batch_no:
            state.answers.pop()
        state.last_no = min(state.last_no, batch_no - 1)

    def to_snapshot(self, visible: int) -> list[Any]:
        """What is stored; a batch still under way may be lost yet, so it is left out."""
        rows = []
        for producer_id, state in self._states.items():
            stored = [answer for answer in state.answers if answer[1] + answer[2] - 1 <= visible]
            if stored:
                rows.append([producer_id, stored[-1][0], [list(answer) for answer in stored[-ANSWERS_SAVED:]]])
        for producer_id, scattered in self._scattered.items():
            numbers, answers = scattered.stored(visible)
            rows.append([producer_id, 0, answers[-ANSWERS_SAVED:], numbers])
        return rows

    def restore(self, body: list[Any]) -> None:
        for producer_id, last_no, answers, *numbers in body:
            if numbers:
                self._scattered_of(producer_id).restore(numbers[0], answers)
                continue
            state = ProducerState(last_no)
            state.answers.extend((number, first, count) for number, first, count in answers)
            state.newest = state.answers[-1][1] if state.answers else 0
            self._admit(producer_id, state)

    def replay_batch(self, producer_id: int, batch_no: int, first_seq: int, count: int) -> None:
        """From the log: like assign, but a snapshot may be ahead of it."""
        if SCATTERED <= producer_id < LASTING:
            if self.is_next(producer_id, batch_no):
                self.assign(producer_id, batch_no, first_seq, count)
            return
        state = self._states.get(producer_id)
        if state is None or batch_no > state.last_no:
            self.assign(producer_id, batch_no, first_seq, count)
