"""Messages: put once, read in pages. Promise: a message is one batch of three writes (the message, its id, its chat), a
known id changes nothing, and pages of a chat have no overlap and no hole.
"""

from __future__ import annotations

from typing import NamedTuple

from topicd.errors import Conflict, Forbidden, InvalidRequest
from topicd.shards.chat import cursors, hlc, keys, membership
from topicd.shards.chat.changes import Changes, Metas
from topicd.shards.chat.members import ADMIN, xor
from topicd.shards.chat.rows import BODY_MAX, META_BLOB_MAX, PREVIEW, ChatMeta, Kind, Message
from topicd.shards.chat.store import DEFAULT, MESSAGES, SEEN_MSG, USER_READ_PROGRESS, Store

PAGE_MAX = 1_000
PAGE_BYTES = 512 * 1024


_KINDS = frozenset(map(int, Kind))


class Stored(NamedTuple):
    """seq 0 and an empty cursor: it was there already."""

    msg_id: bytes
    seq: int
    cursor: str


class Page(NamedTuple):
    items: list[tuple[int, Message]]  # (seq in the chat, message)
    next: str  # cursor, empty at the end


def checked(message: Message) -> Message:
    """Of another store or a user: everything that does not depend on what is there."""
    keys.sized("a message id", message.msg_id, keys.MSG)
    keys.sized("a chat id", message.chat, keys.CHAT)
    keys.sized("a user id", message.sender, keys.USER)
    if message.kind not in _KINDS:
        raise InvalidRequest(f"a chat is of kind 0 (dm), 1 (group) or 2 (channel), not {message.kind!r:.50}")
    body = message.body
    if not isinstance(body, str) or len(body if body.isascii() else body.encode()) > BODY_MAX:
        raise InvalidRequest(f"a message is a text of at most {BODY_MAX} bytes")
    if message.kind == Kind.DM and keys.dm_id(message.sender, message.peer) != message.chat:
        raise InvalidRequest("the id of this chat is not that of its two users")
    if message.kind != Kind.DM and (message.peer or message.blob):
        raise InvalidRequest("only messages between two users have a peer and a blob")
    if not isinstance(message.blob, bytes) or len(message.blob) > META_BLOB_MAX:
        raise InvalidRequest(f"the blob of a chat has at most {META_BLOB_MAX} bytes")
    if isinstance(message.stamp, bool) or not isinstance(message.stamp, int) or not 0 < message.stamp <= hlc.MAX_STAMP:
        raise InvalidRequest(f"the time of a message is a packed hybrid time, not {message.stamp!r:.50}")
    return message


def send(changes: Changes, message: Message, at_ms: int, cutoff_ms: int, row: bytes = b"") -> Stored:
    """By a user of this store; row: the message as it is stored, where it is packed already."""
    if changes.seen(message.msg_id):
        return Stored(message.msg_id, 0, "")
    meta = changes.meta(message.chat)
    if message.kind != Kind.DM:
        if not meta.exists:
            _check_age(message, cutoff_ms)
            membership.found(changes, message, ADMIN)
        elif not meta.has(message.sender):
            raise Forbidden("the sender is not a member of this chat")
        elif meta.kind == Kind.DM:
            raise InvalidRequest("a chat between two users is written to as @name")
        elif meta.kind == Kind.CHANNEL and not membership.is_admin(changes, message.chat, message.sender):
            raise Forbidden("only admins send to this channel")
        elif message.kind != meta.kind:
            message, row = message._replace(kind=meta.kind), b""
    stored = _put(changes, message, at_ms, cutoff_ms, row)
    _read_own(changes, message.sender, message.chat, stored.seq)
    return stored


def put(changes: Changes, message: Message, at_ms: int, cutoff_ms: int) -> Stored:
    """From wherever it comes."""
    if changes.seen(message.msg_id):
        return Stored(message.msg_id, 0, "")
    return _put(changes, message, at_ms, cutoff_ms)


def _put(changes: Changes, message: Message, at_ms: int, cutoff_ms: int, row: bytes = b"") -> Stored:
    _check_age(message, cutoff_ms)
    chat = message.chat
    meta = changes.meta(chat)
    seq = meta.last_seq + 1
    if seq > keys.MAX_U32:
        raise Conflict("the chat is full: it has 2^32 - 1 messages")
    key = chat + keys.STAMP_SEQ.pack(message.stamp, seq)  # its ids were checked when it came in
    rows = changes.writes.rows
    rows[MESSAGES][key] = row or message.pack()
    rows[SEEN_MSG][message.msg_id] = key
    rows[DEFAULT][keys.arrival_key(chat, seq)] = key[keys.CHAT : -4]
    changes.set_meta(chat, _counted(meta, message, seq, at_ms))
    if message.kind == Kind.DM:
        changes.learn_user(message.peer, message.chat_name)
    else:
        changes.learn_chat(chat, message.chat_name)
    changes.learn_user(message.sender, message.sender_name)
    changes.record("messages", None, message.msg_id)
    changes.message_came(chat)
    return Stored(message.msg_id, seq, cursors.to_text(key))


def _check_age(message: Message, cutoff_ms: int) -> None:
    if hlc.physical_ms(message.stamp) <= cutoff_ms:
        raise Conflict("the message is older than what this store keeps", cutoff_ms=cutoff_ms)


def _counted(meta: ChatMeta, message: Message, seq: int, at_ms: int) -> ChatMeta:
    """The chat with one more message. The first one between two users makes it theirs, whoever was in a chat of that id
    before, and nothing takes it from them: so all stores agree, whatever came first."""
    members, xored, kind = meta.members, meta.membership_hash, max(meta.kind, message.kind)
    if meta.kind == Kind.DM:
        kind = int(Kind.DM)
    elif message.kind == Kind.DM:
        kind = int(Kind.DM)
        members = b"".join(sorted({message.sender, message.peer}))
        xored = xor(members)
    blob, blob_at = meta.identity, meta.identity_at
    if message.blob and (place := keys.u64(message.stamp) + message.msg_id) > blob_at:
        blob, blob_at = message.blob, place
    newest = (meta.last_ts, meta.last_msg_id, meta.last_msg_ts, meta.last_sender, meta.preview)
    if (message.stamp, message.msg_id) > newest[:2]:
        ms = hlc.physical_ms(message.stamp)
        newest = (message.stamp, message.msg_id, ms, message.sender, message.body[:PREVIEW])
    announced = max(meta.last_announced_ms, at_ms)
    # In the order of the fields: naming them costs as much as everything above.
    return ChatMeta(
        *(newest[0], seq, newest[1], members, newest[2], announced),
        *(blob, blob_at, xored, kind, newest[3], newest[4]),
    )


def _read_own(changes: Changes, user: bytes, chat: bytes, seq: int) -> None:
    """Who had read everything has read everything with the own message, too."""
    key = keys.progress_key(user, chat)
    raw = changes.progress(key)
    if seq == (keys.parse_u32(raw) if raw else 0) + 1:
        changes.put(USER_READ_PROGRESS, key, keys.u32(seq))


# ---- reading ----


def page(store: Store, chat: bytes, after: str, limit: int, cutoff_ms: int) -> Page:
    """In the order of time, behind a cursor."""
    start = keys.message_key(chat, hlc.pack(cutoff_ms + 1, 0) if cutoff_ms else 0, 0)
    if after:
        behind = keys.after(cursors.message_cursor(after, chat))
        if behind is None:
            return Page([], "")
        start = max(start, behind)
    found: list[tuple[int, Message]] = []
    size, last = 0, b""
    for key, value in store.scan(MESSAGES, start, chat):
        if len(found) == limit or (found and size + len(value) > PAGE_BYTES):
            return Page(found, cursors.to_text(last))
        found.append((keys.parse_message_key(key).seq, Message.unpack(value)))
        size, last = size + len(value), key
    return Page(found, "")


def page_back(store: Store, chat: bytes, before: str, limit: int, cutoff_ms: int) -> Page:
    """The newest ones, or those before a cursor; in the order of time as well. `next` leads further back."""
    end = cursors.message_cursor(before, chat) if before else chat + b"\xff" * (keys.MESSAGE_KEY - keys.CHAT)
    found: list[tuple[int, Message]] = []
    size, first = 0, b""
    for key, value in store.scan_back(MESSAGES, end, chat):
        if key == end and before:
            continue
        if hlc.physical_ms(keys.parse_message_key(key).stamp) <= cutoff_ms:
            break
        if len(found) == limit or (found and size + len(value) > PAGE_BYTES):
            return Page(found[::-1], cursors.to_text(first))
        found.append((keys.parse_message_key(key).seq, Message.unpack(value)))
        size, first = size + len(value), key
    return Page(found[::-1], "")


def arrived(
    store: Store, chat: bytes, after_seq: int, limit: int, cutoff_ms: int
) -> tuple[list[tuple[int, Message]], int]:
    """In the order in which they came here: what is behind a seq, and the last seq that was looked at."""
    if after_seq >= keys.MAX_U32:
        return [], after_seq
    places: list[tuple[int, bytes]] = []
    for key, value in store.scan(DEFAULT, keys.arrival_key(chat, after_seq + 1), keys.arrival_prefix(chat)):
        seq = keys.parse_u32(key[-4:])
        places.append((seq, keys.message_key(chat, keys.parse_u64(value), seq)))
        if len(places) == limit:
            break
    found: list[tuple[int, Message]] = []
    size, seen = 0, after_seq
    for (seq, key), raw in zip(places, store.get_many(MESSAGES, [key for _, key in places]), strict=True):
        if found and raw is not None and size + len(raw) > PAGE_BYTES:
            break
        seen = seq
        if raw is not None and hlc.physical_ms(keys.parse_message_key(key).stamp) > cutoff_ms:
            found.append((seq, Message.unpack(raw)))
            size += len(raw)
    return found, seen


def is_member(metas: Metas, chat: bytes, user: bytes) -> bool:
    return metas.get(chat).has(user)
