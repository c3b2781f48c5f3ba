"""Every request that a chat process takes: its op, its fields with their rules, the right it needs. Promise: clients
and other chat stores build their requests of these, the process checks them by these, and docs/protocol.md has their
table.

Chats and users are given by name, or as 64 and 40 hex digits; `@name` as a chat is the one with that user.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar

from topicd.errors import BatchTooLarge, InvalidRequest
from topicd.ipc.protocol import wire
from topicd.ipc.protocol.fields import NEEDED, Message, Rule, anything, blob, choice, flag, number, text

SYNC_VERSION = 1
SEND_MAX = 1_000
PAGE_MAX = 1_000
NAME_MAX = 256
IDS_MAX = 512
NODES_MAX = 1_024
BATCH_BYTES = 512 * 1024
EVENTS_MAX = 100_000
U32_MAX = 0xFFFF_FFFF
STAMP_MS_MAX = (1 << 48) - 1
_DOMAIN = ("messages", "members", "identities")


class ChatOp(IntEnum):
    """On the socket of a chat process; HELLO and PING are those of all processes."""

    HELLO = wire.OP_HELLO
    PING = wire.OP_PING
    SEND = 0x60
    RANGE = 0x61
    INBOX = 0x62
    MARK = 0x63
    MEMBERS = 0x64
    ADD = 0x65
    REMOVE = 0x66
    PUT_IDENTITY = 0x67
    GET_IDENTITY = 0x68
    INFO = 0x69
    STATS = 0x6A
    DIGEST = 0x6B
    RETAIN = 0x6C
    VERIFY = 0x6D
    REBUILD = 0x6E
    SYNC = 0x6F
    SUBSCRIBE = 0x70
    UNSUBSCRIBE = 0x71
    CREDIT = 0x72
    SIGNAL = 0x73
    SYNC_OPEN = 0x74
    SYNC_NODES = 0x75
    SYNC_BUCKETS = 0x76
    SYNC_RECONCILE = 0x77
    SYNC_FETCH = 0x78
    SYNC_PUSH = 0x79
    EVENTS = 0xBC  # follow a SUBSCRIBE under its request id


class ChatRequest(Message):
    """right: the scope that a token needs, any one of several. What is done as a `user` needs a token of that name, or
    one that may do everything."""

    OP: ClassVar[ChatOp]
    RIGHT: ClassVar[tuple[str, ...]] = ()
    ANSWER: ClassVar[str] = "{}"

    def __init_subclass__(
        cls, *, op: ChatOp, right: str | tuple[str, ...] = (), answer: str = "{}", **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        cls.OP = op
        cls.RIGHT = (right,) if isinstance(right, str) else right
        cls.ANSWER = answer
        CHAT_REQUESTS[op] = cls


CHAT_REQUESTS: dict[int, type[ChatRequest]] = {}

_MESSAGE = "{id, seq, cursor, chat, chat_name, sender, sender_name, kind, ms, logical, text, blob}"


def _rows() -> Any:
    """[user, chat, text, message id, blob?] each; ids and texts are judged where they are used."""

    def check(name: str, value: Any) -> list[list[Any]]:
        if not isinstance(value, list) or not value:
            raise InvalidRequest(f"{name} must be a list of [user, chat, text, id] with at least one entry")
        if len(value) > SEND_MAX:
            raise BatchTooLarge(f"{name} has at most {SEND_MAX} entries, this one has {len(value)}")
        for row in value:
            if not isinstance(row, list) or not 4 <= len(row) <= 5:
                raise InvalidRequest(f"each of {name} must be [user, chat, text, id] or [user, chat, text, id, blob]")
        return value

    return Rule(f"list of at most {SEND_MAX:,} [user, chat, text, id (32 bytes), blob?]", check, NEEDED)


class Send(
    ChatRequest,
    op=ChatOp.SEND,
    right="write",
    answer="results [[id, seq, cursor] (seq 0: it was there already), or an error map], in the order of the messages",
):
    """A chat that does not exist is made, and its first sender its admin."""

    messages: list[list[Any]] = _rows()
    kind: str = choice("group", "channel", default="group", help="of chats that are made")


class Range(
    ChatRequest, op=ChatOp.RANGE, right="read", answer=f"messages [{_MESSAGE}], next (cursor, empty at the end)"
):
    """In the order of time. With a user: only if that is a member."""

    chat: str = text(NAME_MAX)
    user: str | None = text(NAME_MAX, default=None)
    after: str = text(128, default="", help="cursor")
    before: str = text(128, default="", help="cursor; with newest")
    newest: bool = flag(default=False, help="the last ones, or those before `before`; next leads further back")
    limit: int = number(1, PAGE_MAX, default=50)


class Inbox(
    ChatRequest,
    op=ChatOp.INBOX,
    right="read",
    answer="chats [{chat, chat_name, kind, ms, last_seq, read_seq, unread, last_id, last_sender, last_sender_name, "
    "preview, peer?, peer_name?}], newest first, next (cursor, empty at the end)",
):
    user: str = text(NAME_MAX)
    after: str = text(128, default="", help="cursor")
    limit: int = number(1, PAGE_MAX, default=50)


class Mark(ChatRequest, op=ChatOp.MARK, right="write", answer="read_seq"):
    """The user has read up to a seq; it never goes back."""

    user: str = text(NAME_MAX)
    chat: str = text(NAME_MAX)
    seq: int = number(0, U32_MAX)


class Members(ChatRequest, op=ChatOp.MEMBERS, right="read", answer="members [{user, name, role, since_ms}], kind"):
    chat: str = text(NAME_MAX)
    user: str | None = text(NAME_MAX, default=None, help="who asks")


class AddMember(ChatRequest, op=ChatOp.ADD, right="write", answer="user, role, since_ms"):
    chat: str = text(NAME_MAX)
    member: str = text(NAME_MAX)
    role: str = choice("participant", "admin", default="participant")
    kind: str = choice("group", "channel", default="group", help="of a chat that is made")
    user: str | None = text(NAME_MAX, default=None, help="who adds: an admin of the chat; nil: the operator")


class RemoveMember(ChatRequest, op=ChatOp.REMOVE, right="write", answer="user, was_member"):
    chat: str = text(NAME_MAX)
    member: str = text(NAME_MAX)
    user: str | None = text(NAME_MAX, default=None, help="who removes: an admin, or the member; nil: the operator")


class PutIdentity(ChatRequest, op=ChatOp.PUT_IDENTITY, right="write", answer="user, stored"):
    user: str = text(NAME_MAX)
    blob: bytes = blob(1, 1_024)


class GetIdentity(ChatRequest, op=ChatOp.GET_IDENTITY, right="read", answer="user, blob (nil: there is none)"):
    user: str = text(NAME_MAX)


class Info(
    ChatRequest,
    op=ChatOp.INFO,
    right="read",
    answer="chat, name, kind, last_seq, ms, last_id, members (how many), membership_hash, identity, announced_ms",
):
    chat: str = text(NAME_MAX)
    user: str | None = text(NAME_MAX, default=None, help="who asks")


class Stats(
    ChatRequest,
    op=ChatOp.STATS,
    right="read",
    answer="tables {name: rows}, applied_seq, head_seq, cutoff_ms, cleaning, and the engine's figures",
):
    rows: bool = flag(default=True, help="count the rows of each table, which takes a while")


class DigestRequest(ChatRequest, op=ChatOp.DIGEST, right="read", answer="domains {name: {root, count}}, cutoff_ms"):
    fresh: bool = flag(default=False, help="made anew from the tables instead of kept up to date")
    cutoff_ms: int = number(0, STAMP_MS_MAX, default=0, help="of messages only those behind it")


class Retain(
    ChatRequest, op=ChatOp.RETAIN, right="admin", answer="cutoff_ms, chats, messages, bytes (that go or have gone)"
):
    cutoff_ms: int = number(0, STAMP_MS_MAX, help="messages up to it go")
    dry_run: bool = flag(default=False)


class Verify(ChatRequest, op=ChatOp.VERIFY, right="admin", answer="seq, rows, differences [{table, key, stored, log}]"):
    """Is the store what its log makes? The first 20 differences."""


class Rebuild(ChatRequest, op=ChatOp.REBUILD, right="admin", answer="seq, rows"):
    """The store is made anew from its log. Where entries of it are missing or damaged, over_holes goes on without them:
    a store that has them becomes the base, for another one they are told and counted as not understood."""

    over_holes: bool = flag(default=False)


class SyncWith(
    ChatRequest,
    op=ChatOp.SYNC,
    right="admin",
    answer="domains {name: {sent, received, refused, finding_bytes}}, rounds, bytes_out, bytes_in, seconds, equal, "
    "method, cutoff_ms",
):
    target: str = text(1_024, help="tls://host:port or tcp://host:port of another chat store")
    token: str | None = text(4_096, default=None)
    method: str = choice("negentropy", "digest", default="negentropy")


class Subscribe(
    ChatRequest, op=ChatOp.SUBSCRIBE, right="read", answer="subscription; then EVENTS with the same request id"
):
    """To the messages of a chat, in the order in which they come to this store, or without one to a user's inbox."""

    user: str | None = text(NAME_MAX, default=None)
    chat: str | None = text(NAME_MAX, default=None)
    after_seq: int | None = number(0, U32_MAX, default=None, help="of a chat: behind this seq; nil: only what comes")
    credit: int = number(1, EVENTS_MAX, default=1_000, help="events that may be sent")


class Unsubscribe(ChatRequest, op=ChatOp.UNSUBSCRIBE):
    subscription: int = number(0, U32_MAX, help="request id of the SUBSCRIBE")


class Credit(ChatRequest, op=ChatOp.CREDIT, answer="none"):
    subscription: int = number(0, U32_MAX)
    events: int = number(1, EVENTS_MAX, help="that may be sent beyond what was granted before")


class Signal(ChatRequest, op=ChatOp.SIGNAL, right="write", answer="told (subscribers)"):
    """For those who listen now, like \"is typing\"; kept nowhere."""

    chat: str = text(NAME_MAX)
    user: str = text(NAME_MAX)
    kind: str = text(32)
    data: bytes = blob(0, 1_024, default=b"")


# ---- between two stores ----


class SyncOpen(ChatRequest, op=ChatOp.SYNC_OPEN, right="sync", answer="version, store, cutoff_ms"):
    version: int = number(1, U32_MAX)
    store: bytes = blob(16, 16, help="who asks")
    cutoff_ms: int = number(0, STAMP_MS_MAX, help="the higher one holds for both")


class SyncNodes(ChatRequest, op=ChatOp.SYNC_NODES, right="sync", answer="root, hashes (16 bytes per child, in order)"):
    """Hashes of the children of nodes of a digest."""

    domain: str = choice(*_DOMAIN)
    cutoff_ms: int = number(0, STAMP_MS_MAX)
    level: int = number(0, 3, default=0)
    nodes: bytes = blob(0, 2 * NODES_MAX, default=b"", help="indexes, 2 bytes each")


class SyncBuckets(
    ChatRequest, op=ChatOp.SYNC_BUCKETS, right="sync", answer="buckets [ids, joined], taken (of those asked for)"
):
    domain: str = choice(*_DOMAIN)
    cutoff_ms: int = number(0, STAMP_MS_MAX)
    buckets: bytes = blob(2, 2 * NODES_MAX, help="numbers, 2 bytes each")


class SyncReconcile(ChatRequest, op=ChatOp.SYNC_RECONCILE, right="sync", answer="message"):
    """A message of negentropy v1 and its answer."""

    domain: str = choice(*_DOMAIN)
    cutoff_ms: int = number(0, STAMP_MS_MAX)
    message: bytes = blob(1, BATCH_BYTES)


class SyncFetch(ChatRequest, op=ChatOp.SYNC_FETCH, right="sync", answer="records, taken (ids that were looked at)"):
    domain: str = choice(*_DOMAIN)
    cutoff_ms: int = number(0, STAMP_MS_MAX)
    ids: bytes = blob(32, 32 * IDS_MAX, help="32 bytes each")


class SyncPush(ChatRequest, op=ChatOp.SYNC_PUSH, right="sync", answer="stored, refused"):
    domain: str = choice(*_DOMAIN)
    records: list[Any] = anything(help=f"at most {IDS_MAX}, as SYNC_FETCH answers them")
