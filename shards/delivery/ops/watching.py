"""Subscriptions: begun and ended. (Credit: sessions/session.py, without a detour.)"""

from __future__ import annotations

from typing import Any

from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import Subscribe, SubscribedTopic, Unsubscribe
from topicd.model import Tombstone, check_topic_name
from topicd.patterns import check_pattern, covers, is_pattern
from topicd.shards.delivery.ops.consumers import consumer_not_found
from topicd.shards.delivery.ops.records import check_room, start_of
from topicd.shards.delivery.reading.filters import ReadFilter
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
        check_pattern(want.pattern) if is_pattern(want.pattern) else check_topic_name(want.pattern)
        connection.rights.require("read")
    check_room(call, len(connection.subscriptions), "subscriptions")
    starts, awaited = _starts(call, want)
    held = _consumer(call, want, starts)
    chosen = ReadFilter(want.match, want.nodes, committed=want.committed)
    subscription = Subscription(
        *(shard.pushing, connection, connection.rights, sub_id, want.credit, chosen, want.pattern),
        progress=want.progress,
    )
    subscription.awaited.update(awaited)
    connection.subscriptions[sub_id] = subscription
    shard.patterns.add(subscription)
    if held is not None:
        shard.holders.take(held, want.consumer, subscription, want.holder, connection.who)
    call.answer({"topics": [_started(topic, at) for topic, at, _ in starts]})
    for topic, at, tombstone in starts:
        subscription.follow(topic, at, tombstone)


def _consumer(call: Call, want: Subscribe, starts: list[tuple[Topic, int, Tombstone | None]]) -> Topic | None:
    """The topic that is read as a consumer, if that is asked for and nobody else does."""
    if not want.consumer:
        return None
    if len(starts) != 1 or want.pattern:
        raise InvalidRequest("a consumer reads one topic")
    topic = starts[0][0]
    call.connection.rights.require("consume", topic.name)
    if topic.consumers.get(want.consumer) is None:
        raise consumer_not_found(topic, want.consumer)
    call.shard.holders.check(topic, want.consumer, want.holder, takeover=want.takeover)
    return topic


def _started(topic: Topic, at: int) -> dict[str, Any]:
    started = {"topic": topic.name, "topic_id": topic.id, "from_seq": at, "head_seq": topic.seqs.visible}
    return {**started, "derived": True} if topic.inflows.derived is not None else started


def _starts(call: Call, want: Subscribe) -> tuple[list[tuple[Topic, int, Tombstone | None]], set[str]]:
    """Each topic, where it is read from, and what has to be told first; and those that are waited for."""
    rights, catalog = call.connection.rights, call.shard.catalog
    starts: list[tuple[Topic, int, Tombstone | None]] = []
    chosen: set[int] = set()
    awaited: set[str] = set()
    for entry in want.topics:
        rights.require("read", entry.topic)
        if want.wait and entry.epoch is None and entry.topic not in catalog.by_name:
            awaited.add(entry.topic)
            continue
        topic = catalog.get(entry.topic)
        if topic.id in chosen:
            raise InvalidRequest(f"topic {topic.name!r} is named twice")
        chosen.add(topic.id)
        starts.append((topic, *_position(call, topic, entry)))
    if want.pattern:
        for topic in catalog.by_name.values():
            if topic.id not in chosen and rights.allows(topic.name) and covers(want.pattern, topic.name):
                starts.append((topic, *_position(call, topic, want)))
    return starts, awaited


def _position(call: Call, topic: Topic, want: SubscribedTopic | Subscribe) -> tuple[int, Tombstone | None]:
    return (topic.seqs.visible, None) if want.tail else start_of(call, topic, want, want.from_seq)


@operation(Unsubscribe)
def unsubscribe(call: Call, want: Unsubscribe) -> None:
    subscription = call.connection.subscriptions.pop(want.subscription, None)
    if subscription is not None:
        subscription.close()
        call.shard.patterns.discard(subscription)
    call.answer({})
