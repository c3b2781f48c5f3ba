"""Which connection carries which topic: an outbox per topic, a link per shard. Used by one thread at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from topicd.client.core.options import Shared
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.outbox import OutBatch, TopicOutbox
from topicd.ipc.protocol.retry import Backoff
from topicd.ipc.protocol.sender import Sender
from topicd.model import check_topic_name

OUTBOXES_KEPT = 4_096


class AnyShardLink(Protocol):
    sender: Sender
    moved: bool

    def close(self) -> None: ...


L = TypeVar("L", bound=AnyShardLink)


class TopicRoutes(Generic[L]):
    """`make` makes the link to a shard. `halt`: a batch that is refused for good takes along all behind it. `creates`:
    topics that do not exist."""

    def __init__(self, shared: Shared, make: Callable[[int], L], *, halt: bool = False, creates: bool = True) -> None:
        self._shared = shared
        self._make = make
        self._halt = halt
        self._creates = creates
        self._paths = shared.shard_map.paths
        self._outboxes: dict[str, TopicOutbox] = {}
        self._links: dict[int, L] = {}
        self._where: dict[TopicOutbox, L] = {}

    @property
    def links(self) -> list[L]:
        return list(self._links.values())

    def link_to(self, shard: int) -> L:
        link = self._links.get(shard)
        if link is None:
            link = self._links[shard] = self._make(shard)
        return link

    def outbox(self, topic: str) -> TopicOutbox:
        found = self._outboxes.get(topic)
        if found is None:
            if self._shared.closed:
                raise InvalidRequest("the client is closed")
            if len(self._outboxes) >= OUTBOXES_KEPT:
                self._forget_idle()
            backoff = Backoff(self._shared.tempo.random)
            found = TopicOutbox(check_topic_name(topic), backoff, halt=self._halt, creates=self._creates)
            self._place(found)
            self._outboxes[topic] = found
        return found

    def _forget_idle(self) -> None:
        """An outbox that is made again later has a new producer id, which costs nothing but the id."""
        for outbox in [outbox for outbox in self._outboxes.values() if outbox.idle]:
            self._where.pop(outbox).sender.detach(outbox)
            del self._outboxes[outbox.topic]

    def link_of(self, outbox: TopicOutbox) -> L:
        return self._where[outbox]

    def submit(self, batch: OutBatch) -> L:
        link = self._where[batch.outbox]
        link.sender.submit(batch)
        return link

    def _place(self, outbox: TopicOutbox) -> None:
        link = self.link_to(self._shared.shard_map.shard_of(outbox.topic))
        link.sender.attach(outbox)
        self._where[outbox] = link

    @property
    def outdated(self) -> bool:
        """A link met other shards than expected, or somebody else has heard of them."""
        return self._paths != self._shared.shard_map.paths or any(link.moved for link in self._links.values())

    def spread(self) -> None:
        """Topics have other shards now: everything unanswered goes on there, in order."""
        self._paths = self._shared.shard_map.paths
        outboxes: list[TopicOutbox] = []
        for link in self._links.values():
            link.close()
            outboxes.extend(link.sender.detach_all())
            link.moved = False
        for outbox in outboxes:
            self._place(outbox)

    def close(self) -> None:
        for link in self._links.values():
            link.close()
