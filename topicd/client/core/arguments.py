"""What users say about places and filters, checked and turned into the values of messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeAlias

from topicd.errors import InvalidRequest
from topicd.limits import MAX_SEQ
from topicd.lists import check_list
from topicd.model import TagMatch

Match: TypeAlias = str | TagMatch | Sequence[str] | None
Start: TypeAlias = str | int | datetime
Nodes: TypeAlias = str | bytes | Sequence[str | bytes] | None


def tag_match(match: Match) -> TagMatch | None:
    """A tag; with a trailing star, every tag that begins so. A TagMatch or ["tag", "Eq", "x*"] is taken as it is."""
    if match is None or isinstance(match, TagMatch):
        return match
    if isinstance(match, str):
        match = ["tag", "Glob" if match.endswith("*") else "Eq", match]
    if not isinstance(match, list | tuple):
        raise InvalidRequest(f"match is a tag, or a beginning with a star behind it, not {match!r:.50}")
    return TagMatch.from_wire(list(match))


def node_names(nodes: Nodes) -> tuple[bytes, ...]:
    if nodes is None:
        return ()
    given = [nodes] if isinstance(nodes, str | bytes) else nodes
    check_list(given, "nodes")
    try:
        return tuple(_node(node) for node in given)
    except UnicodeEncodeError as exc:
        raise InvalidRequest(f"a node is text that UTF-8 can hold: {exc}") from None


def _node(node: str | bytes) -> bytes:
    if isinstance(node, bytes):
        return node
    if isinstance(node, str):
        return node.encode()
    raise InvalidRequest(f"a node is text or bytes, not {node!r:.100}")


def excluded(exclude_nodes: Nodes, nodes: Nodes) -> Nodes:
    """Origins whose records are left out, under either name of the argument."""
    if nodes is not None:
        import warnings

        warnings.warn("nodes= leaves these out; it is called exclude_nodes= now", DeprecationWarning, stacklevel=3)
        if exclude_nodes is not None:
            raise InvalidRequest("nodes is the old name of exclude_nodes: give one of them")
        return nodes
    return exclude_nodes


def start_place(start: Start) -> tuple[str, int]:
    """("earliest" or "latest", 0), ("seq", n) or ("ts", ms)."""
    if isinstance(start, datetime):
        return "ts", milliseconds(start)
    if isinstance(start, int) and not isinstance(start, bool):
        return "seq", cursor(start)
    if start not in ("earliest", "latest"):
        raise InvalidRequest(f"start must be earliest, latest, a seq or a datetime, not {start!r:.100}")
    return start, 0


def milliseconds(moment: datetime) -> int:
    """Naive datetimes are local time, as everywhere in Python."""
    return max(0, int(moment.timestamp() * 1000))


def cursor(seq: int) -> int:
    return whole("a cursor", seq, MAX_SEQ)


def whole(what: str, value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise InvalidRequest(f"{what} is an integer from 0 to {most}, not {value!r:.100}")
    return value
