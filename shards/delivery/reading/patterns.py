"""Which topics a name pattern means, and how subscriptions by pattern pick up topics that are created later."""

from __future__ import annotations

import fnmatch

from topicd.limits import INTERNAL
from topicd.model import is_internal
from topicd.shards.delivery.reading.subscriptions import Subscription
from topicd.shards.delivery.topic.topic import Topic


def covers(pattern: str, name: str) -> bool:
    """Topicd's own topics are meant only by patterns that say so."""
    return fnmatch.fnmatchcase(name, pattern) and (not is_internal(name) or pattern.startswith(INTERNAL))


class PatternWatchers:
    """Subscriptions by pattern, for as long as they are open."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    def add(self, subscription: Subscription) -> None:
        if subscription.pattern:
            self._subscriptions.add(subscription)

    def discard(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    def note_new_topic(self, topic: Topic) -> None:
        for subscription in self._subscriptions:
            if subscription.rights.allows(topic.name) and covers(subscription.pattern, topic.name):
                notice = {"event": "topic", "topic": topic.name, "topic_id": topic.id}
                subscription.outbox.notice(subscription.id, notice)
                subscription.follow(topic, 0)
