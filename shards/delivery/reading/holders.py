"""Who reads as a named consumer. Promise: one subscription at a time does; a second one is refused or takes over, and
then the first is told and cannot acknowledge any more.
"""

from __future__ import annotations

from typing import NamedTuple

from topicd.errors import ConsumerHeld
from topicd.shards.delivery.reading.subscriptions import Subscription
from topicd.shards.delivery.topic.topic import Topic


class Holder(NamedTuple):
    subscription: Subscription
    holder: int  # chosen by the reader: one that connects anew is the same
    who: str


class Holders:
    def __init__(self) -> None:
        self._by_consumer: dict[tuple[int, str], Holder] = {}

    def __len__(self) -> int:
        return len(self._by_consumer)

    def holder_of(self, topic: Topic, name: str) -> str:
        """Who it is, "" if nobody."""
        found = self._by_consumer.get((topic.id, name))
        return "" if found is None else found.who

    def check(self, topic: Topic, name: str, holder: int, *, takeover: bool) -> None:
        """Raises ConsumerHeld if somebody else reads and is not to be replaced."""
        found = self._by_consumer.get((topic.id, name))
        if found is not None and found.holder != holder and not takeover:
            raise ConsumerHeld(
                f"consumer {name!r} of topic {topic.name!r} is read by {found.who}; takeover=True takes its place",
                topic=topic.name,
                name=name,
                holder=found.who,
            )

    def check_still(self, topic: Topic, name: str, holder: int) -> None:
        """Raises ConsumerHeld if somebody else has taken over from this reader."""
        found = self._by_consumer.get((topic.id, name))
        if found is not None and found.holder != holder:
            raise _taken_over(topic, name, found.who)

    def take(self, topic: Topic, name: str, subscription: Subscription, holder: int, who: str) -> None:
        """After `check`. Who had it before gets nothing more."""
        key = (topic.id, name)
        before = self._by_consumer.get(key)
        self._by_consumer[key] = Holder(subscription, holder, who)
        subscription.on_close = lambda: self._left(key, subscription)
        if before is not None:
            notice = {"event": "error", **_taken_over(topic, name, who).to_wire(), "topic": topic.name}
            before.subscription.outbox.notice(before.subscription.id, notice)
            before.subscription.close()

    def _left(self, key: tuple[int, str], subscription: Subscription) -> None:
        found = self._by_consumer.get(key)
        if found is not None and found.subscription is subscription:
            del self._by_consumer[key]


def _taken_over(topic: Topic, name: str, who: str) -> ConsumerHeld:
    text = f"{who} has taken over consumer {name!r} of topic {topic.name!r}"
    return ConsumerHeld(text, topic=topic.name, name=name, holder=who)
