"""Seqs promised ahead. Promise: a seq that was acknowledged is never handed out again, even when power loss takes the
unsynced tail of a `disk` topic: the log holds a synced mark above every seq that was given out.
"""

from __future__ import annotations

from topicd.errors import TopicdError
from topicd.frames import FrameType
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.delivery.writing.log import Log


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
