"""Commits: several batches of one producer that become whole, or are taken back."""

from __future__ import annotations

from topicd import limits
from topicd.ipc.protocol.fields import flag, number, topic_name
from topicd.ipc.protocol.messages.declaring import Op, Request
from topicd.limits import MAX_SEQ, MAX_U64


class OpenCommit(
    Request,
    op=Op.OPEN_COMMIT,
    right="write",
    changes=True,
    answer="topic_id, expected (see PRODUCER), first_no, max_records, max_bytes (of one batch), max_inflight_bytes, "
    "schema (a digest of the topic's; empty: it has none)",
):
    """Hold room for what this producer is about to publish; again: for the rest of it. topic_full: there is none."""

    topic: str = topic_name()
    producer_id: int = number(1, MAX_U64)
    first_no: int = number(0, MAX_SEQ, default=0, help="number of its first batch; 0: the one that is expected")
    records: int = number(0, MAX_SEQ)
    bytes: int = number(0, MAX_SEQ, help="without framing")
    hold_ms: int = number(1, limits.COMMIT_HOLD_MS_MAX, help="how long, from the last batch on")
    judged: bool = flag(
        default=False,
        help="its batches are judged before it is decided and not again, whatever schema comes later; right: stage",
    )


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
