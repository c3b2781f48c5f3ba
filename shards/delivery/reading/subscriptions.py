"""Records pushed as they come. Promise: a subscriber gets every record once and in order, or a tombstone; one that does
not read costs a cursor, never memory, and nobody else notices. Topics of one subscription take turns: a long catch-up
of one does not keep the others waiting.
"""

from __future__ import annotations

from collections.abc import Callable

from topicd.errors import TopicdError
from topicd.ipc.pressure import Board
from topicd.limits import FETCH_RECORDS_MAX, KIB
from topicd.model import Tombstone
from topicd.shards.delivery.agenda import Agenda
from topicd.shards.delivery.counters import Counters
from topicd.shards.delivery.reading.elsewhere import NotNow, StillComing
from topicd.shards.delivery.reading.filters import NO_FILTER, ReadFilter
from topicd.shards.delivery.reading.reading import ReadAnswer, Reader
from topicd.shards.delivery.sessions.outbox import Outbox
from topicd.shards.delivery.topic.follower import Follower
from topicd.shards.delivery.topic.topic import Topic
from topicd.tokens import Rights

PUSH_BYTES = 256 * KIB
_PUSHES_PER_TURN = 8
_PUSHES_IN_A_ROW = 2  # of one topic, while others of the subscription are behind, too
_UNKNOWN = -1.0  # since when it lags
_TOLD = -2.0
LAGGED_S = 5.0  # behind for so long: the subscriber is told


class Pushing:
    """What every subscription of the shard uses."""

    def __init__(
        self,
        reader: Reader,
        agenda: Agenda,
        counters: Counters,
        board: Board,
        call_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self.reader = reader
        self.agenda = agenda
        self.counters = counters
        self.board = board
        self.call_soon = call_soon
        self.lagging: dict[TopicFeed, float] = {}  # without room for what came, since when

    def tell_lagging(self, now: float) -> None:
        """Once a second."""
        for feed, since in list(self.lagging.items()):
            if since == _UNKNOWN:
                self.lagging[feed] = now
            elif since >= 0 and now - since >= LAGGED_S:
                self.lagging[feed] = _TOLD
                feed.tell_lag()

    def is_paused(self, topic: Topic) -> bool:
        """Is it not pushed for now? Then it is when the pressure is gone."""
        if not (topic.policy.yields and self.board.pausing):
            return False
        self.agenda.ready.park(topic)
        return True


class Subscription:
    """Some topics, one credit. Its id is the request id of the SUBSCRIBE."""

    def __init__(
        self,
        pushing: Pushing,
        outbox: Outbox,
        rights: Rights,
        sub_id: int,
        credit: int,
        chosen: ReadFilter,
        pattern: str,
        *,
        progress: bool = False,
    ) -> None:
        self.pushing = pushing
        self.outbox = outbox
        self.rights = rights
        self.id = sub_id
        self.credit = credit
        self.filter = chosen
        self.pattern = pattern
        self.progress = progress  # it wants to know how far it was looked, too
        self.awaited: set[str] = set()  # topics that were named and do not exist yet
        self.on_close: Callable[[], None] | None = None
        self.feeds: dict[int, TopicFeed] = {}
        self._scheduled = False

    @property
    def blocked(self) -> bool:
        return self.credit <= 0 or self.outbox.write_blocked

    def follow(self, topic: Topic, from_seq: int, tombstone: Tombstone | None = None) -> None:
        feed = TopicFeed(self, topic, from_seq, tombstone)
        self.feeds[topic.id] = feed
        topic.followers.add(feed)
        if tombstone is not None or from_seq < topic.seqs.visible:
            self.schedule()

    def grant(self, credit: int) -> None:
        self.credit += credit
        self.resume()

    def resume(self) -> None:
        if not self.blocked and any(feed.behind and not feed.paused for feed in self.feeds.values()):
            self.schedule()

    def schedule(self) -> None:
        """Go on in the next turn of the loop, so that a long catch-up does not keep others waiting."""
        if not self._scheduled:
            self._scheduled = True
            self.pushing.call_soon(self._run)

    def unfollow(self) -> None:
        for feed in self.feeds.values():
            feed.leave()
        self.feeds.clear()

    def close(self) -> None:
        self.unfollow()
        self.awaited.clear()
        if self.on_close is not None:
            self.on_close()

    def _run(self) -> None:
        self._scheduled = False
        budget = _PUSHES_PER_TURN
        while budget > 0:
            pushed = self._round(budget)
            if not pushed:
                break
            budget -= pushed
        self.outbox.flush()
        self.resume()

    def _round(self, budget: int) -> int:
        """Each topic has its turn, and who had one goes behind the others; the number of pushes."""
        pushed, feeds = 0, self.feeds
        for topic_id, feed in list(feeds.items()):
            if pushed >= budget or self.blocked:
                break
            if feed.paused:
                continue
            pushes = feed.pump(min(budget - pushed, _PUSHES_IN_A_ROW))
            pushed += pushes
            if pushes and len(feeds) > 1 and feeds.pop(topic_id, None) is not None:
                feeds[topic_id] = feed
        return pushed


class TopicFeed(Follower):
    """One topic of a subscription: a cursor."""

    def __init__(self, subscription: Subscription, topic: Topic, from_seq: int, tombstone: Tombstone | None) -> None:
        self.subscription = subscription
        self.topic = topic
        self.cursor = from_seq
        self._tombstone = tombstone
        self._lagged = False
        self._waiting = False  # for records from a slow place

    @property
    def paused(self) -> bool:
        if self._waiting:
            return True
        return self.topic.policy.yields and not self.asked and self.subscription.pushing.is_paused(self.topic)

    @property
    def shares(self) -> bool:
        """Is there nothing to it but its cursor and its filter, and room at once? Then it gets what others get."""
        sub = self.subscription
        if self._waiting or self._lagged or self._tombstone is not None or sub.progress or sub.credit <= 0:
            return False
        return sub.outbox.free_socket >= 0

    @property
    def asked(self) -> bool:
        return self.subscription.progress  # a router of another shard

    @property
    def behind(self) -> bool:
        end = self.topic.seqs.visible
        if self.subscription.filter.committed:
            end = self.topic.commits.settled(end)
        return self.cursor < end or self._tombstone is not None

    def moved(self) -> None:
        sub = self.subscription
        if sub.blocked:
            self._note_lag(sub)
            return
        if self.pump(_PUSHES_PER_TURN) >= _PUSHES_PER_TURN:
            sub.schedule()
        sub.pushing.agenda.flush_first(sub.outbox)

    def leave(self) -> None:
        self.topic.followers.discard(self)
        self.subscription.pushing.lagging.pop(self, None)

    def gone(self) -> None:
        sub, topic = self.subscription, self.topic
        sub.pushing.lagging.pop(self, None)
        sub.feeds.pop(topic.id, None)
        sub.outbox.notice(sub.id, {"event": "topic_deleted", "topic": topic.name, "topic_id": topic.id})

    def pump(self, budget: int) -> int:
        """Push what is there, as far as credit, outbox and budget reach; the number of pushes."""
        sub, pushes = self.subscription, 0
        while self.behind and pushes < budget and not sub.blocked and not self._waiting:
            answer = self._next()
            if answer is None:
                return pushes
            moved = answer.next_from > self.cursor
            self.cursor = answer.next_from
            if answer.count or answer.tombstone is not None:
                sub.credit -= answer.bytes
                sub.outbox.push(sub.id, self.topic, answer)
                pushes += 1
            elif not moved:
                return pushes
            elif sub.progress and answer.next_from >= self.topic.seqs.visible:
                sub.outbox.push(sub.id, self.topic, answer)
                pushes += 1
        if self._lagged and not self.behind:
            self._lagged = False
            sub.pushing.lagging.pop(self, None)
        return pushes

    def _next(self) -> ReadAnswer | None:
        sub, reader = self.subscription, self.subscription.pushing.reader
        try:
            answer = reader.newest(self.topic, self.cursor, PUSH_BYTES) if sub.filter == NO_FILTER else None
            if answer is None:
                answer = reader.fetch(self.topic, self.cursor, FETCH_RECORDS_MAX, PUSH_BYTES, sub.filter)
        except (StillComing, NotNow) as not_yet:
            self._waiting = True
            not_yet.then(self._go_on)
            return None
        except TopicdError as exc:
            sub.outbox.notice(sub.id, {"event": "error", "topic": self.topic.name, **exc.to_wire()})
            self.leave()
            sub.feeds.pop(self.topic.id, None)
            return None
        if self._tombstone is not None:
            answer.tombstone, self._tombstone = self._tombstone, None
        reader.note_read(self.topic, answer.count)
        return answer

    def _go_on(self) -> None:
        """What it waited for is there, or worth another try."""
        self._waiting = False
        if self.subscription.feeds.get(self.topic.id) is self:
            self.subscription.resume()

    def _note_lag(self, sub: Subscription) -> None:
        if not self._lagged:
            self._lagged = True
            sub.pushing.counters.lagged += 1
            sub.pushing.lagging[self] = _UNKNOWN

    def tell_lag(self) -> None:
        """Advice, behind whatever waits for this connection: nothing is lost, it reads on from the log."""
        sub, topic = self.subscription, self.topic
        facts = {"topic": topic.name, "topic_id": topic.id, "from_seq": self.cursor, "head_seq": topic.seqs.visible}
        sub.outbox.notice(sub.id, {"event": "lagged", **facts})
