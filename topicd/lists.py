"""Arguments that are lists."""

from __future__ import annotations

from typing import Any

from topicd.errors import InvalidRequest


def check_list(given: Any, what: str, instead: str = "") -> None:
    """Text, bytes and maps are one value, though Python could take them apart: bytes into numbers that may be seqs."""
    if isinstance(given, str | bytes | bytearray | memoryview | dict):
        raise InvalidRequest(f"a list of {what} is needed, not one {type(given).__name__}{instead}")
    if not hasattr(given, "__iter__") and not hasattr(given, "__getitem__"):
        raise InvalidRequest(f"a list of {what} is needed, not {given!r:.100}{instead}")
