"""Where the segments of a topic lie, and moving them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import TierNow, TierState
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.shards.delivery.storing.tier_plan import kept
from topicd.shards.delivery.topic.topic import Topic
from topicd.shards.storage.segment.info import Lies, SegmentInfo

if TYPE_CHECKING:
    from topicd.shards.delivery.parts import Parts

_NAMES = {Lies.HERE: "hot", Lies.PACKED: "packed", Lies.COLD: "cold", Lies.COLD_PACKED: "cold_packed"}


@operation(TierState)
def tier_state(call: Call, want: TierState) -> None:
    call.answer(row_of(call.shard, call.shard.catalog.get(want.topic)))


@operation(TierNow)
def tier_now(call: Call, want: TierNow) -> None:
    topic = call.shard.catalog.get(want.topic)
    if not topic.policy.tiered:
        raise InvalidRequest(f"the segments of {want.topic} stay where they are: {topic.policy.why_not_tiered}")
    call.shard.tiering.hurry(topic)
    call.shard.snapshots.start()
    tier_state(call, TierState(topic=want.topic))


def row_of(shard: Parts, topic: Topic) -> dict[str, Any]:
    by_place: dict[Lies, list[SegmentInfo]] = {lies: [] for lies in Lies}
    for info in topic.contents.segments:
        by_place[info.lies].append(info)
    settings, tiering = shard.place.settings, shard.tiering
    keep, waiting = kept(settings, topic), tiering.wanted(topic)
    return {
        "topic": topic.name,
        "segments": {_NAMES[lies]: len(found) for lies, found in by_place.items()},
        "bytes": {_NAMES[lies]: sum(info.data_bytes for info in found) for lies, found in by_place.items()},
        "file_bytes": {
            _NAMES[lies]: sum(info.file_bytes or info.data_bytes for info in found) for lies, found in by_place.items()
        },
        "waiting": len(waiting),
        "waiting_from_seq": waiting[0][0].first_seq if waiting else 0,
        "tiered": topic.policy.tiered,
        "hot_retain_segments": keep.segments,
        "hot_retain_bytes": keep.bytes,
        "compress": "zstd" if keep.packed else "none",
        "cold_through_seq": max(
            (info.last_seq for info in by_place[Lies.COLD] + by_place[Lies.COLD_PACKED]), default=0
        ),
        "unmovable": tiering.unmovable(topic),
        "cold_dir": settings.cold_dir,
        "trouble": tiering.trouble(),
    }
