"""Seqs promised ahead. Promise: a seq that was acknowledged is never handed out again, even when power loss takes the
unsynced tail of a `disk` topic: the log holds a synced mark above every seq that was given out. A topic at rest gives
back what it does not use, so that after a loss of power nobody thinks that it was given out.
"""

from __future__ import annotations

from topicd.errors import TopicdError
from topicd.frames import FrameType
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.durability import Need
from topicd.shards.delivery.writing.log import Log

_REST_MS = 5_000  # since the last write


def reserve_seqs(log: Log, topic: Topic) -> None:
    """Keep a mark well ahead of the head; a batch that overtakes it waits for the sync (see Topic.need_for)."""
    if not topic.policy.reserves:
        return
    seqs = topic.seqs
    wanted = seqs.next_mark()
    if not wanted:
        return

    def stored() -> None:
        seqs.mark_stored(wanted)

    def refused(error: TopicdError) -> None:
        seqs.mark_failed()

    log.change(
        topic,
        FrameType.HEAD_WATERMARK,
        {"reserved": wanted},
        seq=wanted,
        need=topic.policy.mark_need,
        applied=stored,
        refused=refused,
        numbered=True,
    )


def return_seqs(log: Log, topic: Topic, now_ms: int) -> bool:
    """If the topic is at rest: a synced mark that says where it stands. Every record of it stands before the mark in
    the log, or in a synced segment. True if there was something to give back."""
    seqs = topic.seqs
    if not topic.policy.waits_for_marks or seqs.reserved <= seqs.head or seqs.reserving != seqs.reserved:
        return False
    if topic.flight.under_way or seqs.head != seqs.visible:
        return False
    if now_ms - max(topic.last_write_ms, topic.created_ms) < _REST_MS:
        return False
    seqs.return_marks()
    body = {"reserved": seqs.head, "back": True}
    log.change(topic, FrameType.HEAD_WATERMARK, body, seq=seqs.head, need=Need.SYNCED, numbered=True)
    return True
