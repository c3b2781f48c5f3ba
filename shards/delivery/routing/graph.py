"""All routers, as one graph. Promise: what is in it was judged as a whole; a router that contradicts the others is
refused with the reason, and with the way if it closes a circle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from topicd.errors import Incompatible, RouterCycle, RouterNotFound, Throttled
from topicd.shards.delivery.routing.definition import Definition


class Graph:
    def __init__(self) -> None:
        self.by_name: dict[str, Definition] = {}
        self.by_id: dict[int, Definition] = {}
        self._from: dict[str, set[str]] = {}  # topic: routers
        self._to: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self.by_name)

    def get(self, router: str) -> Definition:
        found = self.by_name.get(router)
        if found is None:
            raise RouterNotFound(f"no router named {router!r}", router=router)
        return found

    def leaving(self, topic: str) -> list[Definition]:
        return [self.by_name[name] for name in sorted(self._from.get(topic, ()))]

    def reaching(self, topic: str) -> list[Definition]:
        return [self.by_name[name] for name in sorted(self._to.get(topic, ()))]

    def touching(self, topic: str) -> list[str]:
        return sorted(self._from.get(topic, set()) | self._to.get(topic, set()))

    def page(
        self, prefix: str, source: str | None, dest: str | None, after: str, limit: int
    ) -> tuple[list[Definition], str | None]:
        """By name; and behind which name to go on."""
        found: list[Definition] = []
        for name in sorted(self._candidates(source, dest)):
            one = self.by_name[name]
            if not name.startswith(prefix) or name <= after or source not in (None, one.source):
                continue
            if len(found) == limit:
                return found, found[-1].router
            found.append(one)
        return found, None

    def _candidates(self, source: str | None, dest: str | None) -> set[str]:
        if dest is not None:
            return self._to.get(dest, set())
        return set(self.by_name) if source is None else self._from.get(source, set())

    # ---- change ----

    def put(self, one: Definition) -> None:
        self.remove(one.router)
        self.by_name[one.router] = self.by_id[one.id] = one
        self._from.setdefault(one.source, set()).add(one.router)
        self._to.setdefault(one.dest, set()).add(one.router)

    def remove(self, router: str) -> Definition | None:
        one = self.by_name.pop(router, None)
        if one is None:
            return None
        self.by_id.pop(one.id, None)
        for ends, topic in ((self._from, one.source), (self._to, one.dest)):
            ends[topic].discard(router)
            if not ends[topic]:
                del ends[topic]
        return one

    # ---- judgement ----

    def judge(self, wanted: Definition, most: int) -> None:
        """Raises what keeps it from being created, or changed."""
        for other in self.reaching(wanted.dest):
            if other.router != wanted.router and other.source != wanted.source:
                raise Incompatible(
                    f"router {other.router!r} feeds {wanted.dest!r} from {other.source!r}: a topic has one source",
                    topic=wanted.dest,
                    reason="router_dest_fan_in",
                    router=other.router,
                )
        known = self.by_name.get(wanted.router)
        if known is not None and (known.source, known.dest) != (wanted.source, wanted.dest):
            raise Incompatible(
                f"router {known.router!r} leads from {known.source!r} to {known.dest!r}: delete it to lead elsewhere",
                router=known.router,
                reason="router_repoint_forbidden",
                existing_source=known.source,
                existing_dest=known.dest,
            )
        if known is None and most and len(self.by_name) >= most:
            raise Throttled(
                f"there are {len(self.by_name)} routers, and no more than {most} may be created (max_routers)",
                limit="max_routers",
                max=most,
                retry_after_ms=1_000,
            )
        if not wanted.allow_cycle and (way := self._way(wanted.dest, wanted.source, wanted.router)) is not None:
            cycle = [wanted.source, *way]
            raise RouterCycle(f"records would come back: {' -> '.join(cycle)}", cycle=cycle)

    def in_circle(self, one: Definition) -> bool:
        """Do records that it copies come back to where they were?"""
        return self._way(one.dest, one.source, one.router) is not None

    def _way(self, start: str, end: str, without: str) -> list[str] | None:
        """The topics of the shortest way; None: there is none."""
        before: dict[str, str | None] = {start: None}
        waiting = deque([start])
        while waiting:
            topic = waiting.popleft()
            if topic == end:
                return list(reversed(list(_back(before, topic))))
            for one in self.leaving(topic):
                if one.router != without and one.dest not in before:
                    before[one.dest] = topic
                    waiting.append(one.dest)
        return None


def _back(before: dict[str, str | None], topic: str) -> Iterator[str]:
    at: str | None = topic
    while at is not None:
        yield at
        at = before[at]
