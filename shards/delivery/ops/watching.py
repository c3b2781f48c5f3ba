"""Subscriptions: begun and ended. (Credit: sessions/session.py, without a detour.)"""

from __future__ import annotations

from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import Subscribe, SubscribedTopic, Unsubscribe
from topicd.model import Tombstone
from topicd.shards.delivery.ops.records import check_room, start_of
from topicd.shards.delivery.reading.filters import ReadFilter
from topicd.shards.delivery.reading.patterns import covers
from topicd.shards.delivery.reading.subscriptions import Subscription
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.shards.delivery.topic.topic import Topic


@operation(Subscribe)
def subscribe(call: Call, want: Subscribe) -> None:
    shard, connection, sub_id = call.shard, call.connection, call.request_id
    if sub_id in connection.subscriptions:
        raise InvalidRequest(f"subscription {sub_id} exists already on this connection")
    if not (want.topics or want.pattern):
        raise InvalidRequest("a subscription needs topics or a pattern")
    if want.pattern:
        connection.rights.require("read")
    check_room(call, len(connection.subscriptions), "subscriptions")
    starts = _starts(call, want)
    chosen = ReadFilter(want.match, want.nodes, committed=want.committed)
    subscription = Subscription(shard.pushing, connection, connection.rights, sub_id, want.credit, chosen, want.pattern)
    connection.subscriptions[sub_id] = subscription
    shard.patterns.add(subscription)
    call.answer({"topics": [{"topic": topic.name, "topic_id": topic.id, "from_seq": at} for topic, at, _ in starts]})
    for topic, at, tombstone in starts:
        subscription.follow(topic, at, tombstone)


def _starts(call: Call, want: Subscribe) -> list[tuple[Topic, int, Tombstone | None]]:
    """Each topic, where it is read from, and what has to be told first."""
    rights, catalog = call.connection.rights, call.shard.catalog
    starts: list[tuple[Topic, int, Tombstone | None]] = []
    chosen: set[int] = set()
    for entry in want.topics:
        rights.require("read", entry.topic)
        topic = catalog.get(entry.topic)
        if topic.id in chosen:
            raise InvalidRequest(f"topic {topic.name!r} is named twice")
        chosen.add(topic.id)
        starts.append((topic, *_position(call, topic, entry)))
    if want.pattern:
        for topic in catalog.by_name.values():
            if topic.id not in chosen and rights.allows(topic.name) and covers(want.pattern, topic.name):
                starts.append((topic, *_position(call, topic, want)))
    return starts


def _position(call: Call, topic: Topic, want: SubscribedTopic | Subscribe) -> tuple[int, Tombstone | None]:
    return (topic.seqs.visible, None) if want.tail else start_of(call, topic, want, want.from_seq)


@operation(Unsubscribe)
def unsubscribe(call: Call, want: Unsubscribe) -> None:
    subscription = call.connection.subscriptions.pop(want.subscription, None)
    if subscription is not None:
        subscription.close()
        call.shard.patterns.discard(subscription)
    call.answer({})
