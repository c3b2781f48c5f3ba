"""Members of chats as rows: added, removed, merged with those of other stores. Promise: with each row its record id
changes in the same batch, every row has exactly one, and the chat knows who is active.
"""

from __future__ import annotations

from topicd.errors import Conflict, Forbidden, InvalidRequest
from topicd.shards.chat import keys, members
from topicd.shards.chat.changes import Changes
from topicd.shards.chat.members import ADMIN, NOBODY, Member
from topicd.shards.chat.operations import Add, MergeMember, Remove
from topicd.shards.chat.rows import ChatMeta, Kind, Message, pack_member, unpack_member
from topicd.shards.chat.store import MEMBERS, SEEN_MEMBER, Store

MEMBERS_MAX = 10_000


def row_of(changes: Changes | Store, chat: bytes, user: bytes) -> Member | None:
    """As it is, removed or not."""
    raw = changes.get(MEMBERS, keys.member_key(chat, user))
    return None if raw is None else unpack_member(raw)


def is_admin(changes: Changes | Store, chat: bytes, user: bytes) -> bool:
    row = row_of(changes, chat, user)
    return row is not None and row.active and row.role == ADMIN


def active(store: Store, chat: bytes) -> list[tuple[bytes, Member]]:
    rows = ((key[keys.CHAT :], unpack_member(value)) for key, value in store.scan(MEMBERS, prefix=chat))
    return [(user, member) for user, member in rows if member.active]


def found(changes: Changes, message: Message, role: int) -> None:
    """Who sends first to a chat that does not exist makes it."""
    changes.set_meta(message.chat, changes.meta(message.chat)._replace(kind=message.kind))
    old = row_of(changes, message.chat, message.sender) or NOBODY
    _set(changes, message.chat, message.sender, members.added(old, role, message.stamp))


def add(changes: Changes, op: Add) -> Member:
    meta = changes.meta(op.chat)
    _check_group(meta)
    role = op.role
    if not meta.exists:
        changes.set_meta(op.chat, meta._replace(kind=op.kind))
        if op.by and op.by != op.user:
            owner = row_of(changes, op.chat, op.by) or NOBODY
            _set(changes, op.chat, op.by, members.added(owner, ADMIN, op.stamp))
        elif op.by:
            role = ADMIN
    else:
        _check_admin(changes, op.chat, op.by)
        if not meta.has(op.user) and len(meta.members) >= MEMBERS_MAX * keys.USER:
            raise Conflict(f"a chat has at most {MEMBERS_MAX} members")
    changes.learn_chat(op.chat, op.chat_name)
    changes.learn_user(op.user, op.user_name)
    old = row_of(changes, op.chat, op.user) or NOBODY
    return _set(changes, op.chat, op.user, members.added(old, role, op.stamp))


def remove(changes: Changes, op: Remove) -> bool:
    """Did the user belong to it?"""
    _check_group(changes.meta(op.chat))
    if op.by != op.user:
        _check_admin(changes, op.chat, op.by)
    changes.learn_chat(op.chat, op.chat_name)
    changes.learn_user(op.user, op.user_name)
    old = row_of(changes, op.chat, op.user) or NOBODY
    _set(changes, op.chat, op.user, members.removed(old, op.stamp))
    return old.active


def merge(changes: Changes, op: MergeMember) -> Member:
    """A row of another store: nobody is asked."""
    incoming = members.checked(Member(op.role, op.added_at, op.removed_at))
    changes.learn_chat(op.chat, op.chat_name)
    changes.learn_user(op.user, op.user_name)
    old = row_of(changes, op.chat, op.user)
    return _set(changes, op.chat, op.user, incoming if old is None else members.merge(old, incoming))


def _set(changes: Changes, chat: bytes, user: bytes, row: Member) -> Member:
    key = keys.member_key(chat, user)
    raw = changes.get(MEMBERS, key)
    old = None if raw is None else unpack_member(raw)
    if row == old:
        return row
    new_id = members.record_id(chat, user, row)
    old_id = None if old is None else members.record_id(chat, user, old)
    if old_id is not None:
        changes.delete(SEEN_MEMBER, old_id)
    changes.put(MEMBERS, key, pack_member(row))
    changes.put(SEEN_MEMBER, new_id, key)
    changes.record("members", old_id, new_id)
    _count(changes, chat, user, row.active)
    return row


def _count(changes: Changes, chat: bytes, user: bytes, is_active: bool) -> None:
    meta = changes.meta(chat)
    users = set(meta.users)
    if meta.kind == Kind.DM:
        return  # its members are its two users, whatever rows say
    if is_active != (user in users):
        users ^= {user}
        joined = b"".join(sorted(users))
        changes.set_meta(chat, meta._replace(members=joined, membership_hash=members.xor(joined)))


def _check_group(meta: ChatMeta) -> None:
    if meta.kind == Kind.DM:
        raise InvalidRequest("the members of a chat between two users cannot change")


def _check_admin(changes: Changes, chat: bytes, by: bytes) -> None:
    if by and not is_admin(changes, chat, by):
        raise Forbidden("only admins of this chat change its members")
