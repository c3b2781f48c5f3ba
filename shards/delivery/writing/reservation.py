"""Seqs promised ahead. Promise: a seq that was acknowledged is never handed out again, even when power loss takes the
unsynced tail of a `disk` topic: the log holds a synced mark above every seq that was given out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topicd.errors import TopicdError
from topicd.frames import FrameType, control_frame
from topicd.shards.delivery.writing.outlet import ControlEntry, Need

if TYPE_CHECKING:
    from topicd.shards.delivery.actor import Actor
    from topicd.shards.delivery.topic.topic import Topic

FIRST_BLOCK = 1_024
_BLOCK_MAX = 1 << 20


def reserve_seqs(actor: Actor, topic: Topic) -> None:
    """Keep a synced mark well ahead of the head; a batch that overtakes it waits for the sync (see Topic.need_for)."""
    if not (topic.reserves or topic.ephemeral) or topic.head + topic.reserve_block // 2 <= topic.reserving:
        return
    # Blocks grow with the topic's pace: a busy topic pays one sync in many batches.
    topic.reserve_block = min(max(2 * topic.reserve_block, 2 * (topic.head - topic.reserved)), _BLOCK_MAX)
    wanted = topic.reserving = topic.head + topic.reserve_block

    number = topic.begin_change()

    def confirmed() -> None:
        topic.end_change(number)
        topic.reserved = max(topic.reserved, wanted)

    def refused(error: TopicdError) -> None:
        topic.end_change(number)
        topic.reserving = topic.reserved

    body = {"reserved": wanted, "no": number}
    frame = control_frame(FrameType.HEAD_WATERMARK, topic.id, wanted, actor.clock.now_ms(), body)
    # The records of an ephemeral topic do not outlive the daemon, its seqs do: readers keep their cursors.
    need = Need.PLACED if topic.ephemeral else Need.SYNCED
    actor.submit_control(topic, frame, ControlEntry(need, confirmed, refused))
