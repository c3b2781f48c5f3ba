"""Which routers feed a topic, and how far each of them has come. Promise: a source record is copied once, whatever
happens, and a copy that was seen keeps its seq.

Of a logged topic, copies and the word that their source records are copied are stored together: a router's batches
carry the seq of the last source record that they cover, as the number of their producer; what was looked at and not
copied is told by frames of its own, now and then.

Of a derived topic, which one router feeds and nobody else, the log has no copies. A mark says: of the source's records
up to `cursor` the copies end at `seq`, and segments have them. What segments have behind the mark was made of the
records behind `cursor`, in their order; what they do not have is made again. Why that is safe: docs/adr/0021.

Seqs that stand for source records which were gone before their turn are holes: nobody wrote them, and readers are told.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from topicd.frames import FrameType
from topicd.limits import ROUTED, SCATTERED
from topicd.shards.delivery.topic.part import TopicPart
from topicd.shards.storage.ranges import Ranges

EARLIER = "it was made by an earlier version"


def is_routed(producer_id: int) -> bool:
    return ROUTED <= producer_id < SCATTERED


class Mark(NamedTuple):
    """Of a derived topic."""

    seq: int  # here
    cursor: int  # in the source
    total: int  # copies made


class Inflow:
    """One router, by its id."""

    __slots__ = ("cursor", "total", "under_way", "why")

    def __init__(self, cursor: int, total: int = 0, why: str | None = None) -> None:
        self.cursor = cursor  # source seq up to which everything is stored here, or not wanted
        self.total = total  # copies made, and holes
        self.why = why  # copies are logged; empty: they are not; None: nobody has decided yet
        self.under_way: list[tuple[int, int]] = []  # (cursor behind it, copies) of batches that are on their way


class Inflows(TopicPart):
    KEY: ClassVar[str] = "inflows"
    FRAMES: ClassVar[frozenset[FrameType]] = frozenset({FrameType.ROUTED})

    def __init__(self) -> None:
        self.routers: dict[int, Inflow] = {}
        self.trimmed = Ranges()  # holes, as far as they can still be read over
        # Of a derived topic.
        self.derived: int | None = None  # the router that feeds it
        self.mark = Mark(0, 0, 0)
        self._planned = Mark(0, 0, 0)  # where a checkpoint under way will end
        self.skip = 0  # so many copies of the records behind the cursor are there already
        self.remaking = False  # since a start: what readers had seen may not be there yet
        self.last_ts = 0  # of the newest copy that segments have

    def __len__(self) -> int:
        return len(self.routers)

    # ---- batches of copies ----

    def begin(self, router_id: int, cursor: int, count: int) -> None:
        """A batch is on its way that ends behind this source seq."""
        self.routers[router_id].under_way.append((cursor, count))

    def stored(self, producer_id: int) -> None:
        """The oldest one is there."""
        flow = self.routers.get(producer_id - ROUTED)
        if flow is not None and flow.under_way:
            cursor, count = flow.under_way.pop(0)
            flow.cursor = max(flow.cursor, cursor)
            flow.total += count

    def failed(self, producer_id: int) -> None:
        """The newest one is not, and will not be."""
        flow = self.routers.get(producer_id - ROUTED)
        if flow is not None and flow.under_way:
            flow.under_way.pop()

    def replay_batch(self, producer_id: int, cursor: int, count: int) -> None:
        """From the log; a snapshot may be ahead of it."""
        flow = self.routers.setdefault(producer_id - ROUTED, Inflow(0, why=EARLIER))
        if cursor > flow.cursor:
            flow.cursor = cursor
            flow.total += count

    # ---- derived ----

    def plan(self, visible: int) -> None:
        """A checkpoint takes what is here now."""
        if self.derived is not None and not self.remaking:
            flow = self.routers[self.derived]
            self._planned = Mark(visible, flow.cursor, flow.total)

    def reached(self, stored: int, last_ts: int) -> None:
        """Segments have everything up to there."""
        self.last_ts = last_ts
        if self.derived is not None and self.mark.cursor < self._planned.cursor and self._planned.seq <= stored:
            self.mark = self._planned

    def resume(self, head: int, last_ts: int) -> None:
        """At a start, when segments and log were read: what is above is made again."""
        if self.derived is None:
            return
        flow = self.routers[self.derived]
        flow.cursor, self.skip = self.mark.cursor, max(0, head - self.mark.seq)
        flow.total, self.last_ts = self.mark.total + self.skip, last_ts

    # ---- the rest ----

    def passed(self, router_id: int, cursor: int) -> None:
        """Everything up to there was looked at."""
        flow = self.routers[router_id]
        flow.cursor = max(flow.cursor, cursor)

    def replay(self, kind: FrameType, body: dict[str, Any], ts: int) -> None:
        router_id = int(body["router"])
        if body.get("ended"):
            self.routers.pop(router_id, None)
            if self.derived == router_id:
                self.derived, self.remaking = None, False
            return
        flow = self.routers.setdefault(router_id, Inflow(0, why=EARLIER))
        flow.cursor = int(body["cursor"]) if body.get("back") else max(flow.cursor, int(body["cursor"]))
        flow.total = max(flow.total, int(body["total"]))
        if "mark" in body:
            flow.why, self.derived, self.remaking = "", router_id, True
            self.mark = max(self.mark, Mark(int(body["mark"]), int(body["cursor"]), int(body["total"])))
        if "logged" in body:
            flow.why = str(body["logged"])
            self.derived, self.remaking = None, False
        if "hole" in body:
            first, last = body["hole"]
            self.trimmed.add(int(first), int(last))

    def to_snapshot(self, visible: int) -> dict[str, Any]:
        rows = [
            [router_id, flow.cursor, flow.total, flow.why]
            for router_id, flow in self.routers.items()
            if flow.why is not None
        ]
        derived = None if self.derived is None else [self.derived, *self.mark]
        return {"routers": rows, "trimmed": [list(hole) for hole in self.trimmed], "derived": derived}

    def restore(self, body: dict[str, Any]) -> None:
        for router_id, cursor, total, *why in body["routers"]:
            self.routers[router_id] = Inflow(cursor, total, why[0] if why else EARLIER)
        self.trimmed = Ranges((first, last) for first, last in body["trimmed"])
        derived = body.get("derived")
        if derived is not None:
            self.derived, self.mark, self.remaking = derived[0], Mark(*derived[1:]), True
