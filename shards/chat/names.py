"""How ids are shown: with their readable names where those are known. Promise: what is given by name and what is given
as hex digits mean the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from topicd.errors import Forbidden, InvalidRequest
from topicd.shards.chat import cursors, hlc, keys
from topicd.shards.chat.domains import name_of
from topicd.shards.chat.inbox import InboxRow
from topicd.shards.chat.rows import Kind, Message
from topicd.shards.chat.view import View
from topicd.tokens import Rights

_KEPT = 100_000
KIND_NAMES = {Kind.DM: "dm", Kind.GROUP: "group", Kind.CHANNEL: "channel"}
KINDS = {"group": int(Kind.GROUP), "channel": int(Kind.CHANNEL)}


class ChatRef(NamedTuple):
    id: bytes
    name: str  # empty: given by its id, or between two users
    peer: bytes  # of a chat between two users the other one
    peer_name: str


class Names:
    def __init__(self, view: View) -> None:
        self._view = view
        self._users: dict[str, tuple[bytes, str]] = {}
        self._chats: dict[str, ChatRef] = {}
        self._known: dict[bytes, str] = {}

    # ---- from names to ids ----

    def user(self, given: Any) -> tuple[bytes, str]:
        """(id, name; empty if the id was given)."""
        found = self._users.get(given) if isinstance(given, str) else None
        if found is None:
            made = keys.user_id(given)
            found = (made, "" if made.hex() == given else given)
            _keep(self._users, given, found)
        return found

    def chat(self, given: Any, user: bytes | None) -> ChatRef:
        if isinstance(given, str) and given.startswith("@"):
            if user is None:
                raise InvalidRequest("a chat @name is one with that user: say as whom")
            peer, name = self.user(given[1:])
            return ChatRef(keys.dm_id(user, peer), "", peer, name)
        found = self._chats.get(given) if isinstance(given, str) else None
        if found is None:
            made = keys.chat_id(given)
            found = ChatRef(made, "" if made.hex() == given else given, b"", "")
            _keep(self._chats, given, found)
        return found

    def as_user(self, rights: Rights, given: str | None) -> tuple[bytes, str] | None:
        """As whom something is done. A token acts for its subject, or the user of its name; one that may do everything
        for anybody."""
        if "admin" in rights.scopes:
            return None if given is None else self.user(given)
        user = self.user(rights.subject or rights.name)
        if given is not None and self.user(given)[0] != user[0]:
            raise Forbidden(f"token {rights.name!r} cannot act as {given!r:.100}", token=rights.name)
        return user

    # ---- from ids to names ----

    def chat_name(self, chat: bytes) -> str:
        return self._name(chat, keys.chat_name_key(chat))

    def user_name(self, user: bytes) -> str:
        return self._name(user, keys.user_name_key(user))

    def _name(self, wanted: bytes, key: bytes) -> str:
        found = self._known.get(wanted)
        if found is None:
            found = name_of(self._view.store, key)
            if found:
                _keep(self._known, wanted, found)
        return found

    # ---- rows as they are shown ----

    def message(self, seq: int, message: Message) -> dict[str, Any]:
        key = keys.message_key(message.chat, message.stamp, seq)
        return {
            "id": message.msg_id.hex(),
            "seq": seq,
            "cursor": cursors.to_text(key),
            "chat": message.chat.hex(),
            "chat_name": self.chat_name(message.chat),
            "sender": message.sender.hex(),
            "sender_name": self.user_name(message.sender),
            "kind": KIND_NAMES[Kind(message.kind)],
            "ms": hlc.physical_ms(message.stamp),
            "logical": hlc.logical(message.stamp),
            "text": message.body,
            "blob": message.blob,
        }

    def row(self, user: bytes, row: InboxRow) -> dict[str, Any]:
        entry = row.entry
        shown: dict[str, Any] = {
            "chat": entry.chat.hex(),
            "chat_name": self.chat_name(entry.chat),
            "kind": KIND_NAMES[Kind(entry.kind)],
            "ms": hlc.physical_ms(entry.last_ts),
            "last_seq": entry.last_seq,
            "read_seq": row.read_seq,
            "unread": row.unread,
            "last_id": entry.last_msg_id.hex(),
            "last_sender": entry.last_sender.hex(),
            "last_sender_name": self.user_name(entry.last_sender) if entry.last_sender else "",
            "preview": "" if hlc.physical_ms(entry.last_ts) <= self._view.cutoff_ms else entry.preview,
        }
        if entry.kind == Kind.DM:
            others = [one for one in self._view.metas.get(entry.chat).users if one != user] or [user]
            shown["peer"] = others[0].hex()
            shown["peer_name"] = self.user_name(others[0])
        return shown


def _keep(where: dict[Any, Any], key: Any, value: Any) -> None:
    if len(where) >= _KEPT:
        where.clear()
    where[key] = value
