"""`--from`: where to begin reading, as one types it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from topicd.cli.human import parse_age

RULE = "a seq (records above it), earliest, latest, a time like 2026-01-31T12:00, or an age like 15m, 2h, 1d"


class Place(click.ParamType[int | str | datetime]):
    name = "place"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str | datetime:
        if not isinstance(value, str):
            found: int | str | datetime = value
            return found
        if value in ("earliest", "latest"):
            return value
        if value.isdecimal():
            return int(value)
        age = parse_age(value)
        if age is not None:
            return datetime.now().astimezone() - age
        try:
            return datetime.fromisoformat(value).astimezone()
        except ValueError:
            self.fail(f"{value!r} is not {RULE}", param, ctx)


PLACE = Place()
