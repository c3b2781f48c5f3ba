"""How a channel is opened: every choice with its default and its bounds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, TypedDict, get_args

from topicd.errors import InvalidRequest
from topicd.filechannel.arguments import at_least, one_of, whole, yes_or_no
from topicd.limits import KIB, MIB

Durability = Literal["buffered", "os", "fsync"]
Full = Literal["block", "refuse", "drop_oldest"]

SEGMENT_BYTES = 64 * MIB
SEGMENT_MIN = 4 * KIB
FLUSH_INTERVAL_S = 0.0001
FLUSH_MIN_S = 0.000001
MAX_BYTES_MIN = 4 * SEGMENT_MIN
MAX_UNACKED = 100_000
OF_BYTES = " of bytes"


class Options(TypedDict, total=False):
    writer: bool
    durability: Durability
    segment_bytes: int
    max_bytes: int | None
    full: Full
    compress: bool
    flush_interval: float


@dataclass(frozen=True, slots=True)
class Settings:
    writer: bool = True  # False: receivers only, beside a writer in another process
    # buffered: a kill loses what was sent in the last flush_interval; os: survives the process; fsync: the power.
    durability: Durability = "os"
    segment_bytes: int = SEGMENT_BYTES  # a file is cut before the first message behind this
    max_bytes: int | None = None  # of all segments together
    full: Full = "block"  # what a send does when they are reached
    compress: bool = False  # sealed segments, except the newest of them
    flush_interval: float = FLUSH_INTERVAL_S  # seconds, of buffered

    def __post_init__(self) -> None:
        one_of("durability", self.durability, get_args(Durability))
        one_of("full", self.full, get_args(Full))
        yes_or_no("writer", self.writer)
        yes_or_no("compress", self.compress)
        whole("segment_bytes", self.segment_bytes, OF_BYTES)
        at_least("segment_bytes", self.segment_bytes, SEGMENT_MIN)
        at_least("flush_interval", self.flush_interval, FLUSH_MIN_S)
        if self.max_bytes is not None:
            whole("max_bytes", self.max_bytes, OF_BYTES)
            at_least("max_bytes", self.max_bytes, MAX_BYTES_MIN)
        self._refuse_without_effect()

    def _refuse_without_effect(self) -> None:
        changed = {field.name for field in fields(self) if getattr(self, field.name) != field.default}
        if not self.writer and (idle := sorted(changed - {"writer", "durability"})):
            raise InvalidRequest(f"{', '.join(idle)} cannot be given with writer=False: the writer decides that")
        if self.full != "block" and self.max_bytes is None:
            raise InvalidRequest(f"full is {self.full!r}, which says nothing without max_bytes")
        if "flush_interval" in changed and self.durability != "buffered":
            raise InvalidRequest(f"flush_interval says nothing with durability {self.durability}, only with buffered")

    @property
    def cut_bytes(self) -> int:
        """A bounded channel needs several files: only whole ones can be given back."""
        if self.max_bytes is None:
            return self.segment_bytes
        return min(self.segment_bytes, self.max_bytes // 4)

    @property
    def is_synced(self) -> bool:
        return self.durability == "fsync"


def settings_of(options: dict[str, Any]) -> Settings:
    known = {field.name for field in fields(Settings)}
    if unknown := sorted(options.keys() - known):
        raise InvalidRequest(f"unknown option {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return Settings(**options)
