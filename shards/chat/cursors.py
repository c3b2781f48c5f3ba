"""Where reading goes on, as a text that means nothing to who holds it. Promise: a cursor of another chat, another list
or of anybody's own making is refused; it never leads outside what it was given for.
"""

from __future__ import annotations

import base64
import binascii

from topicd.errors import InvalidRequest
from topicd.shards.chat import keys

_URL_SAFE = bytes.maketrans(b"+/", b"-_")


def to_text(key: bytes) -> str:
    return binascii.b2a_base64(key, newline=False).translate(_URL_SAFE, b"=").decode()


def _to_key(cursor: str, width: int) -> bytes:
    try:
        key = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != width:
        raise InvalidRequest(f"cursor {cursor!r:.100} is none that this store has given")
    return key


def message_cursor(cursor: str, chat: bytes) -> bytes:
    """The key of the message behind which a page begins."""
    key = _to_key(cursor, keys.MESSAGE_KEY)
    if not key.startswith(chat):
        raise InvalidRequest(f"cursor {cursor!r:.100} belongs to another chat")
    return key


def inbox_cursor(cursor: str, user: bytes) -> bytes:
    key = _to_key(cursor, keys.INBOX_KEY)
    if not key.startswith(user):
        raise InvalidRequest(f"cursor {cursor!r:.100} belongs to another inbox")
    return key
