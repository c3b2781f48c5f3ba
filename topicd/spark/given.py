"""Options as Spark hands them over, typed. Promise: names count in any case, and errors name the option as the user
writes it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from topicd import values
from topicd.errors import InvalidRequest
from topicd.values import NO_LIMIT

_NEAR = 0.8  # so alike are a word and its misspellings


class Given:
    """Options by name, typed; errors name the option as the user writes it.

    The first name is the option's own, the others are aliases; giving two of them is an error.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in options.items()}

    def check_names(self, known: Iterable[str]) -> None:
        """A misspelt option would be one without effect. Spark hands over some of its own, too: they are like none of
        ours."""
        spelled = {name.lower(): name for name in known}
        for name in self._values:
            near = () if name in spelled else difflib.get_close_matches(name, spelled, 1, _NEAR)
            if near:
                raise InvalidRequest(f"option {name} is unknown; did you mean {spelled[near[0]]}?")

    def text(self, *names: str) -> str | None:
        """None when it is absent; empty counts as absent."""
        given = [name for name in names if self._values.get(name.lower())]
        if len(given) > 1:
            raise InvalidRequest(f"options {' and '.join(given)} say the same: give one of them")
        return self._values[given[0].lower()] if given else None

    def count(self, *names: str, low: int = 1, high: int = NO_LIMIT) -> int | None:
        found = self._parsed({"kind": "count", "low": low, "high": high}, names)
        return None if found is None else int(found)

    def seconds(self, *names: str, default: float) -> float:
        found = self._parsed({"kind": "seconds", "low": 0.0, "high": float(NO_LIMIT)}, names)
        return default if found is None else float(found)

    def flag(self, *names: str, default: bool) -> bool:
        found = self._parsed({"kind": "flag"}, names)
        return default if found is None else bool(found)

    def choice(self, *names: str, choices: tuple[str, ...]) -> str | None:
        found = self._parsed({"kind": "choice", "choices": choices}, names)
        return None if found is None else str(found)

    def words(self, *names: str) -> tuple[str, ...]:
        """A comma-separated list."""
        found = self.text(*names)
        return tuple(word for part in (found or "").split(",") if (word := part.strip()))

    def _parsed(self, rule: values.Rule, names: tuple[str, ...]) -> Any:
        found = self.text(*names)
        if found is None:
            return None
        try:
            return values.parse(found, rule)
        except ValueError as exc:
            raise InvalidRequest(f"option {names[0]} {exc}, not {found!r:.100}") from None
