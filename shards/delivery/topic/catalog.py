"""The topics of one shard: by name and by id, how they come into being, change and go.

Promise: a change answers only after its control frame is stored as the topic's class demands; a change that could
not be stored leaves everything as it was, and one that comes while its topic is being born is made after that.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import islice
from typing import Any

from topicd.errors import Conflict, NotReady, Throttled, TopicdError, TopicNotFound, WrongShard
from topicd.frames import FrameType
from topicd.limits import LIST_PAGE_MAX
from topicd.model import TopicConfig, check_topic_name
from topicd.placement import delivery_shard, wal_shard
from topicd.shards.delivery.place import Place
from topicd.shards.delivery.topic.policy import Policy
from topicd.shards.delivery.topic.seqs import FIRST_BLOCK
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.log import Log
from topicd.words import counted

Done = Callable[[Topic | None, TopicdError | None], None]
Told = Callable[[Topic], None]
_IDS_LOW = 256


class TopicIds:
    """Ids that the supervisor has given to this shard, in blocks."""

    def __init__(self, ask_for_more: Callable[[], None]) -> None:
        self._ask_for_more = ask_for_more
        self._blocks: list[tuple[int, int]] = []
        self._asked = False
        self._last = 0

    def add(self, start: int, end: int) -> None:
        self._asked = False
        if start < end:
            self._blocks.append((start, end))

    def take(self) -> int:
        left = sum(end - start for start, end in self._blocks)
        if left <= _IDS_LOW and not self._asked:
            self._asked = True
            self._ask_for_more()
        if not self._blocks:
            raise Throttled("no topic id is at hand; more are on their way", limit="topic_ids", retry_after_ms=50)
        start, end = self._blocks[0]
        if start + 1 < end:
            self._blocks[0] = (start + 1, end)
        else:
            self._blocks.pop(0)
        self._last = start
        return start

    @property
    def next(self) -> int:
        return self._blocks[0][0] if self._blocks else self._last + 1


class Catalog:
    def __init__(self, place: Place, log: Log, ids: TopicIds) -> None:
        self._place = place
        self._log = log
        self.ids = ids
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self._names: list[str] = []  # of by_name and some that are gone; sorted unless there are new ones
        self._names_new = False
        self._names_gone = 0
        self._creating: dict[str, list[Done]] = {}
        self._unborn: set[int] = set()
        # Those who have to know, in the order in which they are told.
        self.on_born: list[Told] = []
        self.before_change: list[Told] = []  # its configuration is about to change
        self.on_changed: list[Told] = []
        self.on_gone: list[Told] = []

    @property
    def settled_below(self) -> int:
        """A topic of this shard's names with an id below this is in by_id, or it is gone."""
        return min(self._unborn, default=self.ids.next)

    # ---- look-up ----

    def get(self, name: str) -> Topic:
        topic = self.by_name.get(name)
        if topic is None or not topic.live:
            self.check_owned(name)
            if topic is not None and topic.leaving:
                raise NotReady(f"topic {name!r} is being deleted", topic=name, retry_after_ms=20)
            raise TopicNotFound(f"no topic named {name!r}", topic=name)
        return topic

    def find(self, name: str) -> Topic | None:
        """For those who would create it: None if it is not there, a refusal while it is on its way out."""
        topic = self.by_name.get(name)
        if topic is not None and not topic.live:
            raise NotReady(f"topic {name!r} is being deleted", topic=name, retry_after_ms=20)
        return topic

    def check_owned(self, name: str) -> None:
        owner = delivery_shard(check_topic_name(name), self._place.delivery_shards)
        if owner != self._place.index:
            raise WrongShard(f"topic {name!r} belongs to shard {owner}, this is {self._place.index}", shard=owner)

    def page(
        self, prefix: str, after: str, limit: int, allows: Callable[[str], bool]
    ) -> tuple[list[Topic], str | None]:
        """In the order of their names, which is kept from one page to the next."""
        names = self._sorted()
        at = max(bisect_left(names, prefix), bisect_right(names, after) if after else 0)
        found: list[Topic] = []
        for name in islice(names, at, None):
            if not name.startswith(prefix):
                break
            topic = self.by_name.get(name)
            if topic is None or (found and found[-1] is topic) or not allows(name):
                continue
            if len(found) == min(limit, LIST_PAGE_MAX):
                return found, found[-1].name
            found.append(topic)
        return found, None

    def _sorted(self) -> list[str]:
        """Every name that is there, and perhaps some that are gone or come twice."""
        if self._names_new:
            self._names.sort()  # most of them are in order
            self._names_new = False
        return self._names

    # ---- birth ----

    def is_being_created(self, name: str) -> bool:
        return name in self._creating

    def create(self, name: str, config: TopicConfig, done: Done) -> None:
        """Those who create one name at the same time share the outcome."""
        self.check_owned(name)
        if name in self._creating:
            self._creating[name].append(done)
            return
        self._check_room()
        topic_id = self.ids.take()
        now = self._place.clock.now_ms()
        topic = Topic(topic_id, name, config, wal_shard(topic_id, self._place.wal_shards), now)
        outlet = self._log.outlet_of(topic)
        if outlet.read_only_errno:
            raise outlet.refusal()
        self._creating[name] = [done]
        self._unborn.add(topic_id)

        def born() -> None:
            self._unborn.discard(topic_id)
            self.add(topic)
            _tell(self.on_born, topic)
            waiting = self._creating.pop(name)
            self.tell_count()
            for tell in waiting:
                tell(topic, None)

        def stillborn(error: TopicdError) -> None:
            self._unborn.discard(topic_id)
            waiting = self._creating.pop(name)
            self.tell_count()
            for tell in waiting:
                tell(None, error)

        body: dict[str, Any] = {"name": name, "config": config.to_fields(), "created_ms": now}
        if topic.policy.reserves_at_birth:
            body["reserved"] = FIRST_BLOCK
            topic.seqs.reserve(FIRST_BLOCK)
        need = topic.policy.birth_need
        self._log.change(topic, FrameType.TOPIC_CREATE, body, seq=0, need=need, applied=born, refused=stillborn)

    def _check_room(self) -> None:
        limit = self._place.settings.max_topics
        if limit and not self._place.tally.take_topic(len(self.by_name) + len(self._creating), limit):
            raise Throttled(
                f"no more than {counted(limit, 'topic')} may be created (max_topics)",
                limit="max_topics",
                max=limit,
                retry_after_ms=1_000,
            )

    def tell_count(self) -> None:
        """To the other shards, with which a limit is shared."""
        self._place.tally.tell_topics(len(self.by_name) + len(self._creating))

    def add(self, topic: Topic) -> None:
        if topic.name not in self.by_name:
            self._names.append(topic.name)
            self._names_new = True
        self.by_name[topic.name] = topic
        self.by_id[topic.id] = topic

    # ---- change ----

    def configure_unborn(self, name: str, fields: Any, done: Done, *, replace: bool = False) -> bool:
        """A change of a topic that somebody else is creating: made as soon as there is one. False: nobody is."""
        waiting = self._creating.get(name)
        if waiting is None:
            return False
        TopicConfig.from_fields(fields)  # what no topic could be is refused at once

        def born(topic: Topic | None, error: TopicdError | None) -> None:
            if topic is None:
                done(None, error)
                return
            try:
                self.configure(topic, fields, done, replace=replace)
            except TopicdError as exc:
                done(None, exc)

        waiting.append(born)
        return True

    def configure(self, topic: Topic, fields: Any, done: Done, *, replace: bool = False) -> None:
        """A change builds on the one before it, stored or still under way; a replacement does not."""
        before = topic.next_config or topic.config
        config = before.replaced(fields) if replace else before.updated(fields)
        if config == topic.config and topic.next_config is None:
            done(topic, None)
            return
        policies = [Policy(one, internal=topic.policy.internal) for one in (topic.config, before, config)]
        if policies[1].logged != policies[2].logged and topic.seqs.head:
            raise Conflict("durability of a topic that has records cannot change to or from ephemeral")
        topic.next_config = config

        def settle() -> None:
            if topic.next_config is config:
                topic.next_config = None

        def changed() -> None:
            settle()
            _tell(self.before_change, topic)
            topic.set_config(config)
            _tell(self.on_changed, topic)
            done(topic, None)

        def unchanged(error: TopicdError) -> None:
            settle()
            done(None, error)

        self._log.change(
            topic,
            FrameType.CONFIG_UPDATE,
            {"config": config.to_fields()},
            seq=topic.seqs.head,
            # The strictest class of all involved, so that changes become true in the order they were asked for.
            need=max(policy.change_need for policy in policies),
            applied=changed,
            refused=unchanged,
            numbered=True,
        )

    # ---- end ----

    def check_deletable(self, topic: Topic, *, if_empty: bool) -> None:
        count = topic.contents.count
        if if_empty and (count or topic.flight.count):
            raise Conflict(f"topic {topic.name!r} holds {counted(count, 'record')}", count=count)

    def delete(self, topic: Topic, *, if_empty: bool, done: Done) -> None:
        self.check_deletable(topic, if_empty=if_empty)
        topic.live = False

        def gone() -> None:
            self.forget(topic)
            self.tell_count()
            _tell(self.on_gone, topic)
            done(topic, None)

        def kept(error: TopicdError) -> None:
            topic.live = True
            done(None, error)

        # Not before the writes under way: what is told after the end would bring the topic's files back.
        need = max(topic.need_for(topic.seqs.head), Need.WRITTEN)
        head = topic.seqs.head
        self._log.change(topic, FrameType.TOPIC_DELETE, {}, seq=head, need=need, applied=gone, refused=kept)

    def forget(self, topic: Topic) -> None:
        topic.live = False
        self.by_id.pop(topic.id, None)
        if self.by_name.get(topic.name) is topic:
            del self.by_name[topic.name]
            self._names_gone += 1
            if self._names_gone > len(self.by_name):
                self._names, self._names_new, self._names_gone = list(self.by_name), True, 0


def _tell(listeners: list[Told], topic: Topic) -> None:
    for listener in listeners:
        listener(topic)
