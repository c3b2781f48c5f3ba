"""Which topics a name pattern means, and how subscriptions by pattern pick up topics that are made later."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING

from topicd.limits import INTERNAL
from topicd.model import is_internal

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic.topic import Topic


def covers(pattern: str, name: str) -> bool:
    """Topicd's own topics are meant only by patterns that say so."""
    return fnmatch.fnmatchcase(name, pattern) and (not is_internal(name) or pattern.startswith(INTERNAL))


def note_new_topic(actor: Actor, topic: Topic) -> None:
    for session in actor.sessions:
        for subscription in session.subscriptions.values():
            if not subscription.pattern or not session.rights.allows(topic.name):
                continue
            if covers(subscription.pattern, topic.name):
                session.notice(subscription.id, {"event": "topic", "topic": topic.name, "topic_id": topic.id})
                subscription.follow(topic, 0)
