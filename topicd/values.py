"""Values as people write them in files, variables and flags, by kind. A ValueError says what it must be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from topicd.limits import KIB, MIB

NO_LIMIT = 2**62

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:iB)?|B)?", re.IGNORECASE)
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": 1024 * MIB, "T": 1024 * 1024 * MIB}
_BOOLS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
UNIT_TEXT = {"size": "bytes", "us": "microseconds", "ms": "milliseconds", "seconds": "seconds"}

Rule = Mapping[str, Any]  # kind; low and high for numbers, choices for text


def parse(value: Any, rule: Rule) -> Any:
    """The value in its own type."""
    kind = rule["kind"]
    parsed = _choice(value, rule["choices"]) if kind == "choice" else _PARSERS[kind](value)
    if "low" in rule and not rule["low"] <= parsed <= rule["high"]:
        raise ValueError(f"must be {range_text(rule)}")
    return parsed


def format(value: Any, rule: Rule) -> str:
    """The value as one would write it in a variable."""
    if rule["kind"] == "size":
        return format_size(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def format_size(value: int) -> str:
    for suffix in ("T", "G", "M", "K"):
        if value and value % _UNITS[suffix] == 0:
            return f"{value // _UNITS[suffix]}{suffix}iB"
    return str(value)


def range_text(rule: Rule) -> str:
    if "choices" in rule:
        return ", ".join(rule["choices"])
    if "low" not in rule:
        return ""
    low, high = format(rule["low"], rule), format(rule["high"], rule)
    return f"at least {low}" if rule["high"] >= NO_LIMIT else f"{low} to {high}"


def _size(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    m = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if m is None:
        raise ValueError("must be bytes or a size like 64MiB, 512K, 1.5GiB (powers of 1024)")
    return int(float(m.group(1)) * _UNITS[(m.group(2) or "").upper()])


_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)?", re.IGNORECASE)
_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}


def duration_ms(value: str) -> int:
    """Milliseconds, or a time like 90s, 15m, 2h, 1d, 1w."""
    m = _DURATION.fullmatch(value.strip())
    if m is None:
        raise ValueError("must be milliseconds or a time like 250ms, 90s, 15m, 2h, 1d, 1w")
    return round(float(m.group(1)) * _MS[(m.group(2) or "ms").lower()])


def format_ms(value: int) -> str:
    """As one would write it: 1d, 90s, 250ms."""
    for suffix in ("w", "d", "h", "m", "s"):
        if value and value % _MS[suffix] == 0:
            return f"{value // _MS[suffix]}{suffix}"
    return f"{value}ms" if value else "0"


def _count(value: Any) -> int:
    if isinstance(value, int | str) and not isinstance(value, bool):
        try:
            return int(value)
        except ValueError:
            pass
    raise ValueError("must be a whole number")


def _seconds(value: Any) -> float:
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        try:
            return float(value)
        except ValueError:
            pass
    raise ValueError("must be a number of seconds")


def _flag(value: Any) -> bool:
    found = value if isinstance(value, bool) else _BOOLS.get(str(value).lower())
    if found is None:
        raise ValueError("must be true or false")
    return found


def _choice(value: Any, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"must be one of {', '.join(choices)}")
    return str(value)


def _path(value: Any) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("must be a path")
    return Path(value).expanduser()


def _uids(value: Any) -> str:
    if isinstance(value, int | str) and not isinstance(value, bool):
        parts = [part.strip() for part in str(value).split(",")] if str(value).strip() else []
        if all(re.fullmatch("[0-9]{1,10}", part) and int(part) < 2**32 for part in parts):
            return ",".join(parts)
    raise ValueError("must be numeric user ids, comma-separated")


def _mode(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch("0?[0-7]{3}", value):
        raise ValueError('must be three octal digits in quotes, like "0660"')
    return value


def _address(value: Any) -> str:
    """host:port, or nothing; an IPv6 host stands in brackets."""
    if value == "":
        return ""
    host, _, port = value.rpartition(":") if isinstance(value, str) else ("", "", "")
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ValueError("must be host:port, for example 127.0.0.1:7410")
    return str(value)


def _listen(value: Any) -> str:
    """As an address, or with port 0: any."""
    return str(value) if isinstance(value, str) and re.fullmatch(r"[^:\s]+:0|\[[^\]]+\]:0", value) else _address(value)


def _text(value: Any) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("must be text")
    return value


def _file(value: Any) -> str:
    if not isinstance(value, str | Path) or "\0" in str(value):
        raise ValueError("must be the path of a file")
    return str(Path(value).expanduser()) if str(value) else ""


_PARSERS: dict[str, Callable[[Any], Any]] = {
    "size": _size,
    "count": _count,
    "us": _count,
    "ms": _count,
    "seconds": _seconds,
    "flag": _flag,
    "path": _path,
    "uids": _uids,
    "mode": _mode,
    "address": _address,
    "listen": _listen,
    "text": _text,
    "file": _file,
}
