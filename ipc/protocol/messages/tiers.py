"""Where the segments of a topic lie, and moving them at once."""

from __future__ import annotations

from topicd.ipc.protocol.fields import topic_name
from topicd.ipc.protocol.messages.declaring import Op, Request

__all__ = ["TierNow", "TierState"]


class TierState(
    Request,
    op=Op.TIER_STATE,
    right="read",
    answer="topic, tiered, segments, bytes and file_bytes {hot, packed, cold, cold_packed}, waiting, "
    "waiting_from_seq, unmovable, hot_retain_segments, hot_retain_bytes, compress, cold_through_seq, cold_dir, trouble",
):
    """Where the segments of a topic lie. `waiting`: segments that do not lie where they should yet,
    `waiting_from_seq`: where the oldest of them begins, 0 without one. `trouble`: why
    none of this shard moves, or the cold directory cannot be read; empty if all is well."""

    topic: str = topic_name()


class TierNow(Request, op=Op.TIER_NOW, right="admin", answer="as TIER_STATE"):
    """Move what is to be moved without waiting for the next snapshot: one is taken, and another one for what was not
    sealed yet. The answer comes at once. Refused for topics whose segments stay where they are."""

    topic: str = topic_name()
