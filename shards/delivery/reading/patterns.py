"""How subscriptions pick up topics that are created later: those that a pattern means, and those that were named before
they were there."""

from __future__ import annotations

from topicd.patterns import covers
from topicd.shards.delivery.reading.subscriptions import Subscription
from topicd.shards.delivery.topic.topic import Topic


class PatternWatchers:
    """Subscriptions that wait for topics, for as long as they are open."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    def add(self, subscription: Subscription) -> None:
        if subscription.pattern or subscription.awaited:
            self._subscriptions.add(subscription)

    def discard(self, subscription: Subscription) -> None:
        self._subscriptions.discard(subscription)

    def note_new_topic(self, topic: Topic) -> None:
        for subscription in list(self._subscriptions):
            if topic.name in subscription.awaited or self._means(subscription, topic.name):
                subscription.awaited.discard(topic.name)
                notice = {"event": "topic", "topic": topic.name, "topic_id": topic.id}
                subscription.outbox.notice(subscription.id, notice)
                subscription.follow(topic, 0)

    @staticmethod
    def _means(subscription: Subscription, name: str) -> bool:
        pattern = subscription.pattern
        return bool(pattern) and subscription.rights.allows(name) and covers(pattern, name)
