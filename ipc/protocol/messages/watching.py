"""Subscriptions: records are pushed while there is credit."""

from __future__ import annotations

from topicd import limits
from topicd.ipc.protocol.fields import Message, flag, maps, nodes, number, tag_match, text, topic_name
from topicd.ipc.protocol.messages.declaring import Op, Request
from topicd.limits import MAX_SEQ, MAX_U64, MIB
from topicd.model import TagMatch

CREDIT_MAX = 1 << 30


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
