"""What the routers of a shard work with: feeds, the way into a topic, time. And the list of those that run here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from topicd.errors import TopicdError
from topicd.frames import FrameType
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.reading.reading import Reader
from topicd.shards.delivery.relay import Relay
from topicd.shards.delivery.routing.definition import Definition
from topicd.shards.delivery.routing.feeds import Feed, LocalFeed, RemoteFeed
from topicd.shards.delivery.routing.forwarder import Forwarder
from topicd.shards.delivery.routing.pump import Pump
from topicd.shards.delivery.routing.tools import Decided
from topicd.shards.delivery.storing.backlog import Backlog
from topicd.shards.delivery.topic.catalog import Catalog
from topicd.shards.delivery.topic.flight import Replier
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.append import Appender
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.log import Log
from topicd.shards.storage.ranges import Ranges

_TOP = 10  # routers on the stats page
_ROOM = 1.5  # times checkpoint_bytes in memory: below the first step of the ladder, and far below what writers may use
_MARKED = 65_536  # source records between two marks in the log: so many are looked at again at a start


class Workshop:
    def __init__(
        self,
        place: Place,
        loop: asyncio.AbstractEventLoop,
        agenda: Agenda,
        counters: Counters,
        log: Log,
        catalog: Catalog,
        reader: Reader,
        appender: Appender,
        relay: Relay,
        backlog: Backlog,
    ) -> None:
        self._place = place
        self._loop = loop
        self._agenda = agenda
        self._counters = counters
        self._log = log
        self._catalog = catalog
        self._reader = reader
        self._appender = appender
        self._relay = relay
        self._backlog = backlog
        self.pump = Pump(loop, counters)
        self.forwarders: dict[int, Forwarder] = {}  # by router id
        # Set by those who know the other shards, and the graph.
        self.decider: Callable[[Decided], None] = lambda forwarder: None
        self.is_fed: Callable[[str], bool] = lambda source: False

    def now_ms(self) -> int:
        return self._place.clock.now_ms()

    def feed(self, one: Definition, on_news: Callable[[], None]) -> Feed:
        if self._relay.shard_of(one.source) == self._place.index:
            return LocalFeed(one, self._catalog, self._reader, on_news)
        return RemoteFeed(one, self._relay, self._loop, on_news)

    def fed(self, source: str) -> bool:
        return self.is_fed(source)

    def has_room(self) -> bool:
        return self._backlog.tail_bytes <= _ROOM * self._place.settings.checkpoint_bytes

    def later(self, pause: float, call: Callable[[], None]) -> None:
        self._loop.call_later(pause, call)

    def soon(self, records: int, call: Callable[[], None]) -> None:
        self.pump.forwarded += records
        self._counters.forwarded += records
        self._loop.call_soon(call)

    def decide(self, forwarder: Decided) -> None:
        self.decider(forwarder)

    def log_copies(self, dest: Topic, why: str, cursor: int, holes: int) -> list[int] | None:
        hole = self._log.log_copies(dest, why, cursor, holes)
        if hole is not None:
            self.made_hole(dest, hole[1])
        return hole

    # ---- into the destination ----

    def forward(
        self, replier: Replier, one: Definition, dest: Topic, cursor: int, frames: bytearray, records: int
    ) -> None:
        self._appender.forward(replier, dest, one.id, cursor, frames, records)
        if not dest.policy.logged:
            # Its records are in no log; how far the router has come is.
            total = dest.inflows.routers[one.id].total + records
            self.note(dest, {"router": one.id, "cursor": cursor, "total": total}, Need.PLACED)
        self._agenda.start_turn()

    def note(
        self,
        dest: Topic,
        body: dict[str, Any],
        need: Need,
        applied: Callable[[], None] | None = None,
        refused: Callable[[TopicdError], None] | None = None,
    ) -> None:
        self._log.change(
            dest,
            FrameType.ROUTED,
            body,
            seq=dest.seqs.head,
            need=need,
            applied=applied,
            refused=refused,
            numbered=True,
        )

    def made_hole(self, dest: Topic, last: int) -> None:
        dest.seqs.commit(last)
        dest.inflows.trimmed = Ranges(dest.inflows.trimmed.within(dest.floors.earliest, last))
        if not dest.contents.count:
            dest.floors.advance(last + 1)
        self._agenda.moved(dest)

    # ---- life ----

    def start(self, one: Definition, dest: Topic) -> None:
        running = self.forwarders.get(one.id)
        if running is not None:
            if running.one != one:
                running.change(one)
            return
        forwarder = self.forwarders[one.id] = Forwarder(self, one, dest)
        forwarder.open()

    def stop(self, router_id: int) -> None:
        forwarder = self.forwarders.pop(router_id, None)
        if forwarder is not None:
            forwarder.close()
            self.pump.forget(forwarder)
            if forwarder.dest.live:
                self.end(forwarder.dest, router_id)

    def end(self, dest: Topic, router_id: int) -> None:
        """The destination forgets a router that is gone."""
        if dest.inflows.derived == router_id:
            dest.inflows.remaking = False
            self._log.log_copies(dest, "its router is gone")
        if dest.inflows.routers.pop(router_id, None) is not None:
            self.note(dest, {"router": router_id, "ended": True}, Need.PLACED)

    def tick(self) -> None:
        """Now and then: what routers have looked at and not copied is not looked at again after a crash."""
        for forwarder in self.forwarders.values():
            flow, dest = forwarder.flow, forwarder.dest
            if forwarder.derived:
                self._mark(forwarder)
            elif flow.cursor > forwarder.noted and flow.why is not None and not flow.under_way and dest.live:
                body = {"router": forwarder.one.id, "cursor": flow.cursor, "total": flow.total}
                self.note(forwarder.dest, body, Need.PLACED)
                forwarder.noted = flow.cursor

    def _mark(self, forwarder: Forwarder) -> None:
        """Snapshots have the mark, too: the log needs it seldom."""
        dest, inflows = forwarder.dest, forwarder.dest.inflows
        if dest.seqs.stored == dest.seqs.visible:
            inflows.plan(dest.seqs.visible)
            inflows.reached(dest.seqs.stored, inflows.last_ts)
        mark = inflows.mark
        if mark.cursor - forwarder.noted >= _MARKED and dest.live:
            body = {"router": forwarder.one.id, "cursor": mark.cursor, "total": mark.total, "mark": mark.seq}
            self.note(dest, body, Need.PLACED)
            forwarder.noted = mark.cursor

    def page(self) -> dict[str, Any]:
        """For the stats page: of all, and of those that one should look at."""
        rows = sorted(
            ((one.waiting is not None, one.lag, one) for one in self.forwarders.values()),
            key=lambda row: row[:2],
            reverse=True,
        )
        return {
            "routers": len(rows),
            "routers_derived": sum(one.derived for _, _, one in rows),
            "routers_waiting": sum(waiting for waiting, _, _ in rows),
            "router_lag": sum(lag for _, lag, _ in rows),
            "top_routers": [
                [one.one.router[:64], one.flow.total, lag, (one.waiting or "")[:64]] for _, lag, one in rows[:_TOP]
            ],
        }

    def close(self) -> None:
        for forwarder in self.forwarders.values():
            forwarder.close()
