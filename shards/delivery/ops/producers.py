"""How far a producer got, for one that goes on after a break."""

from __future__ import annotations

from topicd.ipc.protocol.messages import ProducerState, ReleaseProducer
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.shards.delivery.topic.topic import Topic


@operation(ProducerState)
def state(call: Call, want: ProducerState) -> None:
    _answer(call, call.shard.catalog.get(want.topic), want.producer_id)


@operation(ReleaseProducer)
def release(call: Call, want: ReleaseProducer) -> None:
    topic = call.shard.catalog.get(want.topic)
    topic.producers.release(want.producer_id)
    _answer(call, topic, want.producer_id)


def _answer(call: Call, topic: Topic, producer_id: int) -> None:
    call.answer({"topic_id": topic.id, "expected": topic.producers.expected(producer_id, topic.seqs.visible)})
