"""Watches of channels: a subscription to the channel's log, and its events. Promise: whoever is slow costs a cursor and
a number, never memory: it hears what it missed of messages by a tombstone, and of events by their count.
"""

from __future__ import annotations

from typing import Any

from topicd.channel import channel_topic
from topicd.shards.delivery.channels.channel import Channel, Watcher
from topicd.shards.delivery.reading.subscriptions import Subscription
from topicd.shards.delivery.topic.topic import Topic


class ChannelWatch(Watcher):
    def __init__(self, channel: Channel, user: str, subscription: Subscription, *, events: bool) -> None:
        self.user = user
        self._channel = channel
        self._subscription = subscription
        self._name = channel_topic(channel.handler)
        self._events = events
        self._missed = 0  # events
        subscription.on_close = self._closed

    def open(self, topic: Topic, from_seq: int, *, anew: bool) -> None:
        """anew: whoever watches was told of another log before; how much of that it missed, nobody knows."""
        if anew:
            self._subscription.outbox.notice(self._subscription.id, {"event": "channel", "kind": "log"})
        self._channel.attach(self)
        self._subscription.follow(topic, from_seq)

    def tell(self, event: dict[str, Any]) -> None:
        if not self._events:
            return
        outbox = self._subscription.outbox
        if outbox.write_blocked:
            self._missed += 1
            return
        if self._missed:
            outbox.notice(self._subscription.id, {"event": "channel", "kind": "missed", "events": self._missed})
            self._missed = 0
        outbox.notice(self._subscription.id, event)

    def move(self, topic: Topic) -> None:
        subscription = self._subscription
        missed = sum(feed.topic.seqs.visible - feed.cursor for feed in subscription.feeds.values())
        subscription.unfollow()
        moved = {"event": "topic", "topic": self._name, "topic_id": topic.id}
        subscription.outbox.notice(subscription.id, moved)
        subscription.outbox.notice(subscription.id, {"event": "channel", "kind": "log", "missed": missed})
        subscription.follow(topic, 0)

    def end(self, event: dict[str, Any]) -> None:
        outbox, subscription = self._subscription.outbox, self._subscription
        outbox.notice(subscription.id, event)
        subscription.close()

    def _closed(self) -> None:
        self._channel.detach(self)
