"""Who listens: to the messages of a chat, or to an inbox. Promise: a listener gets every message of a chat behind its
seq, in the order in which they came to this store, without a hole whatever happened between two connections, and
nothing any more once its user was removed; of an inbox it gets all rows first and then each change, the last one of
several; nothing is kept for it but a number or the set of its chats that changed, and no more is sent than it has
granted.

Messages that another store sends late have times in the past but come now: that is why the order is that of coming.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from topicd.shards.chat import inbox, messages
from topicd.shards.chat.changes import Told
from topicd.shards.chat.rows import ChatMeta, inbox_entry
from topicd.shards.chat.view import View

EVENTS = 100  # in one message
_SIGNALS_DROPPED_AT = 1  # credit below which signals are not sent


class Listener(Protocol):
    """The way out of a connection."""

    @property
    def write_blocked(self) -> bool: ...

    def events(self, subscription: int, body: dict[str, Any]) -> None: ...


class Subscription:
    """`moved` is called when there may be something; it sends what credit and connection allow."""

    def __init__(self, live: Live, out: Listener, number: int, credit: int) -> None:
        self._live = live
        self._out = out
        self.number = number
        self.credit = credit

    def grant(self, events: int) -> None:
        self.credit = min(self.credit + events, 1 << 30)
        self.moved()

    def moved(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    @property
    def _may_send(self) -> bool:
        return self.credit > 0 and not self._out.write_blocked


class ChatSubscription(Subscription):
    def __init__(
        self, live: Live, out: Listener, number: int, credit: int, chat: bytes, user: bytes | None, after_seq: int
    ) -> None:
        super().__init__(live, out, number, credit)
        self.chat = chat
        self.user = user
        self.after_seq = after_seq
        self._ended = False
        live.by_chat.setdefault(chat, set()).add(self)

    def moved(self) -> None:
        view = self._live.view
        if self._ended:
            return
        if self.user is not None and not view.metas.get(self.chat).has(self.user):
            self._ended = True  # whatever the credit: it is the last that is sent
            self._out.events(self.number, {"ended": "the user is not a member of this chat any more"})
            self.close()
            return
        while self._may_send and self.after_seq < view.metas.get(self.chat).last_seq:
            limit = min(EVENTS, self.credit)
            found, seen = messages.arrived(view.store, self.chat, self.after_seq, limit, view.cutoff_ms)
            if seen == self.after_seq:
                # What is behind it was removed by retention.
                self.after_seq = view.metas.get(self.chat).last_seq
                return
            self.after_seq = seen
            if found:
                self.credit -= len(found)
                shown = [self._live.show(seq, message) for seq, message in found]
                self._out.events(self.number, {"messages": shown, "seq": seen})

    def signal(self, body: dict[str, Any]) -> bool:
        """Now or never."""
        if self.credit < _SIGNALS_DROPPED_AT or self._out.write_blocked:
            return False
        self.credit -= 1
        self._out.events(self.number, {"signal": body})
        return True

    def close(self) -> None:
        self._live.forget_chat(self)


class InboxSubscription(Subscription):
    def __init__(self, live: Live, out: Listener, number: int, credit: int, user: bytes) -> None:
        super().__init__(live, out, number, credit)
        self.user = user
        self.changed: dict[bytes, None] = {}  # chats whose row is to be sent, in the order of their changes
        self._cursor: str | None = ""  # of the rows that come first; None: all have been sent
        live.by_user.setdefault(user, set()).add(self)

    def touched(self, chats: set[bytes]) -> None:
        for chat in chats:
            self.changed.pop(chat, None)
            self.changed[chat] = None
        self.moved()

    def moved(self) -> None:
        while self._cursor is not None and self._may_send:
            found = inbox.page(self._live.view.store, self.user, self._cursor, min(EVENTS, self.credit))
            self.credit -= max(1, len(found.rows))
            self._cursor = found.next or None
            shown = [self._live.show_row(self.user, row) for row in found.rows]
            self._out.events(self.number, {"chats": shown, "first": True, "complete": self._cursor is None})
        while self._cursor is None and self.changed and self._may_send:
            chats = list(self.changed)[: min(EVENTS, self.credit)]
            for chat in chats:
                del self.changed[chat]
            self.credit -= len(chats)
            self._out.events(self.number, self._rows(chats))

    def _rows(self, chats: list[bytes]) -> dict[str, Any]:
        view = self._live.view
        shown, gone = [], []
        for chat in chats:
            meta: ChatMeta = view.metas.get(chat)
            if meta.has(self.user):
                read_seq = inbox.progress(view.store, self.user, chat)
                row = inbox.InboxRow(inbox_entry(chat, meta), read_seq)
                shown.append(self._live.show_row(self.user, row))
            else:
                gone.append(chat.hex())
        return {"chats": shown, "gone": gone}

    def close(self) -> None:
        self._live.forget_user(self)


class Names(NamedTuple):
    """How rows are shown."""

    message: Callable[[int, Any], dict[str, Any]]
    row: Callable[[bytes, Any], dict[str, Any]]


class Live:
    def __init__(self, view: View, names: Names) -> None:
        self.view = view
        self.show = names.message
        self.show_row = names.row
        self.by_chat: dict[bytes, set[ChatSubscription]] = {}
        self.by_user: dict[bytes, set[InboxSubscription]] = {}

    @property
    def count(self) -> int:
        return sum(map(len, self.by_chat.values())) + sum(map(len, self.by_user.values()))

    def written(self, told: Told) -> None:
        for chat in (told.chats | told.parted) & self.by_chat.keys():
            for subscription in list(self.by_chat.get(chat, ())):
                subscription.moved()
        for user, chats in told.inboxes.items():
            for listener in list(self.by_user.get(user, ())):
                listener.touched(chats)

    def marked(self, user: bytes, chat: bytes) -> None:
        """How far the user has read has changed."""
        for listener in list(self.by_user.get(user, ())):
            listener.touched({chat})

    def signal(self, chat: bytes, body: dict[str, Any]) -> int:
        """How many were told."""
        return sum(subscription.signal(body) for subscription in list(self.by_chat.get(chat, ())))

    def forget_chat(self, subscription: ChatSubscription) -> None:
        _discard(self.by_chat, subscription.chat, subscription)

    def forget_user(self, subscription: InboxSubscription) -> None:
        _discard(self.by_user, subscription.user, subscription)


def _discard(where: dict[bytes, Any], key: bytes, subscription: Subscription) -> None:
    found = where.get(key)
    if found is not None:
        found.discard(subscription)
        if not found:
            del where[key]
