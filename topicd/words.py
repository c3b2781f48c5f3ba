"""Numbers with their nouns, as people read them."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """1 record, 2,000 records; what is not formed by an s is given: 1 copy, 2 copies."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
