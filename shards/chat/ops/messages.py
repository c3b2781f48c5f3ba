"""Messages: sent, read; inboxes; how far somebody has read."""

from __future__ import annotations

from typing import Any

from topicd.errors import ChatNotFound, Forbidden, InvalidRequest, TopicdError
from topicd.ipc.protocol import chat as wire
from topicd.shards.chat import hlc, inbox, keys, messages
from topicd.shards.chat.call import Call, operation
from topicd.shards.chat.changes import Metas
from topicd.shards.chat.members import xor
from topicd.shards.chat.names import KIND_NAMES, KINDS
from topicd.shards.chat.operations import Mark, Operation, Send
from topicd.shards.chat.rows import NO_CHAT, ChatMeta, Kind, Message

_DM = int(Kind.DM)


@operation(wire.Send)
async def send(call: Call, want: wire.Send) -> dict[str, Any]:
    service = call.service
    kind, metas = KINDS[want.kind], service.view.metas
    # One for each, also for those that are refused: a stamp that nobody has does no harm.
    first = service.clock.stamps(len(want.messages)) if want.messages else 0
    results: list[Any] = []
    ops: list[Operation] = []
    for number, row in enumerate(want.messages):
        try:
            message, meta = _message(call, row, kind, first + number, metas)
        except InvalidRequest as exc:
            if len(want.messages) == 1:
                raise
            raise InvalidRequest(f"message {number}: {exc.message}") from None
        if message.kind != Kind.DM and meta.exists and not meta.has(message.sender):
            results.append(Forbidden("the sender is not a member of this chat").to_wire())
        else:
            results.append(None)
            ops.append(Send(message, message.pack()))
    if ops:
        outcomes = iter(await service.writer.submit(ops))
        for number, refused in enumerate(results):
            if refused is None:
                outcome = next(outcomes)
                results[number] = outcome.to_wire() if isinstance(outcome, TopicdError) else outcome
                service.counts["duplicates"] += not isinstance(outcome, TopicdError) and outcome.seq == 0
    service.counts["sends"] += len(results)
    return {"results": results}


def _message(call: Call, row: list[Any], kind: int, stamp: int, metas: Metas) -> tuple[Message, ChatMeta]:
    """With its chat as it is now."""
    user, user_name = call.required_user(row[0])
    ref = call.service.names.chat(row[1], user)
    blob = row[4] if len(row) > 4 else b""
    meta = metas.get(ref.id)
    if ref.peer:
        fields = (row[3], ref.id, user, stamp, _DM, row[2], ref.peer, blob, ref.peer_name, user_name)
    else:
        if meta.kind == _DM and meta.exists:
            raise InvalidRequest("a chat between two users is written to as @name")
        fields = (row[3], ref.id, user, stamp, kind, row[2], b"", blob, ref.name, user_name)
    return messages.checked(Message(*fields)), meta


def visible(
    call: Call, given: str, user: str | None, *, made_later: bool = False
) -> tuple[bytes, ChatMeta, bytes | None]:
    """A chat that the one who asks may see, and who that is. One of two users is there before they said anything; of
    another that is not there the operator may be asked who waits for it (made_later)."""
    acting = call.user(user)
    asking = acting[0] if acting else None
    ref = call.service.names.chat(given, asking)
    meta = call.service.view.metas.get(ref.id)
    if meta.kind != _DM and ref.peer and asking is not None:
        # Whatever somebody may have made of its id meanwhile: with the first message it is theirs.
        both = b"".join(sorted({asking, ref.peer}))
        meta = NO_CHAT._replace(kind=_DM, members=both, membership_hash=xor(both))
    if not meta.exists and not (made_later and asking is None):
        raise ChatNotFound(f"there is no chat {given!r:.100}")
    if asking is not None and not meta.has(asking):
        raise Forbidden("the user is not a member of this chat")
    return ref.id, meta, asking


@operation(wire.Range)
def read(call: Call, want: wire.Range) -> dict[str, Any]:
    chat, _, _ = visible(call, want.chat, want.user)
    service = call.service
    service.counts["reads"] += 1
    store, cutoff_ms = service.store, service.view.cutoff_ms
    if want.newest:
        page = messages.page_back(store, chat, want.before, want.limit, cutoff_ms)
    else:
        page = messages.page(store, chat, want.after, want.limit, cutoff_ms)
    return {"messages": [service.names.message(seq, one) for seq, one in page.items], "next": page.next}


@operation(wire.Inbox)
def list_inbox(call: Call, want: wire.Inbox) -> dict[str, Any]:
    user, _ = call.required_user(want.user)
    service = call.service
    service.counts["reads"] += 1
    page = inbox.page(service.store, user, want.after, want.limit)
    return {"chats": [service.names.row(user, row) for row in page.rows], "next": page.next}


@operation(wire.Mark)
async def mark(call: Call, want: wire.Mark) -> dict[str, Any]:
    user, _ = call.required_user(want.user)
    chat, meta, _ = visible(call, want.chat, want.user)
    if want.seq > meta.last_seq:
        raise inbox.beyond(meta, want.seq)
    if not meta.last_seq:
        return {"read_seq": 0}
    read_seq = await call.service.writer.one(Mark(user, chat, want.seq))
    call.service.live.marked(user, chat)
    return {"read_seq": read_seq}


@operation(wire.Info)
def info(call: Call, want: wire.Info) -> dict[str, Any]:
    chat, meta, _ = visible(call, want.chat, want.user)
    return {
        "chat": chat.hex(),
        "name": call.service.names.chat_name(chat),
        "kind": KIND_NAMES[Kind(meta.kind)],
        "last_seq": meta.last_seq,
        "ms": hlc.physical_ms(meta.last_ts),
        "last_id": meta.last_msg_id.hex(),
        "members": len(meta.members) // keys.USER,
        "membership_hash": meta.membership_hash.hex(),
        "identity": meta.identity,
        "announced_ms": meta.last_announced_ms,
    }
