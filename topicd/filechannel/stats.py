"""Figures of a channel, as they are at the moment of asking."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReceiverStats:
    offset: int | None  # everything before it was acknowledged; None: both slots are damaged
    read_offset: int | None  # behind the last that was handed out, 2**64 - 1 before the first; None: not open here
    unacked: int | None  # None: not open here
    lag_bytes: int | None  # up to the end of the channel
    temporary: bool


@dataclass(frozen=True, slots=True)
class Stats:
    begin_offset: int  # of the oldest message that is there
    write_offset: int  # behind the newest that was taken
    flush_offset: int  # behind the newest that receivers can see
    disk_bytes: int  # of all segments
    segments: int
    compressed: int  # segments
    receivers: dict[str, ReceiverStats] = field(default_factory=dict)
