"""Copies and other large writes on their way to their segment, past the log. Promise: acknowledged means in a synced
segment, whole; a write that failed leaves nothing that a later write or a later start could take for one.

    claim    the log says who writes which seqs and how their last frame ends; synced before the first byte is stored
    store    a checkpoint puts them behind what the topic has, data and index synced
    commit   visible, acknowledged; the log keeps the claim until a snapshot knows the producer's number

Whatever comes for the topic meanwhile waits in its lane: the log never holds seqs above some that may fail yet.
Why: docs/adr/0008.
"""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

from topicd.errors import TopicdError
from topicd.frames import Direct, direct_frame, frame_checksum
from topicd.shards.delivery.storing.segmenting import limits_of
from topicd.shards.delivery.writing.outlet import Entry, Need

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic.topic import Topic
    from topicd.shards.delivery.writing.in_flight import AppendEntry


class DirectWrites:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self.bytes = 0  # in lanes
        self.stored_bytes = 0  # since the last snapshot: so much the log speaks of and does not hold

    def takes(self, topic: Topic, size: int, count: int, *, copied: bool) -> bool:
        """Shall a batch of this size go past the log? One segment must hold it, so that a start knows half of it."""
        settings = self._actor.settings
        if size < settings.direct_bytes or settings.direct_writes == "none" or topic.ephemeral:
            return False
        if not (copied or topic.internal or (topic.synced and settings.direct_writes == "synced")):
            return False
        if self._actor.checkpointer.failing:
            return False  # the log may still have room
        most_records, most_bytes = limits_of(topic, settings)
        return count <= most_records and size <= most_bytes

    def place(self, entry: AppendEntry) -> None:
        """A direct write, or anything behind one."""
        lane = entry.topic.lane
        # In the log a producer's numbers stand in order: not before those that wait for their place in it.
        in_order = not lane or lane[-1].announced
        lane.append(entry)
        self.bytes += len(entry.frames)
        if entry.direct and in_order:
            self._claim(entry)

    def _claim(self, entry: AppendEntry) -> None:
        entry.announced = True
        ((producer_id, batch_no),) = entry.producers
        claim = Direct(producer_id, batch_no, entry.first_seq, entry.count, frame_checksum(entry.frames))
        self._actor.submit_control(entry.topic, direct_frame(entry.topic.id, entry.ts, claim), _Claim(entry))

    def claimed(self, entry: AppendEntry, position: int) -> None:
        entry.pin = position
        self._actor.outlets[entry.topic.outlet].pins.add(position)
        self.look(entry.topic)

    def look(self, topic: Topic) -> None:
        """Everything before the lane is committed, its first write is claimed: the next checkpoint may have it."""
        if topic.lane and topic.lane[0].pin is not None and topic.under_way[0] is topic.lane[0]:
            self._actor.checkpointer.note_direct(topic)

    @staticmethod
    def storable(topic: Topic) -> list[AppendEntry]:
        if not topic.lane or topic.under_way[0] is not topic.lane[0]:
            return []
        return list(takewhile(lambda entry: entry.pin is not None, topic.lane))

    def stored(self, topic: Topic, entries: list[AppendEntry]) -> None:
        """The oldest of the lane are in synced segments."""
        for entry in entries:
            self._leave(topic.lane.popleft())
            self.stored_bytes += len(entry.frames)
            entry.answer()
            entry.committed()
        while topic.lane and not topic.lane[0].direct:
            waiting = topic.lane.popleft()
            self._leave(waiting)
            self._actor.appender.submit(waiting)
        for following in takewhile(lambda entry: entry.direct, list(topic.lane)):
            if not following.announced:
                self._claim(following)
        self.look(topic)

    def fail(self, topic: Topic, error: TopicdError, last: AppendEntry | None = None) -> None:
        """All of the lane, newest first, or down to the last one that is named."""
        if last is not None and last not in topic.lane:
            return
        while topic.lane:
            entry = topic.lane.pop()
            self._leave(entry)
            entry.failed(error)
            if entry is last:
                return

    def _leave(self, entry: AppendEntry) -> None:
        self.bytes -= len(entry.frames)
        if entry.pin is not None:
            self._actor.outlets[entry.topic.outlet].pins.discard(entry.pin)
            entry.pin = None


class _Claim(Entry):
    """The frame that announces a direct write."""

    __slots__ = ("_entry",)

    def __init__(self, entry: AppendEntry) -> None:
        super().__init__(Need.SYNCED)
        self._entry = entry

    def committed(self) -> None:
        entry = self._entry
        if entry in entry.topic.lane:
            entry.actor.direct.claimed(entry, self.ring_end - self.size)

    def failed(self, error: TopicdError) -> None:
        entry = self._entry
        entry.actor.direct.fail(entry.topic, error, entry)
