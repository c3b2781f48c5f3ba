"""Inboxes: the chats of a user, the one with the newest message first. Promise: exactly one row for each chat that the
user belongs to; unread is what came behind what was read; reading never goes back.
"""

from __future__ import annotations

from typing import NamedTuple

from topicd.errors import Conflict, Forbidden
from topicd.shards.chat import cursors, keys
from topicd.shards.chat.changes import Changes
from topicd.shards.chat.operations import Mark
from topicd.shards.chat.rows import ChatMeta, InboxEntry
from topicd.shards.chat.store import USER_INBOX, USER_READ_PROGRESS, Store
from topicd.words import counted

PAGE_MAX = 1_000


class InboxRow(NamedTuple):
    entry: InboxEntry
    read_seq: int

    @property
    def unread(self) -> int:
        return max(0, self.entry.last_seq - self.read_seq)


class InboxPage(NamedTuple):
    rows: list[InboxRow]
    next: str  # cursor, empty at the end


def page(store: Store, user: bytes, after: str, limit: int) -> InboxPage:
    start = user
    if after:
        start = cursors.inbox_cursor(after, user) + b"\0"
    found: list[tuple[bytes, InboxEntry]] = []
    more = False
    for key, value in store.scan(USER_INBOX, start, user):
        if len(found) == limit:
            more = True
            break
        found.append((key, InboxEntry.unpack(value)))
    wanted = [keys.progress_key(user, entry.chat) for _, entry in found]
    read = store.get_many(USER_READ_PROGRESS, wanted)
    rows = [InboxRow(entry, keys.parse_u32(raw) if raw else 0) for (_, entry), raw in zip(found, read, strict=True)]
    return InboxPage(rows, cursors.to_text(found[-1][0]) if more else "")


def progress(store: Store | Changes, user: bytes, chat: bytes) -> int:
    raw = store.get(USER_READ_PROGRESS, keys.progress_key(user, chat))
    return keys.parse_u32(raw) if raw else 0


def beyond(meta: ChatMeta, seq: int) -> Conflict:
    return Conflict(f"the chat has {counted(meta.last_seq, 'message')}, not {seq}", last_seq=meta.last_seq)


def mark(changes: Changes, op: Mark) -> int:
    """How far the user has read then."""
    meta = changes.meta(op.chat)
    if not meta.has(op.user):
        raise Forbidden("the user is not a member of this chat")
    if op.seq > meta.last_seq:
        raise beyond(meta, op.seq)
    now = progress(changes, op.user, op.chat)
    if op.seq > now:
        changes.put(USER_READ_PROGRESS, keys.progress_key(op.user, op.chat), keys.u32(op.seq))
    return max(now, op.seq)
