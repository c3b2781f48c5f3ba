"""Which topic names a pattern means. One language for watching, reading and the command line:

orders.*     one star, at the end: every name that begins so, however long it is
a.*.b        a star for a whole part: exactly one part between dots
a.>          at the end: one part or more
"""

from __future__ import annotations

import re
from functools import lru_cache

from topicd.errors import InvalidRequest
from topicd.limits import INTERNAL, PATTERN_MAX, TOPIC_NAME

PATTERN_RULE = (
    "a pattern is a beginning with a star behind it, or parts between dots of which * is any one and > the rest"
)
_ONE = r"[^.]+"
_REST = r".+"


def is_pattern(text: str) -> bool:
    return "*" in text or text.endswith(".>") or text == ">"


def check_pattern(pattern: str) -> str:
    """The pattern itself. InvalidRequest says what one looks like."""
    if not isinstance(pattern, str) or not is_pattern(pattern) or len(pattern) > PATTERN_MAX:
        raise InvalidRequest(f"{pattern!r:.300} is no pattern: {PATTERN_RULE}")
    _compiled(pattern)
    return pattern


def prefix_of(pattern: str) -> str:
    """What every name that it means begins with."""
    return re.split(r"[*>]", pattern, maxsplit=1)[0] if is_pattern(pattern) else pattern


def covers(pattern: str, name: str) -> bool:
    """Topicd's own topics are meant only by patterns that say so."""
    if name.startswith(INTERNAL) and not pattern.startswith(INTERNAL):
        return False
    return _compiled(pattern).fullmatch(name) is not None


@lru_cache(maxsize=1_024)
def _compiled(pattern: str) -> re.Pattern[str]:
    if not is_pattern(pattern):
        return re.compile(re.escape(pattern))
    if pattern.endswith("*") and not is_pattern(pattern[:-1]) and ">" not in pattern:
        beginning = pattern[:-1]
        if beginning and not TOPIC_NAME.fullmatch(beginning):
            raise InvalidRequest(f"{pattern!r:.300} means no topic: no name begins so")
        return re.compile(re.escape(beginning) + ".*")
    *parts, last = pattern.split(".")
    if any(not part or (part != "*" and re.search(r"[*>]", part)) for part in (*parts, last.replace(">", "*", 1))):
        raise InvalidRequest(f"{pattern!r:.300} is no pattern: {PATTERN_RULE}")
    made = [_ONE if part == "*" else re.escape(part) for part in parts]
    made.append({"*": _ONE, ">": _REST}.get(last, re.escape(last)))
    return re.compile(r"\.".join(made))
