"""Every request whose body is a map: its op, its fields with their rules, the right it needs. Promise: a client builds
its requests of these, a shard checks them by these, and the table in docs/protocol.md is made of these.

The hot ones (APPEND, the fixed part of FETCH, CREDIT) are binary layouts in wire.py.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar

from topicd import limits
from topicd.ipc.protocol import wire
from topicd.ipc.protocol.fields import (
    Message,
    anything,
    config,
    consumer_name,
    flag,
    maps,
    nodes,
    number,
    start,
    tag_match,
    text,
    topic_name,
)
from topicd.limits import MAX_SEQ, MAX_U64, MIB
from topicd.model import TagMatch

CREDIT_MAX = 1 << 30
TOKEN_MAX = 4_096


class Op(IntEnum):
    """Requests below 0x80; one for each verb. The answer to op x is x | 0x80, or ERROR. PUSH and NOTICE follow a
    SUBSCRIBE under its request id."""

    HELLO = wire.OP_HELLO
    PING = wire.OP_PING
    STATUS = wire.OP_STATUS
    OPEN = 0x10
    CONFIGURE = 0x11
    STATE = 0x12
    LIST = 0x13
    DELETE_TOPIC = 0x14
    FORGIVE_GAP = 0x15
    APPEND = wire.OP_APPEND
    FETCH = wire.OP_FETCH
    DELETE_RECORDS = 0x22
    PRODUCER = 0x23
    RELEASE_PRODUCER = 0x24
    OPEN_COMMIT = 0x25
    CLOSE_COMMIT = 0x26
    ABANDON_COMMIT = 0x27
    SUBSCRIBE = 0x30
    UNSUBSCRIBE = 0x31
    CREDIT = wire.OP_CREDIT
    CONSUMER_OPEN = 0x40
    CONSUMER_ACK = 0x41
    CONSUMER_RESET = 0x42
    CONSUMER_REMOVE = 0x43
    CONSUMER_STATE = 0x44
    CONSUMER_LIST = 0x45
    DEBUG = 0x7E
    PUSH = wire.OP_PUSH
    NOTICE = wire.OP_NOTICE
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

_ROW = "name, acked_seq, head_seq, lag, updated_ts, topic_id"


# ---- the connection ----


class Hello(
    Request,
    op=Op.HELLO,
    open_ended=True,  # another version's HELLO is answered with the version spoken here, whatever it holds
    answer="version, server, instance, role (supervisor or delivery), shard, wal_shards, delivery_shards, "
    "shards [socket paths], tcp_ports? (delivery shards), limits",
):
    version: int = anything(help="of the protocol")
    client: str = text(256, default="", help="who connects, for the log")
    token: str | None = text(TOKEN_MAX, default=None, help="over TCP")


class Ping(Request, op=Op.PING):
    """Is anybody there?"""


class Status(Request, op=Op.STATUS, answer="the processes, their state and counters"):
    """Of the supervisor only."""

    stats: bool = flag(default=True, help="with the counters of each process")


# ---- topics ----


class OpenTopic(
    Request,
    op=Op.OPEN,
    right=("read", "write"),
    changes=True,
    answer="topic_id, created, head_seq, earliest_seq",
):
    topic: str = topic_name()
    create: bool = flag(default=True, help="if there is none")
    config: dict[str, Any] | None = config(help="of the topic that is created")
    internal: bool = flag(default=False, help="a name of topicd's own is meant")


class Configure(Request, op=Op.CONFIGURE, right="admin", changes=True, answer="topic_id, created, config"):
    topic: str = topic_name()
    config: dict[str, Any] | None = config(help="the fields to change")
    create: bool = flag(default=True, help="if there is none")
    internal: bool = flag(default=False, help="a name of topicd's own is meant")


class TopicState(
    Request,
    op=Op.STATE,
    right="read",
    answer="topic, topic_id, head_seq, earliest_seq, next_seq, evict_floor, count, bytes, last_write_ts, last_read_ts, "
    "effective_priority, config, segments, stored_seq, settled_seq (up to there nothing belongs to an open commit), "
    "open_commits (of which something is published), lost [[first, last]] (see FORGIVE_GAP; the first 64)",
):
    topic: str = topic_name()
    touch: bool = flag(default=True, help="counts as a read")


class ListTopics(
    Request,
    op=Op.LIST,
    answer="topics [{topic, topic_id, head_seq, earliest_seq, count, bytes, durability, type}], next (name to continue "
    "after, or nil)",
):
    """Each shard lists its own."""

    prefix: str = text(limits.PATTERN_MAX, default="")
    after: str | None = text(limits.PATTERN_MAX, default=None, help="names behind this one")
    limit: int = number(1, limits.LIST_PAGE_MAX, default=limits.LIST_PAGE_DEFAULT)
    internal: bool = flag(default=False, help="topicd's own, too")


class DeleteTopic(Request, op=Op.DELETE_TOPIC, right="delete", changes=True, answer="topic_id"):
    topic: str = topic_name()
    if_empty: bool = flag(default=False)


class ForgiveGap(Request, op=Op.FORGIVE_GAP, right="admin", changes=True, answer="topic_id, forgiven [[first, last]]"):
    """What a loss of power may have taken, and somebody knows of, is told to no reader any more."""

    topic: str = topic_name()
    first_seq: int = number(1, MAX_SEQ)
    last_seq: int = number(1, MAX_SEQ)


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
    answer="topics [{topic, topic_id, from_seq}], then PUSH and NOTICE with the same request id",
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


# ---- beside the protocol ----


class Segments(Message):
    """What is asked on the history socket."""

    topic_id: int = number(0, MAX_U64)
    from_seq: int = number(0, MAX_SEQ, default=0)
    segments: int = number(1, limits.SEGMENTS_MAX, default=8)


class Debug(Request, op=Op.DEBUG, answer="now_ms, damage, …"):
    """Only with the setting test_clock."""

    advance_ms: int | None = number(0, MAX_SEQ, default=None)
    set_ms: int | None = number(0, MAX_SEQ, default=None)
    checkpoint: bool = flag(default=False)
    snapshot: bool = flag(default=False)
