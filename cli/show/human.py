"""Numbers, sizes, times and bytes as people read them, and as they write them."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from topicd.words import counted

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_AGE = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604_800}


def count(number: int | float) -> str:
    """1234567 -> 1,234,567"""
    return f"{number:,.0f}"


def records_word(number: int) -> str:
    return counted(number, "record")


def short_count(number: float) -> str:
    """1234567 -> 1.23M; at most 5 characters."""
    for limit, suffix in ((1e3, ""), (1e6, "k"), (1e9, "M"), (1e12, "G"), (1e15, "T")):
        if abs(number) < limit * 0.9995:
            scaled = number / (limit / 1e3)
            digits = 0 if not suffix and number == int(number) else max(0, 2 - len(str(int(abs(scaled)))) + 1)
            return f"{scaled:.{digits}f}{suffix}"
    return f"{number:.0e}"


def size(number: float) -> str:
    """1536 -> 1.5 KiB"""
    for unit in _UNITS:
        if abs(number) < 1023.95 or unit == _UNITS[-1]:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    raise AssertionError("unreachable")


def duration(seconds: float) -> str:
    """Two units at most: 3.2 ms, 4.1 s, 2m 05s, 3h 07m, 2d 04h."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02d}h"


def local_time(ts_ms: int | None) -> str:
    """A daemon's timestamp in the terminal's time zone; `-` for none."""
    if not ts_ms:
        return "-"
    moment = datetime.fromtimestamp(ts_ms / 1000).astimezone()
    return f"{moment:%Y-%m-%d %H:%M:%S}.{ts_ms % 1000:03d}"


def parse_age(text: str) -> timedelta | None:
    """`90s`, `15m`, `2h`, `1d`, `1w`, as in the fields of topics; None for anything else."""
    m = _AGE.fullmatch(text)
    return timedelta(seconds=float(m.group(1)) * _SECONDS[m.group(2)]) if m else None


def printable(data: bytes) -> str:
    """Bytes on one line that cannot move a terminal's cursor: what is no text is shown as escapes."""
    text = data.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else "".join(map(_visible, text))


def printable_text(text: str) -> str:
    return text if text.isprintable() else printable(text.encode("utf-8", "surrogateescape"))


def _visible(char: str) -> str:
    if char.isprintable():
        return char
    return {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char) or char.encode("unicode_escape").decode()
