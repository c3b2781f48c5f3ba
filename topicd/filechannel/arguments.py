"""What callers may say: each refusal names the argument, what was given and what may be."""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic
from typing import Any

from topicd.errors import InvalidRequest

FOREVER_S = 1e9  # thirty years: more is no number of nanoseconds that the system takes


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidRequest(f"{name} is {value!r:.100}; it may be {', '.join(allowed)}")


def yes_or_no(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{name} is {value!r:.100}; it must be True or False")


def whole(name: str, value: object, of: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} is {value!r:.100}; it must be a whole number{of}")


def at_least(name: str, value: object, least: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise InvalidRequest(f"{name} is {value!r:.100}; it must be at least {least:g}")


def at_least_one(name: str, value: int) -> None:
    whole(name, value)
    at_least(name, value, 1)


def check_timeout(timeout: Any) -> None:
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidRequest(f"timeout is {timeout!r:.100}; it must be seconds from 0 on, or None to wait for ever")


def deadline_of(timeout: float | None) -> float | None:
    """The moment until which to wait; None: for ever."""
    check_timeout(timeout)
    return None if timeout is None or timeout >= FOREVER_S else monotonic() + timeout


def directory_of(given: Any) -> Path:
    try:
        name = os.fsdecode(given)
    except TypeError:
        raise InvalidRequest(f"the directory is {given!r:.100}; it must be a path") from None
    if not name:
        raise InvalidRequest("the directory's name is empty; the current one is '.'")
    if "\0" in name:
        raise InvalidRequest(f"the directory is {name!r:.100}; no path holds a zero byte")
    return Path(os.path.abspath(name))


def is_buffer(value: object) -> bool:
    return isinstance(value, bytes | bytearray | memoryview)
