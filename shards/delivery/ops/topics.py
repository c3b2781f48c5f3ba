"""Topics: opened, configured, looked at, listed, deleted."""

from __future__ import annotations

import logging
from typing import Any

from topicd import limits
from topicd.errors import Forbidden, InvalidRequest, Throttled, TopicdError, TopicNotFound
from topicd.frames import FrameType
from topicd.ipc.protocol.messages import (
    Configure,
    DeleteTopic,
    ForgiveGap,
    ListTopics,
    OpenTopic,
    SyncTopic,
    TopicState,
    Totals,
)
from topicd.model import Durability, TopicConfig, is_internal
from topicd.shards.delivery.ready import effective_priority
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.schema import check_schema
from topicd.shards.storage.segment.info import SegmentInfo

log = logging.getLogger(__name__)

_LOST_SHOWN = 64
_FILES_SHOWN = 200


@operation(OpenTopic)
def open_topic(call: Call, want: OpenTopic) -> None:
    topic = _found_or_creatable(call, want)
    if topic is not None:
        call.answer(_opened(topic, created=False))
        return
    call.connection.rights.require("admin" if want.config else "write", want.topic)
    catalog, config = call.shard.catalog, TopicConfig.from_fields(want.config or {})
    _check_dead_letter(call, want.topic, want.config)
    check_schema(config.schema)
    if want.first_records:
        refusal = call.shard.admission.first_refusal(config, want.first_bytes, want.first_records)
        if refusal is not None:
            raise refusal
    created = not catalog.is_being_created(want.topic)

    def done(born: Topic | None, error: TopicdError | None) -> None:
        call.done(None if born is None else _opened(born, created=created), error)

    catalog.create(want.topic, config, done)


def _opened(topic: Topic, *, created: bool) -> dict[str, Any]:
    return {
        "topic_id": topic.id,
        "created": created,
        "head_seq": topic.seqs.visible,
        "earliest_seq": topic.floors.earliest,
        "durability": topic.config.durability,
        "type": topic.config.type,
    }


@operation(Configure)
def configure(call: Call, want: Configure) -> None:
    topic = _found_or_creatable(call, want)
    catalog, fields, created = call.shard.catalog, want.config or {}, False
    _check_dead_letter(call, want.topic, fields)
    if fields.get("schema") is not None:
        check_schema(TopicConfig.from_fields({"schema": fields["schema"]}).schema)

    def done(changed: Topic | None, error: TopicdError | None) -> None:
        if changed is None:
            call.done(None, error)
        else:
            call.answer({"topic_id": changed.id, "created": created, "config": changed.config.to_fields()})

    if topic is not None:
        topic.check_own(call.connection.keeps)
        found, before = topic, topic.next_config or topic.config
        config = before.replaced(fields) if want.replace else before.updated(fields)

        def go() -> None:
            catalog.configure(found, fields, done, replace=want.replace)

        call.shard.routing.safety.before_config(topic, config, go, call.refuse)
    elif not catalog.configure_unborn(want.topic, fields, done, replace=want.replace):
        created = True
        catalog.create(want.topic, TopicConfig.from_fields(fields), done)


def _check_dead_letter(call: Call, name: str, fields: dict[str, Any] | None) -> None:
    wanted = (fields or {}).get("dead_letter")
    if wanted == name:
        raise InvalidRequest("dead_letter must be another topic than the queue itself", topic=name)
    if isinstance(wanted, str) and is_internal(wanted):
        raise InvalidRequest(f"dead_letter {wanted!r} is not allowed: {limits.INTERNAL}* are topicd's own", topic=name)
    if isinstance(wanted, str):
        call.connection.rights.require("admin", wanted)  # jobs are written there on behalf of who configures it


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
        keeps = call.connection.keeps
        kept = bool(keeps) and want.topic.startswith(keeps)
        if want.topic.startswith((limits.CHANNELS, limits.CHATS)) and not kept:
            raise Forbidden(f"only topicd itself makes {want.topic}", topic=want.topic)
        if want.topic == limits.ROUTERS:
            raise Forbidden(f"topic {want.topic} is made with the first router", topic=want.topic)
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
            "effective_priority": _priority(call, topic),
            "config": topic.config.to_fields(),
            "segments": len(topic.contents.segments),
            "stored_seq": topic.seqs.stored,
            "settled_seq": topic.commits.settled(topic.seqs.visible),
            "open_commits": topic.commits.published,
            "lost": [list(gap) for gap in topic.contents.lost][:_LOST_SHOWN],
            **_compacted(topic),
            **_queue(call, topic),
            **({"files": [_file(info) for info in topic.contents.segments[-_FILES_SHOWN:]]} if want.files else {}),
        }
    )


def _file(info: SegmentInfo) -> dict[str, Any]:
    names = ("first_seq", "last_seq", "data_bytes", "dead_bytes", "first_ts", "last_ts", "sealed")
    return {**{name: getattr(info, name) for name in names}, "cold": info.lies.cold, "packed": info.lies.packed}


def _compacted(topic: Topic) -> dict[str, Any]:
    done = topic.compacted
    if done is None:
        return {}
    return {
        "compacted": {"through_seq": done.through, "deleted": done.deleted, "left": topic.seqs.visible - done.through}
    }


def _queue(call: Call, topic: Topic) -> dict[str, Any]:
    if topic.queue is None:
        return {}
    service = call.shard.queues.of(topic)
    service.look()
    dead = service.endings.totals.dead
    return {"queue": {"ready": topic.queue.ready, "in_flight": topic.queue.in_flight, "dead_lettered": dead}}


def _priority(call: Call, topic: Topic) -> int:
    clock = call.shard.place.clock
    return effective_priority(topic, clock.now_ms(), clock.monotonic())


@operation(ListTopics)
def list_topics(call: Call, want: ListTopics) -> None:
    rights, internal = call.connection.rights, want.internal or want.prefix.startswith(limits.INTERNAL)

    def shown(name: str) -> bool:
        return rights.lists(name, want.prefix) and (internal or not is_internal(name)) and _is_wanted(by_name[name])

    def _is_wanted(topic: Topic) -> bool:
        if want.only == "any":
            return True
        return topic.queue is not None if want.only == "queues" else len(topic.consumers) > 0

    by_name = call.shard.catalog.by_name

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
        "effective_priority": _priority(call, topic),
        "settled_seq": topic.commits.settled(topic.seqs.visible),
        "last_write_ts": topic.last_write_ms,
        "consumers": len(topic.consumers),
        "lag": topic.consumers.figures(topic.seqs.visible, topic.floors.earliest)[0],
    }


@operation(Totals)
def totals(call: Call, want: Totals) -> None:
    rights, classes = call.connection.rights, dict.fromkeys(map(str, Durability), 0)
    records = content = queues = 0
    for topic in call.shard.catalog.by_name.values():
        if is_internal(topic.name) or not topic.live or not rights.allows(topic.name):
            continue
        classes[topic.config.durability] += 1
        records += topic.contents.count
        content += topic.contents.bytes
        queues += topic.config.type == "queue"
    call.answer(
        {
            "topics": sum(classes.values()),
            "classes": classes,
            "records": records,
            "bytes": content,
            "queue_topics": queues,
        }
    )


@operation(SyncTopic)
def sync_topic(call: Call, want: SyncTopic) -> None:
    topic = call.shard.catalog.get(want.topic)
    answer = {"topic_id": topic.id, "head_seq": topic.seqs.visible}
    outlet = call.shard.log.outlets[topic.outlet]
    if topic.policy.logged and outlet.read_only_errno:
        raise outlet.refusal()
    if call.shard.log.crowded:
        raise Throttled("too many changes are under way", limit="changes under way", retry_after_ms=100)
    if not topic.policy.logged or not outlet.when_synced(lambda: call.answer(answer), call.refuse):
        call.answer(answer)


@operation(DeleteTopic)
def delete_topic(call: Call, want: DeleteTopic) -> None:
    catalog = call.shard.catalog
    topic = catalog.get(want.topic)
    call.shard.retention.expire(topic)

    topic.check_own(call.connection.keeps)

    def done(removed: list[str], error: TopicdError | None) -> None:
        call.done({"topic_id": topic.id, "routers_removed": removed} if error is None else None, error)

    call.shard.routing.delete(topic, want.if_empty, done)


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
