"""A schedule of a queue: which job it makes, and when it did last."""

from __future__ import annotations

from typing import Any, NamedTuple

from topicd.limits import KIB

CRONS_MAX = 64  # of a queue
CRON_DATA_MAX = 8 * KIB  # so that all of them fit an answer


class Cron(NamedTuple):
    name: str
    schedule: str
    timezone: str
    data: bytes
    tag: str
    priority: int
    group: str
    next_ms: int  # when it fires next
    last_ms: int  # the time for which it fired last; when it was added, if it has not

    def to_row(self) -> list[Any]:
        return list(self)

    @classmethod
    def from_row(cls, row: Any) -> Cron:
        return cls(*row)
