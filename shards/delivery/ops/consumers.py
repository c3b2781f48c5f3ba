"""Named consumers: opened, asked for, moved and removed."""

from __future__ import annotations

from topicd.ipc.protocol.messages import (
    AckConsumer,
    ConsumerState,
    ListConsumers,
    OpenConsumer,
    RemoveConsumer,
    ResetConsumer,
)
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.shards.delivery.topic.topic import Topic


@operation(OpenConsumer)
def open_consumer(call: Call, want: OpenConsumer) -> None:
    call.shard.cursors.open(_topic(call, want.topic), want.name, want.start, call.done)


@operation(AckConsumer)
def ack(call: Call, want: AckConsumer) -> None:
    call.shard.cursors.ack(_topic(call, want.topic), want.name, want.seq, call.done)


@operation(ResetConsumer)
def reset(call: Call, want: ResetConsumer) -> None:
    call.shard.cursors.reset(_topic(call, want.topic), want.name, want.start, call.done)


@operation(RemoveConsumer)
def remove(call: Call, want: RemoveConsumer) -> None:
    call.shard.cursors.remove(_topic(call, want.topic), want.name, call.done)


@operation(ConsumerState)
def state(call: Call, want: ConsumerState) -> None:
    call.answer(call.shard.cursors.state(_topic(call, want.topic), want.name))


@operation(ListConsumers)
def list_consumers(call: Call, want: ListConsumers) -> None:
    call.answer({"consumers": call.shard.cursors.rows(_topic(call, want.topic))})


def _topic(call: Call, name: str) -> Topic:
    topic = call.shard.topics.get(name)
    call.shard.retention.expire(topic)
    return topic
