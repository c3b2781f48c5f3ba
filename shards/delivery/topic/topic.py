"""One topic as its owner sees it: its name and configuration, and the pieces that hold the rest. Each piece keeps its
own invariant and has the few moves that may change it; what to do when is decided by the modules that use them. The
shard's thread only.
"""

from __future__ import annotations

from typing import ClassVar

from topicd.channel import is_channel_log
from topicd.errors import Forbidden, TopicNotFound
from topicd.limits import CHATS, ROUTERS
from topicd.model import TopicConfig, is_internal
from topicd.shards.delivery.queues.jobs import Jobs
from topicd.shards.delivery.topic.changes import Changes
from topicd.shards.delivery.topic.commits import CommitTable
from topicd.shards.delivery.topic.compacted import Compacted
from topicd.shards.delivery.topic.consumers import ConsumerTable
from topicd.shards.delivery.topic.contents import Contents
from topicd.shards.delivery.topic.flight import Flight
from topicd.shards.delivery.topic.floors import Floors
from topicd.shards.delivery.topic.follower import Follower
from topicd.shards.delivery.topic.inflows import Inflows
from topicd.shards.delivery.topic.part import TopicPart
from topicd.shards.delivery.topic.policy import Policy
from topicd.shards.delivery.topic.producers import ProducerTable
from topicd.shards.delivery.topic.seqs import Seqs
from topicd.shards.delivery.writing.durability import Need


class Topic:
    PARTS: ClassVar[tuple[str, ...]] = (
        "producers",
        "consumers",
        "commits",
        "inflows",
        "compacted",
        "queue",
    )  # attributes that are a TopicPart, or None

    def __init__(self, topic_id: int, name: str, config: TopicConfig, outlet: int, created_ms: int) -> None:
        self.id = topic_id
        self.name = name
        self.outlet = outlet  # the WAL shard whose ring its records go to
        self.created_ms = created_ms
        self.live = True  # not on its way out
        self.leaving = False  # on its way out, with its routers: it is there until all of them are not
        self.next_config: TopicConfig | None = None  # the newest change under way
        self.seqs = Seqs()
        self.floors = Floors()
        self.contents = Contents()
        self.flight = Flight()
        self.changes = Changes()
        self.producers = ProducerTable()
        self.consumers = ConsumerTable()
        self.commits = CommitTable()
        self.inflows = Inflows()
        self.compacted: Compacted | None = Compacted() if config.compact != "none" else None
        self.queue: Jobs | None = Jobs(config) if config.type == "queue" else None
        self.followers: set[Follower] = set()
        self.last_write_ms = 0
        self.last_read_ms = 0
        self.in_ready = False  # it moved, and its followers have not been told
        self.waiting_since = -1.0  # monotonic: they were not told in the same turn; below 0: nobody waits
        self.config = config
        channel = is_channel_log(name)
        # The log of a channel is read like any topic: its segments are sealed, so that what is evicted can go.
        own = name == ROUTERS or channel or name.startswith(CHATS)
        self.policy = Policy(config, internal=is_internal(name) and not channel, own=own)

    def set_config(self, config: TopicConfig) -> None:
        before, self.config = self.policy, config
        self.policy = Policy(config, internal=before.internal, own=before.own)
        if self.queue is not None:
            self.queue.configure(config)
        if (config.compact != "none") != (self.compacted is not None):
            self.compacted = Compacted() if self.compacted is None else None
        if before.logged and not self.policy.logged:
            self.seqs.forget_marks()  # nothing was given out yet, or it could not change

    def check_own(self, keeps: str) -> None:
        """Raises if nobody but topicd may change it, and who asks does not keep it (see Connection.keeps)."""
        if self.policy.own and not (keeps and self.name.startswith(keeps)):
            raise Forbidden(f"only topicd itself writes {self.name}", topic=self.name)

    def parts(self) -> list[TopicPart]:
        found = [getattr(self, name) for name in self.PARTS]
        return [part for part in found if part is not None]

    def need_for(self, last_seq: int) -> Need:
        """The class of the next write. It never overtakes a stricter one under way, nor the mark of reserved seqs."""
        policy = self.policy
        if self.flight.synced or (policy.waits_for_marks and last_seq > self.seqs.reserved):
            return Need.SYNCED
        return policy.need

    def gone(self) -> TopicNotFound:
        """What is answered to those who wait for it."""
        return TopicNotFound(f"topic {self.name!r} was deleted", topic=self.name, topic_id=self.id)
