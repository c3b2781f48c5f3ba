"""The requests of a delivery shard, one function each: check the fields, do it, answer. All but append and credit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import topicd
from topicd import limits
from topicd.errors import Conflict, InvalidRequest, Throttled, TopicdError, TopicNotFound, UnsupportedVersion
from topicd.ipc.protocol.wire import FETCH, PROTOCOL_VERSION, MessageFlag, Op, unpack_map
from topicd.model import GapReason, TagMatch, Tombstone, TopicConfig, check_topic_name, is_internal
from topicd.shards.delivery.reading.reading import NO_FILTER, ReadFilter
from topicd.shards.delivery.reading.subscriptions import LongPoll, Subscription
from topicd.shards.delivery.topic.patterns import covers

if TYPE_CHECKING:
    from topicd.shards.delivery.sessions.session import Session
    from topicd.shards.delivery.topic.topic import Topic

_CREDIT_MAX = 1 << 30


def hello(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    fields = unpack_map(body)
    version = fields.get("version")
    if version != PROTOCOL_VERSION:
        raise UnsupportedVersion(f"protocol version {version!r:.50} is not spoken here, {PROTOCOL_VERSION} is")
    actor = session.actor
    if session.needs_token:
        session.rights = actor.authorize(fields.get("token"))
    session.greeted = True
    answer = {
        "version": PROTOCOL_VERSION,
        "server": topicd.__version__,
        "instance": actor.instance,
        "role": "delivery",
        "shard": actor.index,
        "wal_shards": actor.wal_shards,
        "delivery_shards": actor.delivery_shards,
        "shards": actor.socket_paths,
        "tcp_ports": actor.tcp_ports,
        "limits": {
            "max_batch_records": limits.MAX_BATCH_RECORDS,
            "max_batch_bytes": limits.MAX_BATCH_BYTES,
            "max_copy_bytes": limits.MAX_COPY_BYTES,
            "max_copy_ranges": limits.MAX_COPY_RANGES,
        },
    }
    session.answer(Op.HELLO, request_id, answer)


def ping(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    session.answer(Op.PING, request_id, {})


def status(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    raise InvalidRequest("the status is told by the supervisor's socket only, on the daemon's own machine")


def open_topic(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    fields = unpack_map(body)
    name = check_topic_name(fields.get("topic"))
    session.rights.require_any(("read", "write"), name)
    topics = session.actor.topics
    topic = topics.find(name)
    if topic is None:
        if not _flag(fields, "create", True):
            topics.check_owned(name)
            raise TopicNotFound(f"no topic named {name!r}", topic=name)
        _check_creatable(fields, name)
        session.rights.require("admin" if fields.get("config") else "write", name)
        config = TopicConfig.from_fields(fields.get("config") or {})
        topics.create(name, config, lambda made, error: _opened(session, request_id, made, error, created=True))
        return
    _opened(session, request_id, topic, None, created=False)


def _opened(
    session: Session, request_id: int, topic: Topic | None, error: TopicdError | None, *, created: bool
) -> None:
    if topic is None:
        session.refused(request_id, error or Conflict("the topic was not made"))
        return
    answer = {
        "topic_id": topic.id,
        "created": created,
        "head_seq": topic.visible,
        "earliest_seq": topic.earliest,
    }
    session.answer(Op.OPEN, request_id, answer)


def configure(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    fields = unpack_map(body)
    name = _named(session, fields, "admin")
    given = fields.get("config") or {}
    topics = session.actor.topics
    topic = topics.find(name)
    if topic is None and not _flag(fields, "create", True):
        topics.check_owned(name)
        raise TopicNotFound(f"no topic named {name!r}", topic=name)

    def done(changed: Topic | None, error: TopicdError | None) -> None:
        if changed is None:
            session.refused(request_id, error or Conflict("the topic was not changed"))
            return
        answer = {"topic_id": changed.id, "created": topic is None, "config": changed.config.to_fields()}
        session.answer(Op.CONFIGURE, request_id, answer)

    if topic is None:
        _check_creatable(fields, name)
        topics.create(name, TopicConfig.from_fields(given), done)
    else:
        topics.configure(topic, given, done)


def state(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    fields = unpack_map(body)
    topic = session.actor.topics.get(_named(session, fields, "read"))
    session.actor.retention.expire(topic)
    if _flag(fields, "touch", True):
        session.actor.note_read(topic)
    answer = {
        "topic": topic.name,
        "topic_id": topic.id,
        "head_seq": topic.visible,
        "earliest_seq": topic.earliest,
        "next_seq": topic.head + 1,
        "evict_floor": topic.evict_floor,
        "count": topic.count,
        "bytes": topic.bytes,
        "last_write_ts": topic.last_write_ms,
        "last_read_ts": topic.last_read_ms,
        "effective_priority": session.actor.effective_priority(topic),
        "config": topic.config.to_fields(),
        "segments": len(topic.segments),
        "stored_seq": topic.stored,
    }
    session.answer(Op.STATE, request_id, answer)


def list_topics(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    fields = unpack_map(body)
    prefix, after = fields.get("prefix", ""), fields.get("after") or ""
    if not isinstance(prefix, str) or not isinstance(after, str):
        raise InvalidRequest("prefix and after must be strings")
    limit = _number(fields, "limit", limits.LIST_PAGE_DEFAULT, 1, limits.LIST_PAGE_MAX)
    internal = _flag(fields, "internal", False) or prefix.startswith(limits.INTERNAL)

    def shown(name: str) -> bool:
        return session.rights.allows(name) and (internal or not is_internal(name))

    page, following = session.actor.topics.page(prefix, after, limit, shown)
    rows = []
    for topic in page:
        session.actor.retention.expire(topic)
        rows.append(
            {
                "topic": topic.name,
                "topic_id": topic.id,
                "head_seq": topic.visible,
                "earliest_seq": topic.earliest,
                "count": topic.count,
                "bytes": topic.bytes,
                "durability": topic.config.durability,
                "type": topic.config.type,
            }
        )
    session.answer(Op.LIST, request_id, {"topics": rows, "next": following})


def delete_topic(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    fields = unpack_map(body)
    topics = session.actor.topics
    topic = topics.get(_named(session, fields, "delete"))

    def done(gone: Topic | None, error: TopicdError | None) -> None:
        if gone is None:
            session.refused(request_id, error or Conflict("the topic was not deleted"))
        else:
            session.answer(Op.DELETE_TOPIC, request_id, {"topic_id": gone.id})

    topics.delete(topic, if_empty=_flag(fields, "if_empty", False), done=done)


def fetch(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    if len(body) < FETCH.size:
        raise InvalidRequest(f"fetch has {len(body)} bytes of body, the fixed fields alone are {FETCH.size}")
    topic_id, from_seq, limit, max_bytes, wait_ms = FETCH.unpack_from(body)
    actor = session.actor
    topic = actor.topics.by_id.get(topic_id)
    if topic is None or not topic.live:
        raise TopicNotFound(f"no topic with id {topic_id}", topic_id=topic_id)
    session.rights.require("read", topic.name)
    if from_seq > limits.MAX_SEQ:
        raise InvalidRequest(f"from_seq is at most {limits.MAX_SEQ}, not {from_seq}")
    chosen, tombstone = NO_FILTER, None
    metadata_only = bool(flags & MessageFlag.METADATA_ONLY)
    if flags & MessageFlag.FILTER:
        fields = unpack_map(body[FETCH.size :])
        chosen = ReadFilter.from_wire(fields, metadata_only=metadata_only)
        from_seq, tombstone = _start(session, topic, fields, from_seq)
    elif metadata_only:
        chosen = ReadFilter(metadata_only=True)
    elif len(body) != FETCH.size:
        raise InvalidRequest(f"fetch has {len(body) - FETCH.size} bytes behind its fixed fields and no FILTER flag")
    if wait_ms > limits.LONG_POLL_MS_MAX:
        raise InvalidRequest(f"wait_ms is at most {limits.LONG_POLL_MS_MAX}, not {wait_ms}")
    limit = limit or limits.FETCH_RECORDS_DEFAULT
    max_bytes = max_bytes or limits.FETCH_BYTES_DEFAULT
    answer = actor.reader.fetch(topic, from_seq, limit, max_bytes, chosen)
    answer.tombstone = tombstone or answer.tombstone
    actor.note_read(topic)
    if wait_ms and not answer.count and answer.tombstone is None:
        _check_room(session, len(session.long_polls), "long polls")
        LongPoll(session, request_id, flags, topic, (answer.next_from, limit, max_bytes, chosen)).start(wait_ms)
        return
    session.fetched(request_id, flags, topic, answer)


def _start(session: Session, topic: Topic, fields: dict[str, Any], from_seq: int) -> tuple[int, Tombstone | None]:
    """Where to read from: a time instead of a seq, or from the start when the cursor belongs to an older topic."""
    epoch = fields.get("epoch")
    if epoch is not None and epoch != topic.id:
        # The range is what of the new topic is gone already; nobody knows how much of the old one was missed.
        session.actor.retention.expire(topic)
        lost = topic.evict_floor - 1
        return 0, Tombstone(1, lost, GapReason.RECREATED.value, lost, topic.earliest, topic.visible)
    if fields.get("from_ts") is not None:
        return session.actor.reader.start_at(topic, _number(fields, "from_ts", 0, 0, limits.MAX_SEQ)), None
    return from_seq, None


def delete_records(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    fields = unpack_map(body)
    topic = session.actor.topics.get(_named(session, fields, "delete"))
    before = fields.get("before_seq")
    match = fields.get("match")
    if before is None and match is None:
        raise InvalidRequest("a delete needs before_seq or match or both")
    if before is not None:
        before = _number(fields, "before_seq", 0, 0, limits.MAX_SEQ)
    chosen = TagMatch.from_wire(match) if match is not None else None

    def done(result: dict[str, Any] | None, error: TopicdError | None) -> None:
        if result is None:
            session.refused(request_id, error or Conflict("nothing was deleted"))
        else:
            session.answer(Op.DELETE_RECORDS, request_id, result)

    session.actor.deletion.delete(topic, before, chosen, done)


def producer(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    fields = unpack_map(body)
    topic = session.actor.topics.get(_named(session, fields, "write"))
    producer_id = _number(fields, "producer_id", 0, 1, limits.MAX_U64)
    if _flag(fields, "release", False):
        topic.producers.release(producer_id)
    answer = {"topic_id": topic.id, "expected": topic.producers.expected(producer_id, topic.visible)}
    session.answer(Op.PRODUCER, request_id, answer)


def subscribe(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    fields = unpack_map(body)
    if request_id in session.subscriptions:
        raise InvalidRequest(f"subscription {request_id} exists already on this connection")
    entries = fields.get("topics") or []
    pattern = fields.get("pattern") or ""
    if not isinstance(entries, list) or len(entries) > limits.SUBSCRIPTION_TOPICS_MAX:
        raise InvalidRequest(f"topics must be a list of at most {limits.SUBSCRIPTION_TOPICS_MAX}")
    if not isinstance(pattern, str) or not (entries or pattern):
        raise InvalidRequest("a subscription needs topics or a pattern")
    if pattern:
        session.rights.require("read")
    if len(pattern) > limits.PATTERN_MAX:
        raise InvalidRequest(f"a pattern has at most {limits.PATTERN_MAX} characters, this one has {len(pattern)}")
    _check_room(session, len(session.subscriptions), "subscriptions")
    credit = _number(fields, "credit", limits.MIB, 1, _CREDIT_MAX)
    actor = session.actor
    starts: list[tuple[Topic, int, Tombstone | None]] = []
    for entry in entries:
        if not isinstance(entry, dict):
            raise InvalidRequest("each of topics must be a map with a topic")
        topic = actor.topics.get(_named(session, entry, "read"))
        if any(topic is other for other, _, _ in starts):
            raise InvalidRequest(f"topic {topic.name!r} is named twice")
        starts.append((topic, *_position(session, topic, entry)))
    if pattern:
        chosen = {topic.id for topic, _, _ in starts}
        for topic in actor.topics.by_name.values():
            if topic.id not in chosen and session.rights.allows(topic.name) and covers(pattern, topic.name):
                starts.append((topic, *_position(session, topic, fields)))
    subscription = Subscription(session, request_id, credit, ReadFilter.from_wire(fields), pattern)
    session.subscriptions[request_id] = subscription
    rows = [{"topic": topic.name, "topic_id": topic.id, "from_seq": at} for topic, at, _ in starts]
    session.answer(Op.SUBSCRIBE, request_id, {"topics": rows})
    for topic, at, tombstone in starts:
        subscription.follow(topic, at, tombstone)


def _position(session: Session, topic: Topic, entry: dict[str, Any]) -> tuple[int, Tombstone | None]:
    if _flag(entry, "tail", False):
        return topic.visible, None
    return _start(session, topic, entry, _number(entry, "from_seq", 0, 0, limits.MAX_SEQ))


def _check_room(session: Session, used: int, what: str) -> None:
    limit = session.actor.settings.max_inflight_per_connection
    if used >= limit:
        raise Throttled(
            f"this connection has {used} {what}, {limit} are allowed",
            limit="max_inflight_per_connection",
            retry_after_ms=1_000,
        )


def unsubscribe(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    sub_id = _number(unpack_map(body), "subscription", -1, 0, 0xFFFF_FFFF)
    subscription = session.subscriptions.pop(sub_id, None)
    if subscription is not None:
        subscription.close()
    session.answer(Op.UNSUBSCRIBE, request_id, {})


def consumer(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    fields = unpack_map(body)
    _named(session, fields, "read")

    def done(result: dict[str, Any] | None, error: TopicdError | None) -> None:
        if result is None:
            session.refused(request_id, error or Conflict("the consumer was not changed"))
        else:
            session.answer(Op.CONSUMER, request_id, result)

    session.actor.cursors.handle(fields, done)


def debug(session: Session, flags: int, request_id: int, body: memoryview) -> None:
    session.answer(Op.DEBUG, request_id, session.actor.debug(unpack_map(body)))


def _named(session: Session, fields: dict[str, Any], scope: str) -> str:
    """The topic a request is about, if this connection may do that to it."""
    name = check_topic_name(fields.get("topic"))
    session.rights.require(scope, name)
    return name


def _check_creatable(fields: dict[str, Any], name: str) -> None:
    if is_internal(name) and not _flag(fields, "internal", False):
        raise InvalidRequest(f"topic name {name!r} is not allowed: {limits.INTERNAL}* are topicd's own", topic=name)


def _flag(fields: dict[str, Any], name: str, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} must be true or false, not {value!r:.100}")
    return value


def _number(fields: dict[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidRequest(f"{name} must be an integer from {low} to {high}, not {value!r:.100}")
    return value


# What may go through the log. Appends are counted by themselves.
CHANGES = frozenset({Op.OPEN, Op.CONFIGURE, Op.DELETE_TOPIC, Op.DELETE_RECORDS, Op.CONSUMER})
HANDLERS: dict[int, Callable[[Session, int, int, memoryview], None]] = {
    Op.HELLO: hello,
    Op.PING: ping,
    Op.STATUS: status,
    Op.OPEN: open_topic,
    Op.CONFIGURE: configure,
    Op.STATE: state,
    Op.LIST: list_topics,
    Op.DELETE_TOPIC: delete_topic,
    Op.FETCH: fetch,
    Op.DELETE_RECORDS: delete_records,
    Op.PRODUCER: producer,
    Op.SUBSCRIBE: subscribe,
    Op.UNSUBSCRIBE: unsubscribe,
    Op.CONSUMER: consumer,
    Op.DEBUG: debug,
}
