"""The one way into the WAL. Promise: what was written before stands before it in the log; a change is told exactly once
that it was stored as it needs, or that it was not; the next snapshot knows of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topicd.errors import NotReady, TopicdError
from topicd.frames import FrameType, control_frame
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.topic.changes import Changes
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.entry import Entry, Part, pieces
from topicd.shards.delivery.writing.outlet import Again, Outlet

# What may be said of a topic whose copies are in no log: it holds whichever of them a start finds.
_OF_ANY = frozenset(
    (FrameType.ROUTED, FrameType.CURSOR, FrameType.EVICT_WATERMARK, FrameType.HEAD_WATERMARK, FrameType.TOPIC_DELETE)
)


class _Change(Entry):
    """A control frame on its way."""

    __slots__ = ("_applied", "_changes", "_number", "_refused")

    def __init__(
        self,
        need: Need,
        changes: Changes,
        number: int,
        applied: Callable[[], None] | None,
        refused: Callable[[TopicdError], None] | None,
    ) -> None:
        super().__init__(need)
        self._changes = changes
        self._number = number  # 0: it has none
        self._applied = applied
        self._refused = refused

    def committed(self) -> None:
        self._changes.end(self._number)
        if self._applied is not None:
            self._applied()

    def failed(self, error: TopicdError) -> None:
        self._changes.end(self._number)
        if self._refused is not None:
            self._refused(error)


class Log:
    def __init__(self, place: Place, outlets: list[Outlet], agenda: Agenda, backlog: Backlog) -> None:
        self._clock = place.clock
        self._place = place
        self._joined_below = place.gathered_bytes + place.small_batch
        self.outlets = outlets
        self._agenda = agenda
        self._backlog = backlog
        self.place_gathered: Callable[[], None] = lambda: None  # set by the appender, which gathers small batches

    def outlet_of(self, topic: Topic) -> Outlet:
        return self.outlets[topic.outlet]

    @property
    def crowded(self) -> bool:
        """So many changes are under way that clients may make no more."""
        return any(outlet.crowded for outlet in self.outlets)

    def append(self, topic: Topic, wire: list[Part], entry: Entry) -> None:
        """Records, to the ring. The turn under way rings."""
        outlet, size = self.outlets[topic.outlet], sum(map(len, wire))
        if len(wire) > 1 and size < self._joined_below:
            wire = [b"".join(wire)]
        outlet.submit(wire, size, entry)
        self._agenda.to_ring.add(outlet)

    def change(
        self,
        topic: Topic,
        kind: FrameType,
        body: dict[str, Any],
        *,
        seq: int,
        need: Need,
        applied: Callable[[], None] | None = None,
        refused: Callable[[TopicdError], None] | None = None,
        numbered: bool = False,
    ) -> None:
        """A control frame. applied: it is stored; refused: it is not, and never will be. A numbered change is not
        replayed when the snapshot holds it already: for those that must not be done twice, or out of order."""
        if topic.inflows.derived is not None and kind not in _OF_ANY:
            if topic.inflows.remaking:
                if refused is not None:
                    refused(NotReady(f"the copies in topic {topic.name} are being made again", retry_after_ms=20))
                return
            self.log_copies(topic, "others change it")
        number = 0
        if numbered:
            number = body["no"] = topic.changes.begin()

        frame = control_frame(kind, topic.id, seq, self._clock.now_ms(), body)
        self.submit(topic, frame, _Change(need, topic.changes, number, applied, refused))

    def log_copies(self, topic: Topic, why: str, cursor: int = 0, holes: int = 0) -> list[int] | None:
        """The copies that a router makes are logged from now on, for good. First those that no segment has, then the
        word that it is so, and both before whatever comes next: the log has all of a topic that others write to.
        Readers have seen the copies, so both are sent again if the disk fails.

        cursor: so far the router is in its source, and `holes` seqs stand for what it has passed over there; that is in
        the same word, so that nobody ever finds one without the other. Returned: the hole."""
        inflows, contents = topic.inflows, topic.contents
        router_id, inflows.derived = inflows.derived, None
        if router_id is None:
            return None
        flow = inflows.routers[router_id]
        flow.why = why
        contents.tail.close_open()
        parts: list[Part] = []
        for blob in contents.tail.from_seq(topic.seqs.stored + 1):
            parts += pieces(blob.view(), blob.offsets, self._place.piece_bytes)
        body: dict[str, Any] = {
            "router": router_id,
            "cursor": max(flow.cursor, cursor),
            "total": flow.total,
            "logged": why,
        }
        hole = None
        if holes:
            hole = body["hole"] = [topic.seqs.head + 1, topic.seqs.head + holes]
            body["total"] += holes
            topic.seqs.give_out(holes, max(self._clock.now_ms(), topic.seqs.last_ts))
        inflows.replay(FrameType.ROUTED, body, 0)
        number = body["no"] = topic.changes.begin()
        parts.append(control_frame(FrameType.ROUTED, topic.id, topic.seqs.head, self._clock.now_ms(), body))
        topic.changes.end(number)
        self.place_gathered()
        outlet = self.outlets[topic.outlet]
        outlet.submit(parts, sum(map(len, parts)), Again(Need.PLACED))
        self._backlog.metadata_changed = True
        self._agenda.ring(outlet)
        return hole

    def submit(self, topic: Topic, frame: bytes, entry: Entry) -> None:
        """A frame whose entry is of a kind of its own."""
        self.place_gathered()
        outlet = self.outlets[topic.outlet]
        if outlet.read_only_errno and entry.need is not Need.PLACED:
            entry.failed(outlet.refusal())
            return
        outlet.submit([frame], len(frame), entry)
        self._backlog.metadata_changed = True
        self._agenda.ring(outlet)
