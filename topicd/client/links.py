"""Links to every shard that is written to, and the lines of topics spread over them. Used by one thread at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from topicd.client.appender import Appender
from topicd.client.backoff import Backoff
from topicd.client.context import Context
from topicd.client.dialing import Attempt, Start, at_once
from topicd.client.engine import Engine
from topicd.client.line import Line, OutBatch
from topicd.client.link import DIAL_S, Link
from topicd.errors import InvalidRequest, TopicdError
from topicd.model import check_topic_name

LINES_KEPT = 4_096


class AnyLink(Protocol):
    appender: Appender
    moved: bool

    def close(self) -> None: ...


L = TypeVar("L", bound=AnyLink)


class Spread(Generic[L]):
    """Which link carries which line; `make` makes the link to a shard."""

    def __init__(self, context: Context, make: Callable[[int], L], *, halt: bool = False) -> None:
        self._context = context
        self._make = make
        self._halt = halt
        self._paths = context.directory.map.paths
        self._lines: dict[str, Line] = {}
        self._links: dict[int, L] = {}
        self._where: dict[Line, L] = {}

    @property
    def links(self) -> list[L]:
        return list(self._links.values())

    def link_to(self, shard: int) -> L:
        link = self._links.get(shard)
        if link is None:
            link = self._links[shard] = self._make(shard)
        return link

    def line(self, topic: str) -> Line:
        found = self._lines.get(topic)
        if found is None:
            if self._context.closed:
                raise InvalidRequest("the client is closed")
            if len(self._lines) >= LINES_KEPT:
                self._forget_idle()
            found = Line(check_topic_name(topic), Backoff(self._context.tempo.random), halt=self._halt)
            self._place(found)
            self._lines[topic] = found
        return found

    def _forget_idle(self) -> None:
        """A line that is made again later has a new producer id, which costs nothing but the id."""
        for line in [line for line in self._lines.values() if line.idle]:
            self._where.pop(line).appender.detach(line)
            del self._lines[line.topic]

    def link_of(self, line: Line) -> L:
        return self._where[line]

    def submit(self, batch: OutBatch) -> L:
        link = self._where[batch.line]
        link.appender.submit(batch)
        return link

    def _place(self, line: Line) -> None:
        link = self.link_to(self._context.directory.shard_of(line.topic))
        link.appender.attach(line)
        self._where[line] = link

    @property
    def outdated(self) -> bool:
        """A link met other shards than expected, or somebody else has heard of them."""
        return self._paths != self._context.directory.map.paths or any(link.moved for link in self._links.values())

    def spread(self) -> None:
        """Topics have other shards now: everything unanswered goes on there, in order."""
        self._paths = self._context.directory.map.paths
        lines: list[Line] = []
        for link in self._links.values():
            link.close()
            lines.extend(link.appender.detach_all())
            link.moved = False
        for line in lines:
            self._place(line)

    def close(self) -> None:
        for link in self._links.values():
            link.close()


class Links(Spread[Link]):
    """Driven by whoever calls `turn`."""

    def __init__(self, engine: Engine, window: int, *, halt: bool = False, start: Start = at_once) -> None:
        super().__init__(engine, lambda shard: Link(engine, shard, Appender(window), start), halt=halt)
        self._engine = engine
        self._start = start
        self._looking: Attempt[None] | None = None  # asking where the shards are

    def turn(self) -> None:
        for link in list(self._links.values()):
            link.turn()
        if self._looking is None and self.outdated:
            self._looking = self._start(lambda: self._engine.refresh(DIAL_S))
        if self._looking is not None and self._looking.done:
            attempt, self._looking = self._looking, None
            with contextlib.suppress(TopicdError):
                attempt.result()
            self.spread()

    def forked(self) -> None:
        self._looking = None
        for link in self._links.values():
            link.forked()

    def wake_at(self) -> float | None:
        times = [due for link in self._links.values() if (due := link.wake_at()) is not None]
        return min(times) if times else None
