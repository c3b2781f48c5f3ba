"""Routes whose links are driven by whoever calls `turn`: a producer's thread, or the caller of a pipeline."""

from __future__ import annotations

import contextlib

from topicd.client.blocking.caller import Caller
from topicd.client.blocking.dialing import Attempt, Start, at_once
from topicd.client.blocking.shardlink import ShardLink
from topicd.client.core.options import DIAL_S
from topicd.client.core.routes import TopicRoutes
from topicd.errors import TopicdError
from topicd.ipc.protocol.sender import Sender


class DrivenRoutes(TopicRoutes[ShardLink]):
    """At most `window` batches of a topic are under way. `start` says how links dial (see dialing)."""

    def __init__(self, caller: Caller, window: int, *, halt: bool = False, start: Start = at_once) -> None:
        super().__init__(caller, lambda shard: ShardLink(caller, shard, Sender(window), start), halt=halt)
        self._caller = caller
        self._start = start
        self._looking: Attempt[None] | None = None  # asking where the shards are

    def turn(self) -> None:
        for link in list(self._links.values()):
            link.turn()
        if self._looking is None and self.outdated:
            self._looking = self._start(lambda: self._caller.refresh(DIAL_S))
        if self._looking is not None and self._looking.done:
            attempt, self._looking = self._looking, None
            with contextlib.suppress(TopicdError):
                attempt.result()
            self.spread()

    def wake_at(self) -> float | None:
        times = [due for link in self._links.values() if (due := link.wake_at()) is not None]
        return min(times) if times else None

    def end(self, why: TopicdError) -> None:
        """What is not acknowledged fails."""
        self.close()
        for link in self.links:
            link.sender.fail_all(why)

    def forked(self) -> None:
        """In the child: nothing of the parent's is waited for or written to."""
        self._looking = None
        for link in self._links.values():
            link.forked()
