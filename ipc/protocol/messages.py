"""Every request whose body is a map: its op, its fields with their rules, the right it needs. Promise: a client builds
its requests of these, a shard checks them by these, and the table in docs/protocol.md is made of these.

The hot ones (APPEND, the fixed part of FETCH, CREDIT, CLAIM, ACK) are binary layouts in wire.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar

from topicd import limits
from topicd.channel import LISTS, TYPES
from topicd.ipc.protocol import wire
from topicd.ipc.protocol.fields import (
    Message,
    anything,
    choice,
    config,
    consumer_name,
    flag,
    handler,
    maps,
    node,
    nodes,
    number,
    numbers,
    payload,
    router_name,
    start,
    tag_match,
    text,
    topic_name,
    user,
    users,
)
from topicd.limits import MAX_SEQ, MAX_U64, MIB
from topicd.model import TagMatch

CREDIT_MAX = 1 << 30
TOKEN_MAX = 4_096


class Op(IntEnum):
    """Requests below 0x80; one for each verb. The answer to op x is x | 0x80, or ERROR. PUSH and NOTICE follow a
    SUBSCRIBE under its request id, JOBS and NOTICE a WORK."""

    HELLO = wire.OP_HELLO
    PING = wire.OP_PING
    STATUS = wire.OP_STATUS
    CONNECTIONS = 0x04
    OPEN = 0x10
    CONFIGURE = 0x11
    STATE = 0x12
    LIST = 0x13
    DELETE_TOPIC = 0x14
    FORGIVE_GAP = 0x15
    SYNC_TOPIC = 0x16
    APPEND = wire.OP_APPEND
    FETCH = wire.OP_FETCH
    DELETE_RECORDS = 0x22
    PRODUCER = 0x23
    RELEASE_PRODUCER = 0x24
    OPEN_COMMIT = 0x25
    CLOSE_COMMIT = 0x26
    ABANDON_COMMIT = 0x27
    TOTALS = 0x29
    SUBSCRIBE = 0x30
    UNSUBSCRIBE = 0x31
    CREDIT = wire.OP_CREDIT
    CONSUMER_OPEN = 0x40
    CONSUMER_ACK = 0x41
    CONSUMER_RESET = 0x42
    CONSUMER_REMOVE = 0x43
    CONSUMER_STATE = 0x44
    CONSUMER_LIST = 0x45
    ROUTER_CREATE = 0x46
    ROUTER_GET = 0x47
    ROUTER_LIST = 0x48
    ROUTER_DELETE = 0x49
    ROUTERS_OF = 0x4A
    SOURCE_HEAD = 0x4B
    ROUTERS_LOG = 0x4C
    ROUTER_PROGRESS = 0x4D
    ROUTERS_APPLY = 0x4E
    ROUTERS_FORGET = 0x4F
    CLAIM = wire.OP_CLAIM
    ACK = wire.OP_ACK
    NACK = 0x52
    EXTEND = 0x53
    WORK = 0x54
    STOP_WORK = 0x55
    QUEUE_STATE = 0x56
    QUEUE_PEEK = 0x57
    QUEUE_WHY = 0x58
    QUEUE_PAUSE = 0x59
    QUEUE_RESUME = 0x5A
    QUEUE_DRAIN = 0x5B
    REDRIVE = 0x5C
    CRON_ADD = 0x5D
    CRON_REMOVE = 0x5E
    CRON_LIST = 0x5F
    CHANNEL_JOIN = 0x60
    CHANNEL_LEAVE = 0x61
    CHANNEL_PUBLISH = 0x62
    CHANNEL_WATCH = 0x63
    CHANNEL_HISTORY = 0x64
    CHANNEL_SEQ = 0x65
    CHANNEL_STATE = 0x66
    CHANNEL_ACL = 0x67
    CHANNEL_CONFIG = 0x68
    CHANNEL_TYPE = 0x69
    CHANNEL_DELETE = 0x6A
    CHANNEL_PUSH = 0x6B
    CHANNEL_POP = 0x6C
    CHANNEL_CLEAR = 0x6D
    CHANNEL_LIST = 0x6E
    CHANNEL_SLOTS = 0x6F
    ROUTERS_PASSED = 0x70
    DEBUG = wire.OP_DEBUG
    PUSH = wire.OP_PUSH
    NOTICE = wire.OP_NOTICE
    JOBS = wire.OP_JOBS
    ERROR = wire.OP_ERROR


class Request(Message):
    """A message with an op of its own.

    right: the scope that a token needs, for the topic if the request names one; of several, any one will do.
    changes: it may go through the log, so it waits where too many changes are under way.
    answer: the fields of the answer, for the reference.
    """

    OP: ClassVar[Op]
    RIGHT: ClassVar[tuple[str, ...]] = ()
    CHANGES: ClassVar[bool] = False
    ANSWER: ClassVar[str] = "{}"

    def __init_subclass__(
        cls, *, op: Op, right: str | tuple[str, ...] = (), changes: bool = False, answer: str = "{}", **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        cls.OP = op
        cls.RIGHT = (right,) if isinstance(right, str) else right
        cls.CHANGES = changes
        cls.ANSWER = answer
        REQUESTS[op] = cls


REQUESTS: dict[int, type[Request]] = {}

_ROW = "name, acked_seq, head_seq, lag, updated_ts, topic_id, holder (who reads as it, or empty)"


# ---- the connection ----


class Hello(
    Request,
    op=Op.HELLO,
    open_ended=True,  # another version's HELLO is answered with the version spoken here, whatever it holds
    answer="version, server, instance, role (supervisor or delivery), shard, wal_shards, delivery_shards, "
    "shards [socket paths], tcp_ports? (delivery shards), chat_port? (0: none), limits",
):
    version: int = anything(help="of the protocol")
    client: str = text(256, default="", help="who connects, for the log")
    token: str | None = text(TOKEN_MAX, default=None, help="over TCP")


class Ping(Request, op=Op.PING):
    """Is anybody there?"""


class Status(Request, op=Op.STATUS, answer="the processes, their state and counters"):
    """Of the supervisor only."""

    stats: bool = flag(default=True, help="with the counters of each process")
    settings: bool = flag(default=False, help="nothing but the settings in force")


class ListConnections(
    Request,
    op=Op.CONNECTIONS,
    answer="connections [{who, client, since_ts, token, bytes_in, bytes_out, subscriptions [names], topics}]",
):
    """Of the shard that is asked; it needs the right admin."""


# ---- topics ----


class OpenTopic(
    Request,
    op=Op.OPEN,
    right=("read", "write"),
    changes=True,
    answer="topic_id, created, head_seq, earliest_seq, durability, type",
):
    """Of those who create one name at the same time, one is told that it did."""

    topic: str = topic_name()
    create: bool = flag(default=True, help="if there is none")
    config: dict[str, Any] | None = config(help="of the topic that is created")
    internal: bool = flag(default=False, help="a name of topicd's own is meant")
    first_records: int = number(
        0, limits.MAX_BATCH_RECORDS, default=0, help="of the write that follows: created only if it would be taken"
    )
    first_bytes: int = number(0, limits.MAX_MESSAGE, default=0, help="of the same, with framing")


class Configure(Request, op=Op.CONFIGURE, right="admin", changes=True, answer="topic_id, created, config"):
    topic: str = topic_name()
    config: dict[str, Any] | None = config(help="the fields to change")
    create: bool = flag(default=True, help="if there is none")
    internal: bool = flag(default=False, help="a name of topicd's own is meant")
    replace: bool = flag(default=False, help="fields that are not given go back to their defaults")


class TopicState(
    Request,
    op=Op.STATE,
    right="read",
    answer="topic, topic_id, head_seq, earliest_seq, next_seq, evict_floor, count, bytes, last_write_ts, last_read_ts, "
    "effective_priority, config, segments, stored_seq, settled_seq (up to there nothing belongs to an open commit), "
    "open_commits (of which something is published), lost [[first, last]] (see FORGIVE_GAP; the first 64), "
    "queue {ready, in_flight, dead_lettered} (of queues)",
):
    topic: str = topic_name()
    touch: bool = flag(default=True, help="counts as a read")


class ListTopics(
    Request,
    op=Op.LIST,
    answer="topics [{topic, topic_id, head_seq, earliest_seq, count, bytes, durability, type, settled_seq, "
    "effective_priority}], next (name to continue after, or nil)",
):
    """Each shard lists its own."""

    prefix: str = text(limits.PATTERN_MAX, default="")
    after: str | None = text(limits.PATTERN_MAX, default=None, help="names behind this one")
    limit: int = number(1, limits.LIST_PAGE_MAX, default=limits.LIST_PAGE_DEFAULT)
    internal: bool = flag(default=False, help="topicd's own, too")


class DeleteTopic(Request, op=Op.DELETE_TOPIC, right="delete", changes=True, answer="topic_id, routers_removed [name]"):
    """With all routers from and to it, in one step."""

    topic: str = topic_name()
    if_empty: bool = flag(default=False)


class Totals(
    Request,
    op=Op.TOTALS,
    answer="topics, classes {durability: topics}, records, bytes, queue_topics",
):
    """Of the topics of this shard that the connection may see; topicd's own are not counted."""


class ForgiveGap(Request, op=Op.FORGIVE_GAP, right="admin", changes=True, answer="topic_id, forgiven [[first, last]]"):
    """What a loss of power may have taken, and somebody knows of, is told to no reader any more."""

    topic: str = topic_name()
    first_seq: int = number(1, MAX_SEQ)
    last_seq: int = number(1, MAX_SEQ)


class SyncTopic(Request, op=Op.SYNC_TOPIC, right="read", answer="topic_id, head_seq"):
    """Answered when everything up to the head of now is on the disk; of a topic that is never stored, at once."""

    topic: str = topic_name()


# ---- records ----


class DeleteRecords(
    Request,
    op=Op.DELETE_RECORDS,
    right="delete",
    changes=True,
    answer="deleted, deleted_bytes, examined, earliest_seq, head_seq, count, bytes",
):
    """At least one of before_seq and match."""

    topic: str = topic_name()
    before_seq: int | None = number(0, MAX_SEQ, default=None)
    match: TagMatch | None = tag_match()


class FetchFilter(Message):
    """The map behind the fixed fields of FETCH, with the flag FILTER."""

    match: TagMatch | None = tag_match()
    nodes: tuple[bytes, ...] = nodes(help="never to be received")
    from_ts: int | None = number(0, MAX_SEQ, default=None, help="ms; overrides from_seq")
    epoch: int | None = number(0, MAX_U64, default=None, help="topic id that the cursor belongs to")
    committed: bool = flag(default=False, help="nothing of a commit before it is closed")


class ProducerState(
    Request,
    op=Op.PRODUCER,
    right="write",
    answer="topic_id, expected (the number behind its last batch that is stored; 1 if it is not known)",
):
    topic: str = topic_name()
    producer_id: int = number(1, MAX_U64)


class ReleaseProducer(Request, op=Op.RELEASE_PRODUCER, right="write", answer="topic_id, expected"):
    """A lasting producer is like any other from now on."""

    topic: str = topic_name()
    producer_id: int = number(1, MAX_U64)


# ---- commits ----


class OpenCommit(
    Request,
    op=Op.OPEN_COMMIT,
    right="write",
    changes=True,
    answer="topic_id, expected (see PRODUCER), first_no, max_records, max_bytes (of one batch), max_inflight_bytes",
):
    """Hold room for what this producer is about to publish; again: for the rest of it. topic_full: there is none."""

    topic: str = topic_name()
    producer_id: int = number(1, MAX_U64)
    first_no: int = number(0, MAX_SEQ, default=0, help="number of its first batch; 0: the one that is expected")
    records: int = number(0, MAX_SEQ)
    bytes: int = number(0, MAX_SEQ, help="without framing")
    hold_ms: int = number(1, limits.COMMIT_HOLD_MS_MAX, help="how long, from the last batch on")


class CloseCommit(Request, op=Op.CLOSE_COMMIT, right="write", changes=True, answer="topic_id, records"):
    """All of it is published, or nothing will be."""

    topic: str = topic_name()
    producer_id: int = number(1, MAX_U64)
    first_no: int = number(1, MAX_SEQ)


class AbandonCommit(
    Request,
    op=Op.ABANDON_COMMIT,
    right="delete",
    changes=True,
    answer="topic_id, records (that were published), seqs [[first, last]], deleted",
):
    """Nothing more is taken for it; its producer goes on behind a number that nobody has used."""

    topic: str = topic_name()
    producer_id: int = number(1, MAX_U64)
    first_no: int = number(1, MAX_SEQ)
    take_back: bool = flag(default=True, help="delete what was published of it")


# ---- subscriptions ----


class SubscribedTopic(Message):
    topic: str = topic_name()
    from_seq: int = number(0, MAX_SEQ, default=0)
    from_ts: int | None = number(0, MAX_SEQ, default=None)
    tail: bool = flag(default=False)
    epoch: int | None = number(0, MAX_U64, default=None)


class Subscribe(
    Request,
    op=Op.SUBSCRIBE,
    answer="topics [{topic, topic_id, from_seq, head_seq, derived?}], then PUSH and NOTICE with the same request id",
):
    """At least one of topics and pattern; it needs the right to read each of the topics."""

    topics: tuple[SubscribedTopic, ...] = maps(SubscribedTopic, limits.SUBSCRIPTION_TOPICS_MAX)
    pattern: str = text(limits.PATTERN_MAX, default="")
    credit: int = number(1, CREDIT_MAX, default=MIB, help="bytes that may be pushed")
    match: TagMatch | None = tag_match()
    nodes: tuple[bytes, ...] = nodes(help="never to be received")
    from_seq: int = number(0, MAX_SEQ, default=0, help="of topics that the pattern means")
    from_ts: int | None = number(0, MAX_SEQ, default=None)
    tail: bool = flag(default=False, help="of topics that the pattern means, only what comes")
    epoch: int | None = number(0, MAX_U64, default=None)
    committed: bool = flag(default=False, help="nothing of a commit before it is closed")
    progress: bool = flag(default=False, help="a push without records where none passed: how far it has looked")
    wait: bool = flag(default=False, help="topics without an epoch that do not exist are waited for, not refused")
    consumer: str = text(limits.TOPIC_NAME_MAX, default="", help="read the one topic as this consumer, nobody else may")
    holder: int = number(
        0, MAX_U64, default=0, help="chosen by who reads: a second connection of it replaces the first"
    )
    takeover: bool = flag(default=False, help="replace whoever reads as that consumer")


class Unsubscribe(Request, op=Op.UNSUBSCRIBE):
    subscription: int = number(0, 0xFFFF_FFFF, help="request id of the SUBSCRIBE")


# ---- named consumers ----


class OpenConsumer(Request, op=Op.CONSUMER_OPEN, right="consume", changes=True, answer=f"{_ROW}, created"):
    """One that exists keeps its place."""

    topic: str = topic_name()
    name: str = consumer_name()
    start: tuple[str, int] | None = start(help="default: earliest")


class AckConsumer(Request, op=Op.CONSUMER_ACK, right="consume", changes=True, answer=_ROW):
    """A seq below the present one changes nothing, one above the head is a conflict."""

    topic: str = topic_name()
    name: str = consumer_name()
    seq: int = number(0, MAX_SEQ, help="everything up to it is done")


class ResetConsumer(Request, op=Op.CONSUMER_RESET, right="consume", changes=True, answer=_ROW):
    topic: str = topic_name()
    name: str = consumer_name()
    start: tuple[str, int] | None = start(help="default: earliest")


class RemoveConsumer(Request, op=Op.CONSUMER_REMOVE, right="consume", changes=True, answer="name"):
    topic: str = topic_name()
    name: str = consumer_name()


class ConsumerState(Request, op=Op.CONSUMER_STATE, right="read", answer=_ROW):
    topic: str = topic_name()
    name: str = consumer_name()


class ListConsumers(Request, op=Op.CONSUMER_LIST, right="read", answer=f"consumers [{{{_ROW}}}] by name"):
    topic: str = topic_name()


# ---- routers: asked of the shard that owns the topic topicd.routers ----

_OPTIONS = "source, dest, preserve_node, preserve_tag, filter, allow_cycle, guarantee, sample, set_tag, set_node"
_PROGRESS = (
    "forwarded_total, cursor, lag, lag_ms, waiting (nil, or why it stands still), "
    "kind (derived, logged, or nil as long as that is not decided), why (copies are logged)"
)


class CreateRouter(Request, op=Op.ROUTER_CREATE, changes=True, answer=f"router, created, {_OPTIONS}"):
    """Records that come to source from now on are copied to dest. Again: other options, but the same way. It needs the
    right `admin` for both topics; both are created if they are missing."""

    router: str = router_name()
    source: str = topic_name()
    dest: str = topic_name()
    create_dest: bool = flag(default=True, help="false: topic_not_found if there is none")
    preserve_node: bool = flag(default=True)
    preserve_tag: bool = flag(default=True)
    filter: TagMatch | None = tag_match(help="only these are copied")
    allow_cycle: bool = flag(default=False, help="records may come back; they go on 8 times")
    guarantee: str = text(16, default="at_least_once", help="or exactly_once: each copy says what it is a copy of")
    sample: int = number(1, 1 << 32, default=1, help="one of so many, chosen by a hash")
    set_tag: str | None = text(limits.TEMPLATE_MAX, default=None, help="tag of the copies: {tag}, {node}, {source}")
    set_node: str | None = text(limits.TEMPLATE_MAX, default=None, help="node of the copies, likewise")


class GetRouter(Request, op=Op.ROUTER_GET, answer=f"router, {_OPTIONS}, {_PROGRESS}"):
    """With the right `read` for both topics. What was acknowledged in source before has its copy."""

    router: str = router_name()


class ListRouters(
    Request,
    op=Op.ROUTER_LIST,
    answer=f"routers [{{router, {_OPTIONS}, {_PROGRESS}}}] by name (the latter if its shard answers), "
    "next (name to continue after, or nil)",
):
    prefix: str = text(limits.PATTERN_MAX, default="")
    source: str | None = text(limits.PATTERN_MAX, default=None, help="only from this topic")
    dest: str | None = text(limits.PATTERN_MAX, default=None, help="only to this topic")
    after: str | None = text(limits.PATTERN_MAX, default=None, help="names behind this one")
    limit: int = number(1, limits.LIST_PAGE_MAX, default=limits.LIST_PAGE_DEFAULT)


class DeleteRouter(Request, op=Op.ROUTER_DELETE, changes=True, answer="router, deleted"):
    """With the right `delete` for both topics. Copies that are made stay."""

    router: str = router_name()


# ---- routers, between delivery shards ----


class RoutersOf(Request, op=Op.ROUTERS_OF, right="read", answer="from [router], to [router]"):
    """Of a topic; asked of any shard."""

    topic: str = topic_name()


class SourceHead(
    Request,
    op=Op.SOURCE_HEAD,
    right="read",
    answer="topic_id, head_seq, durability, logged (why copies of its records are logged, or empty)",
):
    """How far a source has come."""

    topic: str = topic_name()
    synced: bool = flag(default=False, help="answered when all of that is durable")


class RouterProgress(Request, op=Op.ROUTER_PROGRESS, answer=f"routers {{id: {{{_PROGRESS}}}}} of those that run here"):
    """Asked of the shard of their destinations, by shards only."""

    routers: tuple[int, ...] = numbers(1, MAX_SEQ, limits.LIST_PAGE_MAX, help="their ids")
    fresh: bool = flag(default=False, help="answered when what their sources hold now has its copies")


class ApplyRouters(Request, op=Op.ROUTERS_APPLY, answer="applied"):
    """Answered when this shard runs what the definitions up to this seq say. Asked by shards only."""

    topic_id: int = number(1, MAX_U64, help="of topicd.routers")
    up_to: int = number(0, MAX_SEQ)


class LogCopies(Request, op=Op.ROUTERS_LOG, changes=True, answer=""):
    """Destinations of these routers are logged from now on; answered when that is durable. Asked of their shard, by
    shards only."""

    routers: tuple[int, ...] = numbers(1, MAX_SEQ, limits.LIST_PAGE_MAX, help="their ids")
    why: str = text(256)


class RoutersPassed(Request, op=Op.ROUTERS_PASSED, answer=""):
    """So far these routers have come for good: their sources may let go of what lies before. Told by shards only."""

    routers: tuple[int, ...] = numbers(1, MAX_SEQ, limits.LIST_PAGE_MAX, help="their ids")
    cursors: tuple[int, ...] = numbers(0, MAX_SEQ, limits.LIST_PAGE_MAX, help="one of each")


class ForgetRouters(Request, op=Op.ROUTERS_FORGET, right="delete", changes=True, answer="removed [router]"):
    """A topic is about to be deleted: its routers go. Asked by shards only."""

    topic: str = topic_name()
    topic_id: int = number(1, MAX_U64)


# ---- queues ----

_COUNTERS = "ready, in_flight"


class JobOptions(Message):
    """Of jobs when they are published: behind the flag OPTIONS of an APPEND to a queue stands a list of [index of the
    first record in the batch, how many records, map of these fields]. Stored with the jobs: both or neither."""

    delay_ms: int | None = number(0, limits.READY_MS_MAX, default=None, help="not before so much from now")
    ready_at: int | None = number(0, MAX_SEQ, default=None, help="ms; not before that time")
    priority: int = number(0, limits.PRIORITY_MAX, default=limits.PRIORITY_DEFAULT, help="9 goes first")
    group: str = text(limits.GROUP_MAX, default="", help="groups are served in turn, each within its limits")
    unique: str = text(limits.UNIQUE_MAX, default="", help="a second job with this key is none; alone in its batch")
    until: str = choice("done", "start", "time", default="done", help="how long the key is held")
    unique_ms: int | None = number(1, limits.READY_MS_MAX, default=None, help="for until: time")
    on_conflict: str = choice(
        "drop", "replace", "reschedule", default="drop", help="of a job that waits; one that runs stays as it is"
    )


class Nack(
    Request,
    op=Op.NACK,
    right=("consume", "write"),
    changes=True,
    answer=f"topic_id, nacked, skipped [seqs], dead [seqs that go to the dead letters], {_COUNTERS}",
):
    """Give jobs back. release: not the job's fault, the delivery does not count; fail: it counts, and the queue's
    backoff says when it comes again unless delay_ms does; dead: to the dead letters at once."""

    topic: str = topic_name()
    seqs: tuple[int, ...] = numbers(1, MAX_SEQ, limits.CLAIM_MAX)
    leases: tuple[int, ...] = numbers(
        0, MAX_U64, limits.CLAIM_MAX, default=(), help="one for each seq, 0: not checked; empty: none is"
    )
    node: str | None = node(default=None, help="who holds them; nil: any, and every lease is given")
    kind: str = choice("release", "fail", "dead", default="fail")
    delay_ms: int | None = number(0, limits.DELAY_MS_MAX, default=None, help="claimable again so much from now")
    reason: str = text(limits.REASON_MAX, default="", help="kept with the job")


class Extend(
    Request,
    op=Op.EXTEND,
    right=("consume", "write"),
    changes=True,
    answer="topic_id, extended, skipped [seqs that are not held any more], deadlines [[seq, ms]]",
):
    """The deadline becomes now + lease_ms. An expired lease cannot be extended."""

    topic: str = topic_name()
    seqs: tuple[int, ...] = numbers(1, MAX_SEQ, limits.CLAIM_MAX)
    leases: tuple[int, ...] = numbers(0, MAX_U64, limits.CLAIM_MAX, default=(), help="as in NACK")
    node: str | None = node(default=None, help="as in NACK")
    lease_ms: int = number(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)


class Work(
    Request,
    op=Op.WORK,
    right=("consume", "write"),
    answer="topic_id, max, lease_ms; then JOBS with the same request id, each like the answer to CLAIM",
):
    """Jobs are pushed while fewer than max of this worker are leased and not expired; ACK, NACK and expiry make room.
    When the connection ends, what it still holds is released at once."""

    topic: str = topic_name()
    node: str = node(help="the worker's name")
    max: int = number(1, limits.CLAIM_MAX, default=1)
    lease_ms: int | None = number(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX, default=None, help="nil: the queue's")


class StopWork(Request, op=Op.STOP_WORK, answer="released"):
    """No more jobs. What was pushed stays leased until it is acknowledged, released or the connection ends."""

    work: int = number(0, 0xFFFF_FFFF, help="request id of the WORK")
    release: bool = flag(default=False, help="and give back at once what it holds")


class QueueState(
    Request,
    op=Op.QUEUE_STATE,
    right="read",
    answer=f"topic, topic_id, {_COUNTERS}, delayed, kept (done and still readable), dead_lettered, acked, failed, "
    "released, expired (all five since creation), workers, claims (that wait), paused (nil, or {by: user or breaker, "
    "reason, since}), draining, oldest_ready_ts, priorities {priority: ready}, groups (that have jobs), unique_keys, "
    "config",
):
    topic: str = topic_name()


class QueuePeek(
    Request,
    op=Op.QUEUE_PEEK,
    right="read",
    answer="topic_id, jobs [{seq, state, deliveries, priority, group, unique, ready_at, node, lease, deadline, reason, "
    "first_ts, last_ts}: what there is of these], frames (their records, in that order), next (seq to go on behind, or "
    "nil)",
):
    """Jobs as they are; nothing is taken."""

    topic: str = topic_name()
    state: str = choice("any", "ready", "delayed", "in_flight", "done", default="any")
    from_seq: int = number(0, MAX_SEQ, default=0, help="behind this seq")
    limit: int = number(1, limits.CLAIM_MAX, default=100)


class QueueWhy(
    Request,
    op=Op.QUEUE_WHY,
    right="read",
    answer="seq, state (ready, delayed, in_flight, done, dead, gone, unknown), because [sentences], and what a job of "
    "QUEUE_PEEK says",
):
    """Why a job does not run, or without a seq: why the queue's next one does not."""

    topic: str = topic_name()
    seq: int | None = number(1, MAX_SEQ, default=None)


class PauseQueue(Request, op=Op.QUEUE_PAUSE, right="admin", changes=True, answer="topic_id, paused, draining"):
    """Nothing is handed out until it is resumed; jobs can be published and acknowledged."""

    topic: str = topic_name()
    reason: str = text(limits.REASON_MAX, default="")


class ResumeQueue(Request, op=Op.QUEUE_RESUME, right="admin", changes=True, answer="topic_id, paused, draining"):
    """Neither paused nor draining, whoever began it."""

    topic: str = topic_name()


class DrainQueue(Request, op=Op.QUEUE_DRAIN, right="admin", changes=True, answer="topic_id, paused, draining"):
    """Nothing more can be published; what is there is handed out."""

    topic: str = topic_name()
    reason: str = text(limits.REASON_MAX, default="")


class Redrive(
    Request,
    op=Op.REDRIVE,
    right="delete",
    changes=True,
    answer="topic_id, redriven, discarded, skipped [seqs that are no dead letters of the queue, or gone], next (seq to "
    "go on behind, or nil)",
):
    """Dead letters back to the queue that they came from, each once. Asked of the shard of the dead-letter topic."""

    topic: str = topic_name(help="the dead letters")
    queue: str = text(255, default="", help="only those of this queue")
    seqs: tuple[int, ...] = numbers(1, MAX_SEQ, limits.CLAIM_MAX, default=(), help="only these; empty: all")
    from_seq: int = number(0, MAX_SEQ, default=0, help="behind this seq")
    limit: int = number(1, limits.CLAIM_MAX, default=limits.CLAIM_MAX)
    discard: bool = flag(default=False, help="delete them instead")


_SCHEDULE = "name, schedule, timezone, data, tag, priority, group, next_ts, last_ts"


class AddCron(Request, op=Op.CRON_ADD, right="admin", changes=True, answer=f"topic_id, created, {_SCHEDULE}"):
    """A job at each time that the schedule names; one with that name is replaced."""

    topic: str = topic_name()
    name: str = consumer_name()
    schedule: str = text(128, help="five fields: minute hour day month weekday")
    timezone: str = text(64, default="UTC")
    data: bytes = anything(default=b"", help="of the job, as bytes")
    tag: str = text(limits.MAX_TAG, default="")
    priority: int = number(0, limits.PRIORITY_MAX, default=limits.PRIORITY_DEFAULT)
    group: str = text(limits.GROUP_MAX, default="")


class RemoveCron(Request, op=Op.CRON_REMOVE, right="admin", changes=True, answer="topic_id, removed"):
    topic: str = topic_name()
    name: str = consumer_name()


class ListCron(Request, op=Op.CRON_LIST, right="read", answer=f"topic_id, schedules [{{{_SCHEDULE}}}] by name"):
    topic: str = topic_name()


# ---- channels: asked of the shard that owns the topic `topicd.channel.` with the hash of the handler behind it ----

_STATE = "channel, owner, type, config, acl {join, publish, read}, members (how many)"
_ME = "who asks; default: the token's subject, or the user of the peer's uid"


class JoinChannel(
    Request, op=Op.CHANNEL_JOIN, changes=True, answer=f"{_STATE}, created, joined (false: it was a member before)"
):
    """Whoever joins a channel that is not there makes it, and owns it."""

    channel: str = handler()
    user: str | None = user(help=_ME)


class LeaveChannel(Request, op=Op.CHANNEL_LEAVE, changes=True, answer="channel, gone (nobody is left), owner"):
    channel: str = handler()
    user: str | None = user(help=_ME)


class PublishToChannel(Request, op=Op.CHANNEL_PUBLISH, changes=True, answer="seq, deduped"):
    channel: str = handler()
    user: str | None = user(help=_ME)
    data: bytes = payload()
    key: int = number(0, MAX_SEQ, default=0, help="the same for each repetition of this message; 0: it is not repeated")


class WatchChannel(
    Request,
    op=Op.CHANNEL_WATCH,
    answer="topics [{topic, topic_id, from_seq}] (one: its log), then PUSH and NOTICE with the same request id",
):
    """As SUBSCRIBE: CREDIT and UNSUBSCRIBE as there. The node of a record is the user it is from. A NOTICE `topic`
    says that messages come from another log from now on; those with the event `channel` have a kind, and `ends` in
    the last of them."""

    channel: str = handler()
    user: str | None = user(help=_ME)
    credit: int = number(1, CREDIT_MAX, default=MIB, help="bytes that may be pushed")
    from_seq: int | None = number(0, MAX_SEQ, default=None, help="messages behind this one; default: only what comes")
    epoch: int | None = number(0, MAX_U64, default=None, help="topic id that from_seq belongs to")
    events: bool = flag(default=False, help="also who joins, leaves, comes and goes, and what is changed")


class ChannelHistory(
    Request,
    op=Op.CHANNEL_HISTORY,
    answer="messages [{seq, ts, from, data}], history_id (if one was given), first_seq, last_seq",
):
    """Of a persistent channel. From the first that is kept, if that is later; behind the last there are none."""

    channel: str = handler()
    user: str | None = user(help=_ME)
    from_seq: int = number(1, MAX_SEQ, default=1)
    limit: int = number(1, 0xFFFF_FFFF, default=limits.CHANNEL_HISTORY_MAX, help="more than 100 are 100")
    history_id: str | None = text(64, default=None, help="comes back with the answer")


class ChannelSeq(Request, op=Op.CHANNEL_SEQ, answer="first_seq, last_seq; both 0: nothing is kept"):
    channel: str = handler()
    user: str | None = user(help=_ME)


class GetChannel(
    Request, op=Op.CHANNEL_STATE, answer=f"{_STATE}, users [members behind `after`], connected [users], next (or nil)"
):
    channel: str = handler()
    user: str | None = user(help=_ME)
    after: str = text(64, default="", help="users behind this one")
    limit: int = number(0, 10_000, default=1_000, help="users in one answer")


class SetChannelAcl(Request, op=Op.CHANNEL_ACL, changes=True, answer=_STATE):
    """An empty list: everybody. The owner may in any case."""

    channel: str = handler()
    user: str | None = user(help=_ME)
    access: str = choice(*LISTS, help="the list")
    mode: str = choice("set", "allow", "remove", default="set")
    users: tuple[str, ...] = users()


class ConfigureChannel(Request, op=Op.CHANNEL_CONFIG, changes=True, answer=_STATE):
    channel: str = handler()
    user: str | None = user(help=_ME)
    config: dict[str, Any] | None = config(help="the fields to change; none: only told")


class SetChannelType(Request, op=Op.CHANNEL_TYPE, changes=True, answer=_STATE):
    """To fifo, which needs a persistent channel; there is no way back."""

    channel: str = handler()
    user: str | None = user(help=_ME)
    type: str = choice(*TYPES)


class DeleteChannel(Request, op=Op.CHANNEL_DELETE, changes=True, answer="channel"):
    channel: str = handler()
    user: str | None = user(help=_ME)


class PushToChannel(Request, op=Op.CHANNEL_PUSH, changes=True, answer="seq, deduped, depth"):
    """By the owner of a channel of type fifo."""

    channel: str = handler()
    user: str | None = user(help=_ME)
    data: bytes = payload()
    key: int = number(0, MAX_SEQ, default=0, help="the same for each repetition of this element; 0: it is not repeated")


class PopFromChannel(Request, op=Op.CHANNEL_POP, changes=True, answer="seq, ts, from, data"):
    """At most once: an element whose answer is lost is gone."""

    channel: str = handler()
    user: str | None = user(help=_ME)


class ClearChannel(Request, op=Op.CHANNEL_CLEAR, changes=True, answer="cleared, next_seq"):
    """Everything in a channel of type fifo is given up; what needs_recovery is in order again."""

    channel: str = handler()
    user: str | None = user(help=_ME)


class ListChannels(
    Request,
    op=Op.CHANNEL_LIST,
    answer="channels [{channel, owner, type, persist, members, connected (how many)}], "
    "next (handler to continue after, or nil)",
):
    """Each shard lists its own."""

    prefix: str = text(limits.HANDLER_MAX, default="")
    after: str = text(limits.HANDLER_MAX, default="", help="handlers behind this one")
    limit: int = number(1, limits.LIST_PAGE_MAX, default=limits.LIST_PAGE_DEFAULT)
    member: str | None = user(help="only those it is a member of")


class ChannelSlots(Request, op=Op.CHANNEL_SLOTS, answer="channels [handlers] (of the user, in this shard)"):
    """Between shards: what a user has room for. reserve and release go to the user's home shard."""

    action: str = choice("reserve", "release", "channels")
    user: str | None = user()
    channel: str = text(limits.HANDLER_MAX, default="")


# ---- beside the protocol ----


class Segments(Message):
    """What is asked on the history socket."""

    topic_id: int = number(0, MAX_U64)
    from_seq: int = number(0, MAX_SEQ, default=0)
    segments: int = number(1, limits.SEGMENTS_MAX, default=8)


class Debug(Request, op=Op.DEBUG, answer="now_ms, damage, …"):
    """Only with the setting test_clock. The pressure is the supervisor's, all else a delivery shard's."""

    advance_ms: int | None = number(0, MAX_SEQ, default=None)
    set_ms: int | None = number(0, MAX_SEQ, default=None)
    checkpoint: bool = flag(default=False)
    snapshot: bool = flag(default=False)
    pressure_ppm: int | None = number(0, 1_000_000, default=None, help="millionths: the pressure from now on")
    pressure_off: bool = flag(default=False, help="it is what the shards say again")
