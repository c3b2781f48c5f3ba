"""How much work one call of a measuring loop does, and what it yields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# Name of a figure to its value in one round: {"p50": 310.0, "p99": 480.0, "rate": 3100.0}.
Figures = dict[str, float]


class Where(NamedTuple):
    """A daemon, as `connect` wants to be told; it crosses processes."""

    target: str | None = None
    token: str | None = None
    ca_file: str | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """How much work one call of a driver does."""

    size: int = 100  # payload bytes of a record
    durable: bool = False  # acknowledged after fsync
    seconds: float = 1.0  # a timed driver stops after this
    records: int = 0  # size of the stored data set, or messages to send
    batch: int = 1000  # records of one batch or fetch
    in_flight: int = 64
    steps: tuple[int, ...] = ()  # subscribers, topics or stored records, one variant each
    kind: str = ""  # what is done, in a test that does several things
