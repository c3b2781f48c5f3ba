"""Requests to a chat store and what their answers mean, for both faces; and a chat or an inbox that is listened to,
without the connection. Promise: a message has its id before it is first sent, so repeating it stores nothing twice.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias

from topicd.client.core.address import with_ca_file
from topicd.client.core.requests import Request
from topicd.errors import Forbidden, FormatError, InvalidRequest, TopicdError, from_wire
from topicd.ipc.protocol import chat as wire
from topicd.ipc.protocol.chat import ChatRequest
from topicd.ipc.protocol.codec import packed
from topicd.ipc.protocol.wire import message

LONG_S = 3_600.0  # what looks at the whole store may take so long
CREDIT = 1_000  # events under way to a listener


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message as it is stored. `seq` counts those of its chat in the order in which they came to this store."""

    id: str
    seq: int
    cursor: str
    chat: str
    chat_name: str
    sender: str
    sender_name: str
    kind: str
    ms: int
    logical: int
    text: str
    blob: bytes

    @property
    def time(self) -> datetime:
        return datetime.fromtimestamp(self.ms / 1000, UTC)


@dataclass(frozen=True, slots=True)
class ChatRow:
    """A chat in an inbox."""

    chat: str
    chat_name: str
    kind: str
    ms: int
    last_seq: int
    read_seq: int
    unread: int
    last_id: str
    last_sender: str
    last_sender_name: str
    preview: str
    peer: str = ""
    peer_name: str = ""


@dataclass(frozen=True, slots=True)
class ChatMember:
    user: str
    name: str
    role: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class Sent:
    """seq 0: the message was there already."""

    id: str
    seq: int
    cursor: str


@dataclass(frozen=True, slots=True)
class MessagePage:
    """`next` is the cursor of the next page, empty at the end."""

    messages: list[ChatMessage]
    next: str


@dataclass(frozen=True, slots=True)
class InboxPage:
    chats: list[ChatRow]
    next: str


@dataclass(frozen=True, slots=True)
class Signal:
    """What somebody does now; kept nowhere."""

    chat: str
    user: str
    name: str
    kind: str
    data: bytes


@dataclass(frozen=True, slots=True)
class InboxChange:
    """A chat's row as it is now; None: the user does not belong to the chat any more. `first`: it was there before."""

    chat: str
    row: ChatRow | None
    first: bool = False


ChatEvent: TypeAlias = ChatMessage | Signal


def _request(message: ChatRequest, parse: Any = None) -> Request[Any]:
    return Request(int(message.OP), packed(message.to_wire()), parse or (lambda answer: answer))


def _made(kind: type[Any], fields: Any) -> Any:
    try:
        return kind(**fields)
    except TypeError as exc:
        raise FormatError(f"the chat store's answer is malformed: {exc}") from None


def new_id() -> bytes:
    return os.urandom(32)


def message_id(given: str | bytes | None) -> bytes:
    if given is None:
        return new_id()
    try:
        raw = bytes.fromhex(given) if isinstance(given, str) else bytes(given)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise InvalidRequest("the id of a message has 32 bytes, or 64 hex digits")
    return raw


# ---- messages ----


def send(chat: str, text: str, user: str, msg_id: str | bytes | None, blob: bytes, kind: str) -> Request[Sent]:
    row = [user, chat, text, message_id(msg_id), *([blob] if blob else [])]
    return _request(wire.Send(messages=[row], kind=kind), lambda answer: _sent(answer["results"][0]))


def send_many(rows: Sequence[Any], user: str | None, kind: str) -> list[Request[list[Sent | TopicdError]]]:
    """rows: (chat, text), (chat, text, user) or (chat, text, user, id)."""
    made = [_row(row, user) for row in rows]

    def parse(answer: dict[str, Any]) -> list[Sent | TopicdError]:
        return [from_wire(one) if isinstance(one, dict) else _sent(one) for one in answer["results"]]

    cut = _cut(made)
    return [_request(wire.Send(messages=piece, kind=kind), parse) for piece in cut]


def _row(row: Any, user: str | None) -> list[Any]:
    if not isinstance(row, tuple | list) or not 2 <= len(row) <= 4:
        raise InvalidRequest("a message is (chat, text), (chat, text, user) or (chat, text, user, id)")
    sender = row[2] if len(row) > 2 else user
    if sender is None:
        raise InvalidRequest("say as which user")
    return [sender, row[0], row[1], message_id(row[3] if len(row) > 3 else None)]


def _cut(rows: list[list[Any]]) -> list[list[list[Any]]]:
    """Into requests that a store takes."""
    pieces: list[list[list[Any]]] = []
    size = wire.BATCH_BYTES
    for row in rows:
        if not isinstance(row[2], str):
            raise InvalidRequest(f"a message is a text, not {row[2]!r:.100}")
        more = 4 * len(row[2]) + 400
        if size + more > wire.BATCH_BYTES or len(pieces[-1]) == wire.SEND_MAX:
            pieces.append([])
            size = 0
        pieces[-1].append(row)
        size += more
    return pieces


def _sent(row: Any) -> Sent:
    if isinstance(row, dict):
        raise from_wire(row)
    return Sent(row[0].hex(), row[1], row[2])


def read(chat: str, user: str | None, after: str, before: str, newest: bool, limit: int) -> Request[MessagePage]:
    def parse(answer: dict[str, Any]) -> MessagePage:
        return MessagePage([_made(ChatMessage, one) for one in answer["messages"]], answer["next"])

    newest = newest or bool(before)
    message = wire.Range(chat=chat, user=user, after=after, before=before, newest=newest, limit=limit)
    return _request(message, parse)


def inbox(user: str, after: str, limit: int) -> Request[InboxPage]:
    def parse(answer: dict[str, Any]) -> InboxPage:
        return InboxPage([_made(ChatRow, one) for one in answer["chats"]], answer["next"])

    return _request(wire.Inbox(user=user, after=after, limit=limit), parse)


def mark(chat: str, seq: int, user: str) -> Request[int]:
    return _request(wire.Mark(user=user, chat=chat, seq=seq), lambda answer: answer["read_seq"])


def signal(chat: str, kind: str, user: str, data: bytes) -> Request[int]:
    return _request(wire.Signal(chat=chat, user=user, kind=kind, data=data), lambda answer: answer["told"])


# ---- members and identities ----


def members(chat: str, user: str | None) -> Request[list[ChatMember]]:
    def parse(answer: dict[str, Any]) -> list[ChatMember]:
        return [_made(ChatMember, one) for one in answer["members"]]

    return _request(wire.Members(chat=chat, user=user), parse)


def add(chat: str, member: str, role: str, user: str | None, kind: str) -> Request[None]:
    message = wire.AddMember(chat=chat, member=member, role=role, user=user, kind=kind)
    return _request(message, lambda answer: None)


def remove(chat: str, member: str, user: str | None) -> Request[bool]:
    return _request(wire.RemoveMember(chat=chat, member=member, user=user), lambda answer: bool(answer["was_member"]))


def put_identity(user: str, blob: bytes) -> Request[bool]:
    return _request(wire.PutIdentity(user=user, blob=blob), lambda answer: answer["stored"])


def identity(user: str) -> Request[bytes | None]:
    return _request(wire.GetIdentity(user=user), lambda answer: answer["blob"])


# ---- the store ----


def info(chat: str, user: str | None) -> Request[dict[str, Any]]:
    return _request(wire.Info(chat=chat, user=user))


def stats(rows: bool) -> Request[dict[str, Any]]:
    return _request(wire.Stats(rows=rows))


def digest(fresh: bool, cutoff_ms: int) -> Request[dict[str, Any]]:
    return _request(wire.DigestRequest(fresh=fresh, cutoff_ms=cutoff_ms))


def retain(older_than: timedelta | None, cutoff_ms: int | None, dry_run: bool, now_ms: int) -> Request[dict[str, Any]]:
    if (older_than is None) == (cutoff_ms is None):
        raise InvalidRequest("retain takes older_than or cutoff_ms")
    if older_than is not None:
        cutoff_ms = now_ms - int(older_than.total_seconds() * 1000)
    return _request(wire.Retain(cutoff_ms=max(0, cutoff_ms or 0), dry_run=dry_run))


def verify() -> Request[dict[str, Any]]:
    return _request(wire.Verify())


def rebuild(over_holes: bool) -> Request[dict[str, Any]]:
    return _request(wire.Rebuild(over_holes=over_holes))


def sync(
    target: str, token: str | None, method: str, ca_file: str | os.PathLike[str] | None
) -> Request[dict[str, Any]]:
    where = with_ca_file(target, ca_file) or target
    return _request(wire.SyncWith(target=where, token=token, method=method))


# ---- listening ----


class Listening:
    """Where somebody who listens is. After each connection `request` says where to go on: messages behind the last one
    that came, an inbox from its beginning."""

    def __init__(self, chat: str | None, user: str | None, after_seq: int | None) -> None:
        self.chat = chat
        self.user = user
        self.after_seq = after_seq
        self._known: set[str] = set()  # of an inbox: chats whose rows were given
        self._listed: set[str] = set()  # of these, what a list that is under way has named
        self.events: deque[Any] = deque()

    def request(self) -> wire.Subscribe:
        self._listed = set()
        return wire.Subscribe(chat=self.chat, user=self.user, after_seq=self.after_seq, credit=CREDIT)

    def take(self, body: dict[str, Any]) -> int:
        """Events of one message; how many they are for the credit."""
        if "ended" in body:
            raise Forbidden(str(body["ended"]))
        if "signal" in body:
            self.events.append(_made(Signal, body["signal"]))
            return 1
        if "messages" in body:
            found = [_made(ChatMessage, one) for one in body["messages"]]
            self.events.extend(found)
            self.after_seq = int(body["seq"])
            return len(found)
        return self._take_rows(body)

    def _take_rows(self, body: dict[str, Any]) -> int:
        rows = [_made(ChatRow, one) for one in body["chats"]]
        first = bool(body.get("first"))
        self.events.extend(InboxChange(row.chat, row, first) for row in rows)
        self._known |= {row.chat for row in rows}
        gone = set(body.get("gone") or ())
        if first:
            self._listed |= {row.chat for row in rows}
            if body.get("complete"):
                gone = self._known - self._listed  # it went while nobody was connected
        self._known -= gone
        self.events.extend(InboxChange(chat, None) for chat in sorted(gone))
        return max(1, len(rows) + len(body.get("gone") or ()))


def credit(subscription: int, events: int) -> bytes:
    grant = wire.Credit(subscription=subscription, events=events)
    return message(wire.ChatOp.CREDIT, 0, packed(grant.to_wire()))
