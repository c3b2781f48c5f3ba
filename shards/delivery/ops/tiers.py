"""Where the segments of a topic lie, and moving them at once."""

from __future__ import annotations

from topicd.ipc.protocol.messages import TierNow, TierState
from topicd.shards.delivery.sessions.call import Call, operation


@operation(TierState)
def tier_state(call: Call, want: TierState) -> None:
    tiering = call.shard.tiering
    call.answer(
        {
            **tiering.row(call.shard.catalog.get(want.topic)),
            "cold_dir": call.shard.place.settings.cold_dir,
            "trouble": tiering.trouble(),
        }
    )


@operation(TierNow)
def tier_now(call: Call, want: TierNow) -> None:
    call.shard.catalog.get(want.topic)
    call.shard.tiering.hurry()
    call.shard.snapshots.start()
    tier_state(call, TierState(topic=want.topic))
