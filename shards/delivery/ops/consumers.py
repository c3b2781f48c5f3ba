"""Named consumers: opened, asked for, moved and removed. Promise: an acknowledgement is stored as the topic's class
says before it is answered; with `retain: acked` what every consumer acknowledged is deleted, silently, and what any has
not is kept.
"""

from __future__ import annotations

from typing import Any

from topicd.errors import Conflict, ConsumerNotFound, NotReady, Throttled, TopicdError
from topicd.frames import FrameType
from topicd.ipc.protocol.messages import (
    AckConsumer,
    ConsumerState,
    ListConsumers,
    OpenConsumer,
    RemoveConsumer,
    ResetConsumer,
)
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.shards.delivery.topic.consumers import CONSUMERS_MAX, NamedConsumer
from topicd.shards.delivery.topic.topic import Topic


@operation(OpenConsumer)
def open_consumer(call: Call, want: OpenConsumer) -> None:
    topic = _topic(call, want.topic)
    known = topic.consumers.get(want.name)
    if known is not None:
        call.answer({**_row(call, topic, known), "created": False})
        return
    if len(topic.consumers) >= CONSUMERS_MAX:
        raise Throttled(f"{CONSUMERS_MAX} consumers exist already", limit="consumers", retry_after_ms=1_000)
    _change(call, topic, "open", want.name, _position(call, topic, want.start), created=True)


@operation(AckConsumer)
def ack(call: Call, want: AckConsumer) -> None:
    topic = _topic(call, want.topic)
    consumer = _get(topic, want.name)
    if want.holder:
        call.shard.holders.check_still(topic, want.name, want.holder)
    if _existing_seq(topic, want.seq) <= consumer.acked:
        call.answer(_row(call, topic, consumer))
    else:
        _change(call, topic, "ack", want.name, want.seq)


@operation(ResetConsumer)
def reset(call: Call, want: ResetConsumer) -> None:
    topic = _topic(call, want.topic)
    _get(topic, want.name)
    _change(call, topic, "reset", want.name, _position(call, topic, want.start))


@operation(RemoveConsumer)
def remove(call: Call, want: RemoveConsumer) -> None:
    topic = _topic(call, want.topic)
    _get(topic, want.name)
    _change(call, topic, "remove", want.name, None)


@operation(ConsumerState)
def state(call: Call, want: ConsumerState) -> None:
    topic = _topic(call, want.topic)
    call.answer(_row(call, topic, _get(topic, want.name)))


@operation(ListConsumers)
def list_consumers(call: Call, want: ListConsumers) -> None:
    topic = _topic(call, want.topic)
    by_name = sorted(topic.consumers, key=lambda consumer: consumer.name)
    call.answer({"consumers": [_row(call, topic, consumer) for consumer in by_name]})


def _change(call: Call, topic: Topic, action: str, name: str, acked: int | None, **more: Any) -> None:
    """more: further fields of the answer."""
    now = call.shard.place.clock.now_ms()
    body = {"action": action, "name": name, "acked": acked}

    def applied() -> None:
        topic.consumers.replay(FrameType.CURSOR, body, now)
        call.shard.deletion.free_acked(topic)
        consumer = topic.consumers.get(name)
        if consumer is not None:
            call.answer({**_row(call, topic, consumer), **more})
        elif action == "remove":
            call.answer({"name": name})
        else:
            call.refuse(consumer_not_found(topic, name))

    def refused(error: TopicdError) -> None:
        call.refuse(error)

    call.shard.log.change(
        topic,
        FrameType.CURSOR,
        body,
        seq=acked or 0,
        need=topic.policy.change_need,
        applied=applied,
        refused=refused,
        numbered=True,
    )


def _topic(call: Call, name: str) -> Topic:
    topic = call.shard.catalog.get(name)
    if topic.inflows.remaking:
        raise NotReady(f"the copies in topic {name} are being made again", topic=name, retry_after_ms=20)
    call.shard.retention.expire(topic)
    return topic


def _position(call: Call, topic: Topic, start: tuple[str, int] | None) -> int:
    """The seq up to which a consumer counts as having acknowledged everything."""
    kind, at = start or ("earliest", 0)
    if kind == "earliest":
        return topic.floors.earliest - 1
    if kind == "latest":
        return topic.seqs.visible
    return _existing_seq(topic, at) if kind == "seq" else call.shard.reader.start_at(topic, at)


def _existing_seq(topic: Topic, seq: int) -> int:
    newest = topic.seqs.visible
    if seq > newest:
        raise Conflict(f"seq {seq} does not exist yet, the newest is {newest}", head_seq=newest)
    return seq


def _get(topic: Topic, name: str) -> NamedConsumer:
    consumer = topic.consumers.get(name)
    if consumer is None:
        raise consumer_not_found(topic, name)
    return consumer


def consumer_not_found(topic: Topic, name: str) -> ConsumerNotFound:
    return ConsumerNotFound(f"topic {topic.name!r} has no consumer {name!r}", topic=topic.name, name=name)


def _row(call: Call, topic: Topic, consumer: NamedConsumer) -> dict[str, Any]:
    visible = topic.seqs.visible
    return {
        "name": consumer.name,
        "acked_seq": consumer.acked,
        "head_seq": visible,
        "lag": topic.consumers.lag(consumer, visible, topic.floors.earliest),
        "updated_ts": consumer.updated_ms,
        "topic_id": topic.id,
        "holder": call.shard.holders.holder_of(topic, consumer.name),
    }
