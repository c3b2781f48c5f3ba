"""What is said of jobs and of their queue, in the log and in answers."""

from __future__ import annotations

from typing import NamedTuple


class Past(NamedTuple):
    """Of a job that was handed out and is not done."""

    deliveries: int  # that ended and count
    first_ms: int
    last_ms: int
    reason: str  # of the last that gave one


class Kept(NamedTuple):
    """Neighbouring jobs that are done and readable yet, and what is the same of all of them."""

    at: int  # when they were done
    first: int
    last: int
    started: int = 0  # when they were handed out for the last time; 0: not known
    deliveries: int = 1
    group: str = ""
    reason: str = ""  # of the last delivery that failed


class Stop(NamedTuple):
    """Why nothing is handed out, or taken in."""

    by: str  # user or breaker
    reason: str
    since: int


class Totals:
    """Since creation. Never changed: there is another one when something ends."""

    __slots__ = ("acked", "dead", "expired", "failed", "released")

    def __init__(self, acked: int = 0, dead: int = 0, failed: int = 0, released: int = 0, expired: int = 0) -> None:
        self.acked = acked
        self.dead = dead
        self.failed = failed
        self.released = released
        self.expired = expired

    @property
    def row(self) -> list[int]:
        """As the log and snapshots tell of them."""
        return [self.acked, self.dead, self.failed, self.released, self.expired]

    def at_least(self, row: list[int]) -> Totals:
        """Each as high as it is in either."""
        known = self.row
        return self if row == known else Totals(*[max(a, b) for a, b in zip(known, row, strict=True)])

    def __repr__(self) -> str:
        return f"Totals{tuple(self.row)}"
