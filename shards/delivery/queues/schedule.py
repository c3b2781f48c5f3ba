"""Five fields that name times: minute, hour, day of the month, month, day of the week. Promise: what cannot be read, or
never comes, is refused with the field and the reason; a time that a clock change repeats or leaves out fires once,
unless it is every hour's.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from topicd.errors import InvalidRequest

_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_DAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
_FIELDS: tuple[tuple[str, int, int, list[str]], ...] = (
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    ("day", 1, 31, []),
    ("month", 1, 12, _MONTHS),
    ("weekday", 0, 7, _DAYS),
)
_SHORT = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_DAYS_AHEAD = 366 * 8 + 2  # the 29th of February may be eight years away
_MINUTE_MS = 60_000


class Schedule(NamedTuple):
    minutes: list[int]
    hours: list[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]  # 0: Sunday
    any_hour: bool
    any_day: bool
    any_weekday: bool
    zone: ZoneInfo

    def is_day(self, day: date) -> bool:
        """If both the day and the weekday are named, either will do."""
        if day.month not in self.months:
            return False
        of_month, of_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return of_month and of_week
        return of_month or of_week

    def next_after(self, after_ms: int) -> int | None:
        """The first time behind this one, in ms; None: there is none in eight years."""
        after = datetime.fromtimestamp(after_ms / 1000, UTC)
        day = after.astimezone(self.zone).date() - timedelta(days=1)
        for _ in range(_DAYS_AHEAD):
            if self.is_day(day):
                found = min((at for at in self._times_of(day) if at > after), default=None)
                if found is not None:
                    return int(found.timestamp()) * 1000
            day += timedelta(days=1)
        return None

    def _times_of(self, day: date) -> Iterator[datetime]:
        for hour in self.hours:
            for minute in self.minutes:
                local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=self.zone)
                yield local.astimezone(UTC)
                if self.any_hour:
                    yield local.replace(fold=1).astimezone(UTC)


def parse(text: str, timezone: str) -> Schedule:
    try:
        zone = ZoneInfo(timezone)
    except Exception:
        raise InvalidRequest(f"timezone {timezone!r} is not known here") from None
    words = _SHORT.get(text.strip().lower(), text).split()
    if len(words) != len(_FIELDS):
        raise InvalidRequest(f"schedule {text!r} has {len(words)} fields, not minute hour day month weekday")
    found = [_field(word, *rule) for word, rule in zip(words, _FIELDS, strict=True)]
    weekdays = frozenset(day % 7 for day in found[4])
    made = Schedule(
        sorted(found[0]),
        sorted(found[1]),
        frozenset(found[2]),
        frozenset(found[3]),
        weekdays,
        words[1] == "*",
        words[2] == "*",
        words[4] == "*",
        zone,
    )
    if made.next_after(0) is None:
        raise InvalidRequest(f"schedule {text!r} names a day that never comes")
    return made


def _field(word: str, name: str, low: int, high: int, names: list[str]) -> set[int]:
    found: set[int] = set()
    for part in word.split(","):
        body, _, step_text = part.partition("/")
        step = _number(step_text, name, 1, high, []) if step_text or "/" in part else 1
        if body == "*":
            first, last = low, high
        else:
            begin, dash, end = body.partition("-")
            first = _number(begin, name, low, high, names)
            last = _number(end, name, low, high, names) if dash else (high if "/" in part else first)
        if first > last:
            raise InvalidRequest(f"schedule: {name} {part!r} runs backwards")
        found.update(range(first, last + 1, step))
    return found


def _number(text: str, name: str, low: int, high: int, names: list[str]) -> int:
    if text.lower() in names:
        return names.index(text.lower()) + (1 if names is _MONTHS else 0)
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        known = f" or {names[0]} to {names[-1]}" if names else ""
        raise InvalidRequest(f"schedule: {name} is a number from {low} to {high}{known}, not {text!r:.50}")
    return int(text)
