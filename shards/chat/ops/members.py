"""Members and identities."""

from __future__ import annotations

from typing import Any

from topicd.errors import InvalidRequest
from topicd.ipc.protocol import chat as wire
from topicd.shards.chat import hlc, membership
from topicd.shards.chat.call import Call, operation
from topicd.shards.chat.identity import STAMP
from topicd.shards.chat.members import ROLE_NAMES, ROLES
from topicd.shards.chat.names import KIND_NAMES, KINDS
from topicd.shards.chat.operations import Add, PutIdentity, Remove
from topicd.shards.chat.ops.messages import visible
from topicd.shards.chat.rows import Kind
from topicd.shards.chat.store import IDENTITY


@operation(wire.Members)
def members(call: Call, want: wire.Members) -> dict[str, Any]:
    chat, meta, _ = visible(call, want.chat, want.user)
    names = call.service.names
    if meta.kind == Kind.DM and meta.exists:
        given = dict(filter(None, (call.user(want.user), names.user(want.chat[1:]) if want.chat[0] == "@" else None)))
        rows = [
            {
                "user": one.hex(),
                "name": names.user_name(one) or given.get(one, ""),
                "role": "participant",
                "since_ms": 0,
            }
            for one in meta.users
        ]
    else:
        rows = [
            {
                "user": user.hex(),
                "name": names.user_name(user),
                "role": ROLE_NAMES[member.role],
                "since_ms": hlc.physical_ms(member.added_at),
            }
            for user, member in membership.active(call.service.store, chat)
        ]
    return {"members": rows, "kind": KIND_NAMES[Kind(meta.kind)]}


def _group(call: Call, given: str) -> tuple[bytes, str]:
    if given.startswith("@"):
        raise InvalidRequest("the members of a chat between two users cannot change")
    ref = call.service.names.chat(given, None)
    return ref.id, ref.name


@operation(wire.AddMember)
async def add(call: Call, want: wire.AddMember) -> dict[str, Any]:
    service = call.service
    chat, chat_name = _group(call, want.chat)
    by = call.user(want.user)
    user, user_name = service.names.user(want.member)
    stamp = service.clock.stamp()
    op = Add(chat, user, ROLES[want.role], stamp, by[0] if by else b"", KINDS[want.kind], chat_name, user_name)
    row = await service.writer.one(op)
    return {"user": user.hex(), "role": ROLE_NAMES[row.role], "since_ms": hlc.physical_ms(row.added_at)}


@operation(wire.RemoveMember)
async def remove(call: Call, want: wire.RemoveMember) -> dict[str, Any]:
    service = call.service
    chat, chat_name = _group(call, want.chat)
    by = call.user(want.user)
    user, user_name = service.names.user(want.member)
    op = Remove(chat, user, service.clock.stamp(), by[0] if by else b"", chat_name, user_name)
    return {"user": user.hex(), "was_member": await service.writer.one(op)}


@operation(wire.PutIdentity)
async def put_identity(call: Call, want: wire.PutIdentity) -> dict[str, Any]:
    user, name = call.required_user(want.user)
    stored = await call.service.writer.one(PutIdentity(user, call.service.clock.stamp(), want.blob, name))
    return {"user": user.hex(), "stored": stored}


@operation(wire.GetIdentity)
def get_identity(call: Call, want: wire.GetIdentity) -> dict[str, Any]:
    user, _ = call.service.names.user(want.user)
    raw = call.service.store.get(IDENTITY, user)
    return {"user": user.hex(), "blob": None if raw is None else raw[STAMP:]}
