"""Topics: made, configured, listed, removed."""

from __future__ import annotations

from typing import Any

from topicd import limits
from topicd.ipc.protocol.fields import choice, config, flag, number, text, topic_name
from topicd.ipc.protocol.messages.declaring import Op, Request
from topicd.limits import MAX_SEQ


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
    "compacted {through_seq, deleted, left (seqs)} (where compact is set), "
    "queue {ready, in_flight, dead_lettered} (of queues), files? [{first_seq, last_seq, data_bytes, dead_bytes, "
    "first_ts, last_ts, sealed, cold, packed}] (the last 200)",
):
    topic: str = topic_name()
    touch: bool = flag(default=True, help="counts as a read")
    files: bool = flag(default=False, help="with its segments, one by one")


class ListTopics(
    Request,
    op=Op.LIST,
    answer="topics [{topic, topic_id, head_seq, earliest_seq, count, bytes, durability, type, settled_seq, "
    "effective_priority, last_write_ts, consumers, lag (of the consumer furthest behind)}], next (name to continue "
    "after, or nil)",
):
    """Each shard lists its own."""

    prefix: str = text(limits.PATTERN_MAX, default="")
    after: str | None = text(limits.PATTERN_MAX, default=None, help="names behind this one")
    limit: int = number(1, limits.LIST_PAGE_MAX, default=limits.LIST_PAGE_DEFAULT)
    internal: bool = flag(default=False, help="topicd's own, too")
    only: str = choice("any", "queues", "consumed", default="any", help="queues; those with named consumers")


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
