"""Copies and other large writes on their way to their segment, past the log. Promise: acknowledged means in a synced
segment, whole; a write that failed leaves nothing that a later write or a later start could take for one.

    claim    the log says who writes which seqs and how their last frame ends; synced before the first byte is stored
    store    a checkpoint puts them behind what the topic has, data and index synced
    commit   visible, acknowledged; the log keeps the claim until a snapshot knows the producer's number

Whatever comes for the topic meanwhile waits behind it: the log never holds seqs above some that may fail yet.
Why: docs/adr/0008.
"""

from __future__ import annotations

from itertools import takewhile

from topicd.errors import TopicdError
from topicd.frames import Direct, direct_frame, frame_checksum
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.storing.pressure import Pressure
from topicd.shards.delivery.topic.flight import InFlight
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need, storage_failed
from topicd.shards.delivery.writing.entry import Entry
from topicd.shards.delivery.writing.log import Log


class DirectWrites:
    def __init__(self, place: Place, log: Log, backlog: Backlog, pressure: Pressure) -> None:
        self._place = place
        self._log = log
        self._backlog = backlog
        self._pressure = pressure
        self.bytes = 0  # of direct writes under way, and of what waits behind them
        self.stored_bytes = 0  # since the last snapshot: so much the log speaks of and does not hold

    def takes(self, topic: Topic, size: int, count: int, *, copied: bool) -> bool:
        """Shall a batch of this size go past the log? One segment must hold it, so that a start knows half of it."""
        settings = self._place.settings
        if size < settings.direct_bytes or not topic.policy.may_go_direct(settings, copied=copied):
            return False
        if self._pressure.failing or self._backlog.held:
            return False  # the log may still have room; a backup takes from the log what comes after the segments
        most_records, most_bytes = topic.policy.segment_limits(settings)
        return count <= most_records and size <= most_bytes

    def place(self, topic: Topic, entry: InFlight) -> None:
        """A direct write, or anything behind one."""
        waiting = topic.flight.behind_direct
        # In the log a producer's numbers stand in order: not before those that wait for their place in it.
        in_order = not waiting or waiting[-1].announced
        waiting.append(entry)
        self.bytes += len(entry.frames)
        if entry.direct and in_order:
            self._claim(topic, entry)

    def _claim(self, topic: Topic, entry: InFlight) -> None:
        entry.announced = True
        ((producer_id, batch_no),) = entry.producers
        claim = Direct(producer_id, batch_no, entry.first_seq, entry.count, frame_checksum(entry.frames))
        self._log.submit(topic, direct_frame(topic.id, entry.ts, claim), _Claim(self, topic, entry))

    def claimed(self, topic: Topic, entry: InFlight, position: int) -> None:
        if entry in topic.flight.behind_direct:
            entry.pin = position
            self._log.outlet_of(topic).pins.add(position)
            self.look(topic)

    def look(self, topic: Topic) -> None:
        """Everything before the oldest direct write is committed, and it is claimed: the next checkpoint may have
        it."""
        flight = topic.flight
        if flight.direct_is_next and flight.behind_direct[0].pin is not None:
            self._backlog.note_direct(topic)

    @staticmethod
    def storable(topic: Topic) -> list[InFlight]:
        flight = topic.flight
        return (
            list(takewhile(lambda entry: entry.pin is not None, flight.behind_direct)) if flight.direct_is_next else []
        )

    def stored(self, topic: Topic, entries: list[InFlight]) -> None:
        """The oldest direct writes are in synced segments."""
        waiting = topic.flight.behind_direct
        for entry in entries:
            self._leave(topic, waiting.popleft())
            self.stored_bytes += len(entry.frames)
            entry.answer()
            entry.committed()
        while waiting and not waiting[0].direct:
            following = waiting.popleft()
            self._leave(topic, following)
            self._log.append(topic, following.wire, following)
        for following in takewhile(lambda entry: entry.direct, list(waiting)):
            if not following.announced:
                self._claim(topic, following)
        self.look(topic)

    def refuse(self, topic: Topic, code: int, *, debris: bool) -> None:
        """The disk did not take them. Until what they may have left is cleared away, the topic takes nothing: the same
        seqs are given out again."""
        if not topic.live:
            return
        if debris:
            topic.flight.debris = True
            self._backlog.debris[topic.id] = topic
        self.fail(topic, storage_failed(code))

    def cleared(self, topic_id: int) -> None:
        """Nothing is left of writes that failed."""
        topic = self._backlog.debris.pop(topic_id, None)
        if topic is not None:
            topic.flight.debris = False

    def fail(self, topic: Topic, error: TopicdError, last: InFlight | None = None) -> None:
        """All of them, newest first, or down to the last one that is named."""
        waiting = topic.flight.behind_direct
        if last is not None and last not in waiting:
            return
        while waiting:
            entry = waiting.pop()
            self._leave(topic, entry)
            entry.failed(error)
            if entry is last:
                return
        self._backlog.direct.pop(topic.id, None)  # a round without work would find the disk well

    def _leave(self, topic: Topic, entry: InFlight) -> None:
        self.bytes -= len(entry.frames)
        if entry.pin is not None:
            self._log.outlet_of(topic).pins.discard(entry.pin)
            entry.pin = None


class _Claim(Entry):
    """The frame that announces a direct write."""

    __slots__ = ("_direct", "_entry", "_topic")

    def __init__(self, direct: DirectWrites, topic: Topic, entry: InFlight) -> None:
        super().__init__(Need.SYNCED)
        self._direct = direct
        self._topic = topic
        self._entry = entry

    def committed(self) -> None:
        self._direct.claimed(self._topic, self._entry, self.ring_end - self.size)

    def failed(self, error: TopicdError) -> None:
        self._direct.fail(self._topic, error, self._entry)
