"""The topics of one shard: by name and by id, how they come into being, change and go.

Promise: a change answers only after its control frame is stored as the topic's class demands; a change that could
not be stored leaves everything as it was.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from topicd.errors import Conflict, NotReady, Throttled, TopicdError, TopicNotFound, WrongShard
from topicd.frames import FrameType, control_frame
from topicd.limits import LIST_PAGE_MAX
from topicd.model import Durability, TopicConfig, check_topic_name
from topicd.placement import delivery_shard, wal_shard
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.outlet import NEED_OF, ControlEntry, Need
from topicd.shards.delivery.writing.reservation import FIRST_BLOCK

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor

log = logging.getLogger(__name__)

Done = Callable[[Topic | None, TopicdError | None], None]
_IDS_LOW = 256


class Topics:
    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self._creating: dict[str, list[Done]] = {}
        self._unborn: set[int] = set()
        self._last_id = 0
        self._ids: list[tuple[int, int]] = []
        self._asked = False

    # ---- ids ----

    def add_ids(self, start: int, end: int) -> None:
        self._asked = False
        if start < end:
            self._ids.append((start, end))

    def _next_id(self) -> int:
        left = sum(end - start for start, end in self._ids)
        if left <= _IDS_LOW and not self._asked:
            self._asked = True
            self._actor.ask_for_ids()
        if not self._ids:
            raise Throttled("no topic id is at hand; more are on their way", limit="topic_ids", retry_after_ms=50)
        start, end = self._ids[0]
        if start + 1 < end:
            self._ids[0] = (start + 1, end)
        else:
            self._ids.pop(0)
        self._last_id = start
        return start

    @property
    def settled_below(self) -> int:
        """A topic of this shard's names with an id below this is in by_id, or it is gone."""
        following = self._ids[0][0] if self._ids else self._last_id + 1
        return min(self._unborn, default=following)

    # ---- look-up ----

    def get(self, name: str) -> Topic:
        topic = self.by_name.get(name)
        if topic is None or not topic.live:
            self.check_owned(name)
            raise TopicNotFound(f"no topic named {name!r}", topic=name)
        return topic

    def find(self, name: str) -> Topic | None:
        """For those who would make it: None if it is not there, a refusal while it is on its way out."""
        topic = self.by_name.get(name)
        if topic is not None and not topic.live:
            raise NotReady(f"topic {name!r} is being deleted", topic=name, retry_after_ms=20)
        return topic

    def check_owned(self, name: str) -> None:
        owner = delivery_shard(check_topic_name(name), self._actor.delivery_shards)
        if owner != self._actor.index:
            raise WrongShard(f"topic {name!r} belongs to shard {owner}, this is {self._actor.index}", shard=owner)

    def page(
        self, prefix: str, after: str, limit: int, allows: Callable[[str], bool]
    ) -> tuple[list[Topic], str | None]:
        names = sorted(name for name in self.by_name if name.startswith(prefix) and allows(name))
        start = bisect_right(names, after) if after else 0
        page = names[start : start + min(limit, LIST_PAGE_MAX)]
        more = start + len(page) < len(names)
        return [self.by_name[name] for name in page], page[-1] if more and page else None

    # ---- changes ----

    def create(self, name: str, config: TopicConfig, done: Done) -> None:
        """Make the topic; concurrent makers of one name share the outcome."""
        self.check_owned(name)
        if name in self._creating:
            self._creating[name].append(done)
            return
        actor = self._actor
        limit = actor.share_of(actor.settings.max_topics)
        if limit is not None and len(self.by_name) + len(self._creating) >= limit:
            raise Throttled(
                f"this shard holds {len(self.by_name)} topics, its share of max_topics is {limit}",
                limit="max_topics",
                retry_after_ms=1_000,
            )
        topic_id = self._next_id()
        outlet = actor.outlets[wal_shard(topic_id, actor.wal_shards)]
        if outlet.read_only_errno:
            raise outlet.refusal()
        now = actor.clock.now_ms()
        topic = Topic(topic_id, name, config, outlet.index, now)
        self._creating[name] = [done]
        self._unborn.add(topic_id)

        def born() -> None:
            self._unborn.discard(topic_id)
            self.add(topic)
            actor.note_new_topic(topic)
            for tell in self._creating.pop(name):
                tell(topic, None)

        def stillborn(error: TopicdError) -> None:
            self._unborn.discard(topic_id)
            for tell in self._creating.pop(name):
                tell(None, error)

        body: dict[str, Any] = {"name": name, "config": config.to_fields(), "created_ms": now}
        # The first block of seqs is reserved with the birth, so the birth is synced.
        need = Need.WRITTEN
        if config.durability in (Durability.DISK, Durability.FSYNC):
            need = Need.SYNCED
            topic.reserved = topic.reserving = body["reserved"] = FIRST_BLOCK
        self._log_change(topic, FrameType.TOPIC_CREATE, body, ControlEntry(need, born, stillborn))

    def add(self, topic: Topic) -> None:
        self.by_name[topic.name] = topic
        self.by_id[topic.id] = topic

    def configure(self, topic: Topic, fields: Any, done: Done) -> None:
        """A change builds on the one before it, stored or still under way."""
        before = topic.next_config or topic.config
        config = before.updated(fields)
        if config == topic.config and topic.next_config is None:
            done(topic, None)
            return
        ephemeral = config.durability == Durability.EPHEMERAL
        if ephemeral != (before.durability == Durability.EPHEMERAL) and topic.head:
            raise Conflict("durability of a topic that has records cannot change to or from ephemeral")
        topic.next_config = config
        number = topic.begin_change()

        def settled() -> None:
            topic.end_change(number)
            if topic.next_config is config:
                topic.next_config = None

        def changed() -> None:
            settled()
            # What the old TTL has taken does not come back with a longer one.
            self._actor.retention.expire(topic)
            topic.set_config(config)
            self._actor.cursors.free_acked(topic)
            self._actor.note_config(topic)
            done(topic, None)

        def unchanged(error: TopicdError) -> None:
            settled()
            done(None, error)

        body = {"config": config.to_fields(), "no": number}
        # The strictest class of all involved, so that changes become true in the order they were asked for.
        need = max(Need.WRITTEN, *(NEED_OF[Durability(c.durability)] for c in (topic.config, before, config)))
        self._log_change(topic, FrameType.CONFIG_UPDATE, body, ControlEntry(need, changed, unchanged))

    def delete(self, topic: Topic, *, if_empty: bool, done: Done) -> None:
        self._actor.retention.expire(topic)
        if if_empty and (topic.count or topic.pending_count):
            raise Conflict(f"topic {topic.name!r} holds {topic.count} records", count=topic.count)
        topic.live = False

        def gone() -> None:
            self.forget(topic)
            self._actor.note_deleted(topic)
            done(topic, None)

        def kept(error: TopicdError) -> None:
            topic.live = True
            done(None, error)

        # Not before the writes under way: what is told after the end would bring the topic's files back.
        need = max(topic.need_for(topic.head), Need.WRITTEN)
        self._log_change(topic, FrameType.TOPIC_DELETE, {}, ControlEntry(need, gone, kept))

    def forget(self, topic: Topic) -> None:
        topic.live = False
        self.by_id.pop(topic.id, None)
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]

    def _log_change(self, topic: Topic, kind: FrameType, body: dict[str, Any], entry: ControlEntry) -> None:
        frame = control_frame(kind, topic.id, topic.head, self._actor.clock.now_ms(), body)
        self._actor.submit_control(topic, frame, entry)
