"""Topics: opened, configured, looked at, listed, deleted."""

from __future__ import annotations

import logging
from typing import Any

from topicd import limits
from topicd.errors import InvalidRequest, TopicdError, TopicNotFound
from topicd.frames import FrameType
from topicd.ipc.protocol.messages import Configure, DeleteTopic, ForgiveGap, ListTopics, OpenTopic, TopicState
from topicd.model import TopicConfig, is_internal
from topicd.shards.delivery.ready import effective_priority
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.shards.delivery.topic.topic import Topic

log = logging.getLogger(__name__)

_LOST_SHOWN = 64


@operation(OpenTopic)
def open_topic(call: Call, want: OpenTopic) -> None:
    topic = _found_or_creatable(call, want)
    if topic is not None:
        call.answer(_opened(topic, created=False))
        return
    call.connection.rights.require("admin" if want.config else "write", want.topic)

    def done(born: Topic | None, error: TopicdError | None) -> None:
        call.done(None if born is None else _opened(born, created=True), error)

    call.shard.catalog.create(want.topic, TopicConfig.from_fields(want.config or {}), done)


def _opened(topic: Topic, *, created: bool) -> dict[str, Any]:
    return {
        "topic_id": topic.id,
        "created": created,
        "head_seq": topic.seqs.visible,
        "earliest_seq": topic.floors.earliest,
    }


@operation(Configure)
def configure(call: Call, want: Configure) -> None:
    topic = _found_or_creatable(call, want)
    catalog, fields, created = call.shard.catalog, want.config or {}, False

    def done(changed: Topic | None, error: TopicdError | None) -> None:
        if changed is None:
            call.done(None, error)
        else:
            call.answer({"topic_id": changed.id, "created": created, "config": changed.config.to_fields()})

    if topic is not None:
        catalog.configure(topic, fields, done)
    elif not catalog.configure_unborn(want.topic, fields, done):
        created = True
        catalog.create(want.topic, TopicConfig.from_fields(fields), done)


def _found_or_creatable(call: Call, want: OpenTopic | Configure) -> Topic | None:
    """None: there is none, and this request may create it."""
    catalog = call.shard.catalog
    topic = catalog.find(want.topic)
    if topic is None:
        if not want.create:
            catalog.check_owned(want.topic)
            raise TopicNotFound(f"no topic named {want.topic!r}", topic=want.topic)
        if is_internal(want.topic) and not want.internal:
            message = f"topic name {want.topic!r} is not allowed: {limits.INTERNAL}* are topicd's own"
            raise InvalidRequest(message, topic=want.topic)
    return topic


@operation(TopicState)
def state(call: Call, want: TopicState) -> None:
    shard = call.shard
    topic = shard.catalog.get(want.topic)
    shard.retention.expire(topic)
    if want.touch:
        shard.reader.note_read(topic)
    call.answer(
        {
            "topic": topic.name,
            "topic_id": topic.id,
            "head_seq": topic.seqs.visible,
            "earliest_seq": topic.floors.earliest,
            "next_seq": topic.seqs.head + 1,
            "evict_floor": topic.floors.evict_floor,
            "count": topic.contents.count,
            "bytes": topic.contents.bytes,
            "last_write_ts": topic.last_write_ms,
            "last_read_ts": topic.last_read_ms,
            "effective_priority": effective_priority(topic, shard.place.clock.now_ms()),
            "config": topic.config.to_fields(),
            "segments": len(topic.contents.segments),
            "stored_seq": topic.seqs.stored,
            "settled_seq": topic.commits.settled(topic.seqs.visible),
            "open_commits": topic.commits.published,
            "lost": [list(gap) for gap in topic.contents.lost][:_LOST_SHOWN],
        }
    )


@operation(ListTopics)
def list_topics(call: Call, want: ListTopics) -> None:
    rights, internal = call.connection.rights, want.internal or want.prefix.startswith(limits.INTERNAL)

    def shown(name: str) -> bool:
        return rights.lists(name, want.prefix) and (internal or not is_internal(name))

    page, following = call.shard.catalog.page(want.prefix, want.after or "", want.limit, shown)
    call.answer({"topics": [_row(call, topic) for topic in page], "next": following})


def _row(call: Call, topic: Topic) -> dict[str, Any]:
    call.shard.retention.expire(topic)
    return {
        "topic": topic.name,
        "topic_id": topic.id,
        "head_seq": topic.seqs.visible,
        "earliest_seq": topic.floors.earliest,
        "count": topic.contents.count,
        "bytes": topic.contents.bytes,
        "durability": topic.config.durability,
        "type": topic.config.type,
    }


@operation(DeleteTopic)
def delete_topic(call: Call, want: DeleteTopic) -> None:
    catalog = call.shard.catalog
    topic = catalog.get(want.topic)
    call.shard.retention.expire(topic)

    def done(gone: Topic | None, error: TopicdError | None) -> None:
        call.done(None if gone is None else {"topic_id": gone.id}, error)

    catalog.delete(topic, if_empty=want.if_empty, done=done)


@operation(ForgiveGap)
def forgive_gap(call: Call, want: ForgiveGap) -> None:
    topic = call.shard.catalog.get(want.topic)
    if not topic.contents.lost.within(want.first_seq, want.last_seq):
        raise InvalidRequest(
            f"no loss of power took anything of topic {topic.name!r} between seqs {want.first_seq} and {want.last_seq}",
            topic=topic.name,
        )

    def applied() -> None:
        forgiven = topic.contents.forgive(want.first_seq, want.last_seq)
        log.warning("loss forgiven", extra={"topic": topic.name, "seqs": forgiven})
        call.answer({"topic_id": topic.id, "forgiven": [list(gap) for gap in forgiven]})

    call.shard.log.change(
        topic,
        FrameType.FORGIVEN,
        {"first": want.first_seq, "last": want.last_seq},
        seq=topic.seqs.head,
        need=topic.policy.change_need,
        applied=applied,
        refused=call.refuse,
        numbered=True,
    )
