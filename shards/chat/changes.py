"""What operations are about to change, together with what is there. Promise: it reads as if everything in it were
written already, and becomes one batch with the seq of its last operation; inbox rows follow from the chats, whatever
was done.

The inbox row of a member lies at the time of the chat's last message, so the old one is known without looking for it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from topicd.shards.chat import keys
from topicd.shards.chat.rows import NO_CHAT, ChatMeta, inbox_entry, shows_the_same
from topicd.shards.chat.store import CHATS_META, DEFAULT, SEEN_MSG, USER_INBOX, USER_READ_PROGRESS, Store, Table, Writes

_METAS_KEPT = 50_000


class Metas:
    """Chats that were in use of late, and how far their users have read, as it is in the store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._kept: dict[bytes, ChatMeta] = {}
        self._read: dict[bytes, bytes | None] = {}  # rows of user_read_progress; None: there is none
        self.named: set[bytes] = set()  # ids whose names are stored

    def get(self, chat: bytes) -> ChatMeta:
        """NO_CHAT, that very object, if there is none."""
        found = self._kept.get(chat)
        if found is None:
            raw = self._store.get(CHATS_META, chat)
            found = NO_CHAT if raw is None else ChatMeta.unpack(raw)
            if raw is not None:
                self.keep(chat, found)
        return found

    def keep(self, chat: bytes, meta: ChatMeta) -> None:
        if len(self._kept) >= _METAS_KEPT:
            self._kept.clear()
        if len(self.named) >= _METAS_KEPT:
            self.named.clear()
        self._kept[chat] = meta

    def progress(self, key: bytes) -> bytes | None:
        try:
            return self._read[key]
        except KeyError:
            found = self._store.get(USER_READ_PROGRESS, key)
            self.keep_progress({key: found})
            return found

    def keep_progress(self, rows: dict[bytes, bytes | None]) -> None:
        if len(self._read) >= _METAS_KEPT:
            self._read.clear()
        self._read.update(rows)

    def forget(self) -> None:
        self._kept.clear()
        self._read.clear()
        self.named.clear()


class Told(NamedTuple):
    """Whom a batch concerns, once it is written."""

    records: dict[str, list[tuple[bytes | None, bytes | None]]]  # by domain: (old, new) record ids
    chats: set[bytes]  # with new messages
    parted: set[bytes]  # chats that somebody belongs to no more
    inboxes: dict[bytes, set[bytes]]  # by user who is listened for: chats whose row changed or went


class Changes:
    def __init__(self, store: Store, metas: Metas, listening: Collection[bytes] = ()) -> None:
        self._store = store
        self._kept = metas
        self._listening = listening
        self.writes = Writes()
        self._before: dict[bytes, ChatMeta] = {}
        self._metas: dict[bytes, ChatMeta] = {}
        self._seen: dict[bytes, bytes | None] = {}  # rows of seen_msg that were looked up at once
        self._told = Told({"messages": [], "members": [], "identities": []}, set(), set(), {})

    # ---- rows ----

    def get(self, table: Table, key: bytes) -> bytes | None:
        rows = self.writes.rows[table]
        return rows[key] if key in rows else self._store.get(table, key)

    def foresee(self, ids: Sequence[bytes]) -> None:
        """These messages come next: whether they are there is looked up at once, which costs less than one by one."""
        if len(ids) > 1:
            self._seen.update(zip(ids, self._store.get_many(SEEN_MSG, ids), strict=True))

    def seen(self, msg_id: bytes) -> bool:
        """Is there a message of that id?"""
        rows = self.writes.rows[SEEN_MSG]
        if msg_id in rows:
            return rows[msg_id] is not None
        if msg_id in self._seen:
            return self._seen[msg_id] is not None
        return self._store.get(SEEN_MSG, msg_id) is not None

    def progress(self, key: bytes) -> bytes | None:
        rows = self.writes.rows[USER_READ_PROGRESS]
        return rows[key] if key in rows else self._kept.progress(key)

    def put(self, table: Table, key: bytes, value: bytes) -> None:
        self.writes.rows[table][key] = value

    def delete(self, table: Table, key: bytes) -> None:
        self.writes.rows[table][key] = None

    # ---- chats ----

    def meta(self, chat: bytes) -> ChatMeta:
        return self._metas.get(chat) or self._kept.get(chat)

    def set_meta(self, chat: bytes, meta: ChatMeta) -> None:
        if chat not in self._before:
            self._before[chat] = self._kept.get(chat)
        self._metas[chat] = meta

    # ---- names ----

    def learn_chat(self, chat: bytes, name: str) -> None:
        if name and chat not in self._kept.named and keys.is_chat_name(name, chat):
            self._kept.named.add(chat)
            self.put(DEFAULT, keys.chat_name_key(chat), name.encode())

    def learn_user(self, user: bytes, name: str) -> None:
        if name and user not in self._kept.named and keys.is_user_name(name, user):
            self._kept.named.add(user)
            self.put(DEFAULT, keys.user_name_key(user), name.encode())

    # ---- what others are told ----

    def record(self, domain: str, old: bytes | None, new: bytes | None) -> None:
        self._told.records[domain].append((old, new))

    def message_came(self, chat: bytes) -> None:
        self._told.chats.add(chat)

    # ---- the end ----

    def finish(self, topic_id: int, seq: int) -> Told:
        """Completes the batch."""
        for chat, meta in self._metas.items():
            self.put(CHATS_META, chat, meta.pack())
            self._move_rows(chat, self._before[chat], meta)
        self.put(DEFAULT, keys.APPLIED, keys.u64(topic_id) + keys.u64(seq))
        return self._told

    def _move_rows(self, chat: bytes, before: ChatMeta, meta: ChatMeta) -> None:
        old_at, new_at = keys.inbox_tail(before.last_ts, chat), keys.inbox_tail(meta.last_ts, chat)
        changed = old_at != new_at or not shows_the_same(before, meta)
        if before.members == meta.members:
            if changed:
                self._move_all(chat, meta, old_at, new_at, inbox_entry(chat, meta).pack())
            return
        rows, value = self.writes.rows[USER_INBOX], inbox_entry(chat, meta).pack()
        stays, were = set(meta.users), set(before.users)
        if were - stays:
            self._told.parted.add(chat)
        for user in were if old_at != new_at else were - stays:
            rows[user + old_at] = None
            self._touch(user, chat)
        for user in stays if changed else stays - were:
            rows[user + new_at] = value
            self._touch(user, chat)

    def _move_all(self, chat: bytes, meta: ChatMeta, old_at: bytes, new_at: bytes, value: bytes) -> None:
        """The same members, a new message: nearly always."""
        rows, users, moves = self.writes.rows[USER_INBOX], meta.users, old_at != new_at
        for user in users:
            if moves:
                rows[user + old_at] = None
            rows[user + new_at] = value
        if self._listening:
            for user in users:
                self._touch(user, chat)

    def _touch(self, user: bytes, chat: bytes) -> None:
        if user in self._listening:
            self._told.inboxes.setdefault(user, set()).add(chat)

    def keep(self) -> None:
        """It is written: what was read is what is there."""
        for chat, meta in self._metas.items():
            self._kept.keep(chat, meta)
        if read := self.writes.rows[USER_READ_PROGRESS]:
            self._kept.keep_progress(read)
