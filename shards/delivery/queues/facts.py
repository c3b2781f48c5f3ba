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


class Totals(NamedTuple):
    """Since creation."""

    acked: int = 0
    dead: int = 0
    failed: int = 0
    released: int = 0
    expired: int = 0
