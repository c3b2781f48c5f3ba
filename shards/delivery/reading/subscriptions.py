"""Those who wait for records: long polls and subscriptions. Promise: a subscriber gets every record once and in
order, or a tombstone; one that does not read costs a cursor, never memory, and nobody else notices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topicd.errors import TopicdError
from topicd.limits import FETCH_RECORDS_MAX, KIB
from topicd.model import Tombstone
from topicd.shards.delivery.reading.reading import NO_FILTER, Answer, ReadFilter

if TYPE_CHECKING:
    from topicd.shards.delivery.sessions.session import Session
    from topicd.shards.delivery.topic.topic import Topic

_PUSH_BYTES = 256 * KIB
_PUSHES_PER_TURN = 8


class Follower:
    """Somebody who is told when a topic has new records, or is gone."""

    def moved(self) -> None:
        raise NotImplementedError

    def gone(self, topic: Topic) -> None:
        raise NotImplementedError


class LongPoll(Follower):
    def __init__(
        self,
        session: Session,
        request_id: int,
        flags: int,
        topic: Topic,
        fetch: tuple[int, int, int, ReadFilter],
    ) -> None:
        self._session = session
        self._request_id = request_id
        self._flags = flags
        self._topic = topic
        self._from_seq, self._limit, self._max_bytes, self._filter = fetch
        self._timer: Any = None

    def start(self, wait_ms: int) -> None:
        self._topic.followers.add(self)
        self._session.long_polls.add(self)
        self._timer = self._session.actor.loop.call_later(wait_ms / 1000, self._expire)

    def moved(self) -> None:
        self._answer(give_up=False)

    def gone(self, topic: Topic) -> None:
        self.cancel()
        self._session.refused(self._request_id, self._session.actor.topic_gone(topic))

    def cancel(self) -> None:
        self._topic.followers.discard(self)
        self._session.long_polls.discard(self)
        if self._timer is not None:
            self._timer.cancel()

    def _expire(self) -> None:
        self._answer(give_up=True)

    def _answer(self, *, give_up: bool) -> None:
        actor = self._session.actor
        try:
            answer = actor.reader.fetch(self._topic, self._from_seq, self._limit, self._max_bytes, self._filter)
        except TopicdError as exc:
            self.cancel()
            self._session.refused(self._request_id, exc)
            return
        if answer.count or answer.tombstone is not None or give_up:
            self.cancel()
            self._session.fetched(self._request_id, self._flags, self._topic, answer)
        else:
            self._from_seq = answer.next_from


class Subscription:
    """Some topics, one credit. Its id is the request id of the SUBSCRIBE."""

    def __init__(self, session: Session, sub_id: int, credit: int, chosen: ReadFilter, pattern: str) -> None:
        self.session = session
        self.id = sub_id
        self.credit = credit
        self.filter = chosen
        self.pattern = pattern
        self.feeds: dict[int, Feed] = {}
        self._scheduled = False

    @property
    def blocked(self) -> bool:
        return self.credit <= 0 or self.session.write_blocked

    def follow(self, topic: Topic, from_seq: int, tombstone: Tombstone | None = None) -> None:
        feed = Feed(self, topic, from_seq, tombstone)
        self.feeds[topic.id] = feed
        topic.followers.add(feed)
        if tombstone is not None or from_seq < topic.visible:
            self.schedule()

    def grant(self, credit: int) -> None:
        self.credit += credit
        self.resume()

    def resume(self) -> None:
        if not self.blocked and any(feed.behind for feed in self.feeds.values()):
            self.schedule()

    def schedule(self) -> None:
        """Go on in the next turn of the loop, so that a long catch-up does not keep others waiting."""
        if not self._scheduled:
            self._scheduled = True
            self.session.actor.loop.call_soon(self._run)

    def close(self) -> None:
        for feed in self.feeds.values():
            feed.topic.followers.discard(feed)
        self.feeds.clear()

    def _run(self) -> None:
        self._scheduled = False
        budget = _PUSHES_PER_TURN
        for feed in list(self.feeds.values()):
            budget -= feed.pump(budget)
            if budget <= 0 or self.blocked:
                break
        self.session.flush()
        self.resume()


class Feed(Follower):
    """One topic of a subscription: a cursor."""

    def __init__(self, subscription: Subscription, topic: Topic, from_seq: int, tombstone: Tombstone | None) -> None:
        self._subscription = subscription
        self.topic = topic
        self.cursor = from_seq
        self._tombstone = tombstone
        self._lagged = False

    @property
    def behind(self) -> bool:
        return self.cursor < self.topic.visible or self._tombstone is not None

    def moved(self) -> None:
        sub = self._subscription
        if sub.blocked:
            self._note_lag(sub)
            return
        if self.pump(_PUSHES_PER_TURN) >= _PUSHES_PER_TURN:
            sub.schedule()
        sub.session.actor.flush_first(sub.session)

    def gone(self, topic: Topic) -> None:
        self._subscription.feeds.pop(topic.id, None)
        self._subscription.session.notice(
            self._subscription.id, {"event": "topic_deleted", "topic": topic.name, "topic_id": topic.id}
        )

    def pump(self, budget: int) -> int:
        """Push what is there, as far as credit, outbox and budget reach; the number of pushes."""
        sub, pushes = self._subscription, 0
        while self.behind and pushes < budget and not sub.blocked:
            answer = self._next()
            if answer is None:
                return pushes
            moved = answer.next_from > self.cursor
            self.cursor = answer.next_from
            if answer.count or answer.tombstone is not None:
                sub.credit -= answer.bytes
                sub.session.push(sub.id, self.topic, answer)
                pushes += 1
            elif not moved:
                return pushes
        if not self.behind:
            self._lagged = False
        return pushes

    def _next(self) -> Answer | None:
        sub, actor = self._subscription, self._subscription.session.actor
        try:
            answer = actor.reader.newest(self.topic, self.cursor, _PUSH_BYTES) if sub.filter == NO_FILTER else None
            if answer is None:
                answer = actor.reader.fetch(self.topic, self.cursor, FETCH_RECORDS_MAX, _PUSH_BYTES, sub.filter)
        except TopicdError as exc:
            sub.session.notice(sub.id, {"event": "error", "topic": self.topic.name, **exc.to_wire()})
            self.topic.followers.discard(self)
            sub.feeds.pop(self.topic.id, None)
            return None
        if self._tombstone is not None:
            answer.tombstone, self._tombstone = self._tombstone, None
        actor.note_read(self.topic)
        return answer

    def _note_lag(self, sub: Subscription) -> None:
        if not self._lagged:
            self._lagged = True
            sub.session.actor.lagged_total += 1
