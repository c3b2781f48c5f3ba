"""Pages of lists: opaque cursors that a client can paste into a query."""

from __future__ import annotations

import base64

import msgspec

from topicd.gateway import errors
from topicd.gateway.endpoints import Call
from topicd.gateway.schemas import clamp
from topicd.limits import LIST_PAGE_DEFAULT, LIST_PAGE_MAX


def page_size(call: Call) -> int:
    return clamp(call.number("page_size", LIST_PAGE_DEFAULT), 1, LIST_PAGE_MAX)


def cursor_of(text: str) -> str:
    """The name behind which a list goes on."""
    try:
        padded = text + "=" * (-len(text) % 4)
        found = msgspec.json.decode(base64.b64decode(padded, altchars=b"-_", validate=True))
        after = found["after"]
        if isinstance(after, str) and after:
            return after[:255]
    except (ValueError, KeyError, TypeError):
        pass
    raise errors.invalid("the cursor is broken")


def next_cursor(after: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode({"after": after})).rstrip(b"=").decode()
