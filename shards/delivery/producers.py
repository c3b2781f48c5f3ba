"""Who has sent which batch to a topic. Promise: a batch number is stored once, however often it is sent.

The table is rebuilt from producer frames in the log and from snapshots; it is bounded in producers and in answers
remembered for each.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any, NamedTuple

from topicd.errors import Conflict, OutOfOrder

ANSWERS_KEPT = 1_024  # per producer: more batches than a client may have in flight
ANSWERS_SAVED = 64  # of these in a snapshot; newer ones are in the log
PRODUCERS_KEPT = 1_024  # per topic, least recently used go first


class Answer(NamedTuple):
    batch_no: int
    first_seq: int
    records: int


class ProducerState:
    __slots__ = ("answers", "last_no")

    def __init__(self, last_no: int = 0) -> None:
        self.last_no = last_no  # assigned last, stored or under way
        self.answers: deque[Answer] = deque(maxlen=ANSWERS_KEPT)

    def find(self, batch_no: int) -> Answer | None:
        if not self.answers:
            return None
        # Numbers are contiguous, so the position follows from the newest one.
        index = len(self.answers) - 1 - (self.answers[-1].batch_no - batch_no)
        if 0 <= index < len(self.answers) and self.answers[index].batch_no == batch_no:
            return self.answers[index]
        return next((a for a in self.answers if a.batch_no == batch_no), None)


class ProducerTable:
    def __init__(self) -> None:
        self._states: OrderedDict[int, ProducerState] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def lookup(self, producer_id: int, batch_no: int) -> Answer | None:
        """The first answer if this batch was assigned before (stored or under way); None if it is the next one."""
        state = self._states.get(producer_id)
        if state is None or batch_no == state.last_no + 1:
            return None
        if batch_no > state.last_no:
            raise OutOfOrder(
                f"batch {batch_no} came before batch {state.last_no + 1}", expected=state.last_no + 1
            )
        answer = state.find(batch_no)
        if answer is None:
            raise Conflict(
                f"batch {batch_no} of producer {producer_id:016x} is too old to be answered again",
                last=state.last_no,
            )
        return answer

    def assign(self, producer_id: int, batch_no: int, first_seq: int, count: int) -> None:
        state = self._states.get(producer_id)
        if state is None:
            state = self._states[producer_id] = ProducerState()
            if len(self._states) > PRODUCERS_KEPT:
                self._states.popitem(last=False)
        else:
            self._states.move_to_end(producer_id)
        state.last_no = batch_no
        state.answers.append(Answer(batch_no, first_seq, count))

    def take_back(self, producer_id: int, batch_no: int) -> None:
        """The batch was not stored; its number may be used again."""
        state = self._states.get(producer_id)
        if state is None:
            return
        while state.answers and state.answers[-1].batch_no >= batch_no:
            state.answers.pop()
        state.last_no = min(state.last_no, batch_no - 1)

    def to_wire(self, visible: int) -> list[Any]:
        """What is stored; a batch still under way may be lost yet, so it is left out."""
        rows = []
        for producer_id, state in self._states.items():
            stored = [answer for answer in state.answers if answer.first_seq + answer.records - 1 <= visible]
            if stored:
                rows.append(
                    [producer_id, stored[-1].batch_no, [list(answer) for answer in stored[-ANSWERS_SAVED:]]]
                )
        return rows

    def restore(self, wire: list[Any]) -> None:
        for producer_id, last_no, answers in wire:
            state = ProducerState(last_no)
            state.answers.extend(Answer(*answer) for answer in answers)
            self._states[producer_id] = state

    def replay(self, producer_id: int, batch_no: int, first_seq: int, count: int) -> None:
        """From the log: like assign, but a snapshot may be ahead of it."""
        state = self._states.get(producer_id)
        if state is None or batch_no > state.last_no:
            self.assign(producer_id, batch_no, first_seq, count)
