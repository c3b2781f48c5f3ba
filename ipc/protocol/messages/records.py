"""Records beside APPEND and FETCH: deleting them, what a fetch leaves out, producers, sealed segments."""

from __future__ import annotations

from topicd import limits
from topicd.ipc.protocol.fields import Message, flag, nodes, number, tag_match, topic_name
from topicd.ipc.protocol.messages.declaring import Op, Request
from topicd.limits import MAX_SEQ, MAX_U64
from topicd.model import TagMatch


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


class CutTopic(Request, op=Op.CUT_TOPIC, right="admin", changes=True, answer="deleted, last_seq (of what stays)"):
    """Delete the newest records, those behind a seq or a time; their seqs are not given out again. For restores."""

    topic: str = topic_name()
    after_seq: int | None = number(0, MAX_SEQ, default=None)
    after_ts: int | None = number(0, MAX_SEQ, default=None)


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


class Segments(Message):
    """What is asked on the history socket."""

    topic_id: int = number(0, MAX_U64)
    from_seq: int = number(0, MAX_SEQ, default=0)
    segments: int = number(1, limits.SEGMENTS_MAX, default=8)
