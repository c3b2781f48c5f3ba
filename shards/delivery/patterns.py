"""Subscriptions by name pattern pick up topics that are made later."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic import Topic


def note_new_topic(actor: Actor, topic: Topic) -> None:
    for session in actor.sessions:
        for subscription in session.subscriptions.values():
            if not subscription.pattern or not session.rights.allows(topic.name):
                continue
            if fnmatch.fnmatchcase(topic.name, subscription.pattern):
                session.notice(subscription.id, {"event": "topic", "topic": topic.name, "topic_id": topic.id})
                subscription.follow(topic, 0)
