"""Which routers feed a topic, and how far each of them has come. Promise: a copy and the word that its source record is
copied are stored together, so whatever happens a source record is copied once.

A router's batches carry the seq of the last source record that they cover, as the number of their producer; what was
looked at and not copied is told by frames of its own, now and then. Seqs that stand for source records which were gone
before their turn are holes: nobody wrote them, and readers are told.
"""

from __future__ import annotations

from typing import Any, ClassVar

from topicd.frames import FrameType
from topicd.limits import ROUTED, SCATTERED
from topicd.shards.delivery.topic.part import TopicPart
from topicd.shards.storage.ranges import Ranges


def is_routed(producer_id: int) -> bool:
    return ROUTED <= producer_id < SCATTERED


class Inflow:
    """One router, by its id."""

    __slots__ = ("cursor", "total", "under_way")

    def __init__(self, cursor: int, total: int = 0) -> None:
        self.cursor = cursor  # source seq up to which everything is stored here, or not wanted
        self.total = total  # copies made, and holes
        self.under_way: list[tuple[int, int]] = []  # (cursor behind it, copies) of batches that are on their way


class Inflows(TopicPart):
    KEY: ClassVar[str] = "inflows"
    FRAMES: ClassVar[frozenset[FrameType]] = frozenset({FrameType.ROUTED})

    def __init__(self) -> None:
        self.routers: dict[int, Inflow] = {}
        self.trimmed = Ranges()  # holes, as far as they can still be read over

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
        flow = self.routers.setdefault(producer_id - ROUTED, Inflow(0))
        if cursor > flow.cursor:
            flow.cursor = cursor
            flow.total += count

    # ---- the rest ----

    def passed(self, router_id: int, cursor: int) -> None:
        """Everything up to there was looked at."""
        flow = self.routers[router_id]
        flow.cursor = max(flow.cursor, cursor)

    def replay(self, kind: FrameType, body: dict[str, Any], ts: int) -> None:
        router_id = int(body["router"])
        if body.get("ended"):
            self.routers.pop(router_id, None)
            return
        flow = self.routers.setdefault(router_id, Inflow(0))
        flow.cursor = int(body["cursor"]) if body.get("back") else max(flow.cursor, int(body["cursor"]))
        flow.total = max(flow.total, int(body["total"]))
        if "hole" in body:
            first, last = body["hole"]
            self.trimmed.add(int(first), int(last))

    def to_snapshot(self, visible: int) -> dict[str, Any]:
        rows = [[router_id, flow.cursor, flow.total] for router_id, flow in self.routers.items()]
        return {"routers": rows, "trimmed": [list(hole) for hole in self.trimmed]}

    def restore(self, body: dict[str, Any]) -> None:
        for router_id, cursor, total in body["routers"]:
            self.routers[router_id] = Inflow(cursor, total)
        self.trimmed = Ranges((first, last) for first, last in body["trimmed"])
