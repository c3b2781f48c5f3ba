"""What tests ask of a daemon that runs on their clock."""

from __future__ import annotations

from topicd.clock import ManualClock
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import Debug
from topicd.shards.delivery.sessions.call import Call, operation


@operation(Debug)
def debug(call: Call, want: Debug) -> None:
    """Move the clock by so much or to a time, force a checkpoint or a snapshot."""
    shard, clock = call.shard, call.shard.place.clock
    if not isinstance(clock, ManualClock):
        raise InvalidRequest("debug requests need the test clock")
    if want.pressure_ppm is not None or want.pressure_off:
        raise InvalidRequest("the pressure is the supervisor's: ask at its socket")
    if want.advance_ms is not None:
        clock.advance(want.advance_ms)
    if want.set_ms is not None:
        clock.advance(want.set_ms - clock.now_ms())
    if want.advance_ms is not None or want.set_ms is not None:
        shard.deadlines.run()
    figures = shard.figures.page()
    if want.checkpoint:
        shard.rounds.checkpoint_now()
    if want.snapshot:
        shard.snapshots.start()
    call.answer({**figures, "now_ms": clock.now_ms()})
