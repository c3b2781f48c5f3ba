"""The chat store over HTTP. Contract: docs/chat.md. Promise: what a key may do is what its token may do at the store; a
stream of events goes on behind the event it is asked to go on behind, without a hole.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from topicd.client.aio.caller import AioCaller
from topicd.client.aio.chat import AsyncChat
from topicd.client.core.chat import ChatMessage
from topicd.errors import Forbidden, InvalidRequest, TopicdError
from topicd.gateway import errors
from topicd.gateway.endpoints import Call, Service, endpoint
from topicd.gateway.shards import PATIENCE_S
from topicd.gateway.sse import RETRY, EventStream, error_frame, frame
from topicd.gateway.web.messages import Reply
from topicd.ipc.protocol.retry import Tempo

_USER = {"user": "as whom; with a key: its subject or name, unless it may do everything"}
_PAGE = {"limit": "1 to 1,000", "after": "cursor of the page before"}
U32_MAX = 0xFFFF_FFFF
# Errors that chats have and topics have not, or not in these words.
_STATUS = {"chat_not_found": 404, "conflict": 409, "storage_corrupt": 500}
# What an endpoint may answer, beside what every one may.
_DONE = {200: "done", 400: "no user, or what the store does not take", 404: "no such chat, or no chat store"}
_STORED = {**_DONE, 409: "does not go together with what is there"}
_KNOWN = {**_DONE, 404: "the user has put nothing, or there is no chat store"}


class NewMessage(Struct):
    text: str
    user: str | None = None
    id: str | None = None
    kind: Literal["group", "channel"] = "group"


class NewMember(Struct):
    member: str
    role: Literal["participant", "admin"] = "participant"
    user: str | None = None


class GoneMember(Struct):
    member: str
    user: str | None = None


class Progress(Struct):
    seq: Annotated[int, Meta(ge=0, le=U32_MAX)]
    user: str | None = None


class NewIdentity(Struct):
    hex: str
    user: str | None = None


_CALLERS: dict[int, AioCaller] = {}  # by service: there is one, but for tests


def _chat(service: Service) -> AsyncChat:
    if not service.settings.chat:
        raise errors.not_found("the daemon keeps no chat store: start it with --chat")
    caller = _CALLERS.get(id(service))
    if caller is None:
        shard_map = service.shards.shared.shard_map
        caller = _CALLERS[id(service)] = AioCaller(shard_map, tempo=Tempo(), timeout=PATIENCE_S, token=None)
    return AsyncChat(caller)


def _user(call: Call, given: str | None) -> str:
    """As whom it is done."""
    if call.service.keys.needed and "admin" not in call.rights.scopes:
        own = call.rights.subject or call.rights.name
        if given not in (None, "", own):
            raise errors.forbidden(f"the key cannot act as {given!r:.100}")
        return own
    if not given:
        raise errors.invalid("say as which user: the field, or the query, `user`")
    return given


def _plain(found: Any) -> dict[str, Any]:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in asdict(found).items()}


def _refusal(error: TopicdError) -> errors.Refusal:
    status = _STATUS.get(error.code)
    if status is None:
        return errors.of(error)
    return errors.Refusal(status, error.code, error.message, dict(error.detail))


async def _asked(asking: Any) -> Any:
    try:
        return await asking
    except TopicdError as exc:
        raise _refusal(exc) from None


# ---- messages ----


@endpoint("POST", "/v0/chat/{room}/messages", "write", body=NewMessage, answers=_STORED)
async def send(call: Call, room: str, body: NewMessage) -> Reply:
    """Send a message; the same id is stored once."""
    user = _user(call, body.user)
    sent = await _asked(_chat(call.service).send(room, body.text, user=user, id=body.id, kind=body.kind))
    return call.answer(_plain(sent))


@endpoint(
    "GET",
    "/v0/chat/{room}/messages",
    "read",
    query={**_USER, **_PAGE, "newest": "true: the last ones", "before": "cursor: the last ones before it"},
    answers=_DONE,
)
async def read(call: Call, room: str) -> Reply:
    """A page of a chat, in the order of time."""
    asking = _chat(call.service).read(
        room,
        user=_user(call, call.params.get("user")),
        after=call.params.get("after", ""),
        before=call.params.get("before", ""),
        newest=call.flag("newest", False),
        limit=call.number("limit", 50),
    )
    page = await _asked(asking)
    return call.answer({"messages": [_plain(one) for one in page.messages], "next": page.next})


@endpoint("GET", "/v0/chat/inbox", "read", query={**_USER, **_PAGE}, answers=_DONE)
async def inbox(call: Call) -> Reply:
    """A page of the user's chats, the newest first."""
    user = _user(call, call.params.get("user"))
    asking = _chat(call.service).inbox(user, after=call.params.get("after", ""), limit=call.number("limit", 50))
    page = await _asked(asking)
    return call.answer({"chats": [_plain(one) for one in page.chats], "next": page.next})


@endpoint("PUT", "/v0/chat/{room}/progress", "write", body=Progress, answers=_STORED)
async def mark(call: Call, room: str, body: Progress) -> Reply:
    """How far the user has read; it never goes back."""
    read_seq = await _asked(_chat(call.service).mark(room, body.seq, user=_user(call, body.user)))
    return call.answer({"read_seq": read_seq})


# ---- members and identities ----


@endpoint("GET", "/v0/chat/{room}/members", "read", query=_USER, answers=_DONE)
async def members(call: Call, room: str) -> Reply:
    """Who belongs to a chat."""
    found = await _asked(_chat(call.service).members(room, user=_user(call, call.params.get("user"))))
    return call.answer({"members": [_plain(one) for one in found]})


@endpoint("POST", "/v0/chat/{room}/members", "write", body=NewMember, answers=_STORED)
async def add(call: Call, room: str, body: NewMember) -> Reply:
    """Add a member, as an admin of the chat."""
    await _asked(_chat(call.service).add(room, body.member, role=body.role, user=_user(call, body.user)))
    return call.answer({"member": body.member, "role": body.role})


@endpoint("POST", "/v0/chat/{room}/remove", "write", body=GoneMember, answers=_STORED)
async def remove(call: Call, room: str, body: GoneMember) -> Reply:
    """Remove a member, as an admin of the chat or as the member."""
    was_member = await _asked(_chat(call.service).remove(room, body.member, user=_user(call, body.user)))
    return call.answer({"removed": body.member, "was_member": was_member})


@endpoint("GET", "/v0/chat/identity", "read", query={"of": "whose"}, answers=_KNOWN)
async def identity(call: Call) -> Reply:
    """What a user wants others to know, as hex digits."""
    of = call.params.get("of", "")
    blob = await _asked(_chat(call.service).identity(of))
    if blob is None:
        raise errors.not_found("the user has put nothing")
    return call.answer({"user": of, "hex": blob.hex()})


@endpoint("PUT", "/v0/chat/identity", "write", body=NewIdentity, answers=_STORED)
async def put_identity(call: Call, body: NewIdentity) -> Reply:
    """Put it in the place of what was there."""
    try:
        blob = bytes.fromhex(body.hex)
    except ValueError:
        raise errors.invalid("hex must be an even number of hex digits") from None
    return call.answer({"stored": await _asked(_chat(call.service).put_identity(_user(call, body.user), blob))})


# ---- streams ----


def _message_frame(event: Any) -> bytes:
    data = msgspec.json.encode(_plain(event))
    return frame(b"message", data, b"%d" % event.seq) if isinstance(event, ChatMessage) else frame(b"signal", data)


def _change_frame(change: Any) -> bytes:
    row = None if change.row is None else _plain(change.row)
    return frame(b"chat", msgspec.json.encode({"chat": change.chat, "row": row, "first": change.first}))


@endpoint(
    "GET",
    "/v0/chat/{room}/events",
    "read",
    kind="events",
    query={**_USER, "after_seq": "begin behind this seq"},
    answers=_DONE,
)
async def events(call: Call, room: str) -> Reply | None:
    """Messages of a chat as they come; Last-Event-ID or after_seq says where to go on."""
    said = call.head.headers.get(b"last-event-id", b"").decode("latin-1") or call.params.get("after_seq", "")
    if said and not (said.isascii() and said.isdigit() and int(said[:11]) <= U32_MAX):
        raise errors.invalid(f"a stream begins behind a seq of 0 to {U32_MAX}, not {said!r:.50}")
    after_seq = int(said) if said else None
    user = _user(call, call.params.get("user"))
    chat = _chat(call.service)
    await _asked(chat.members(room, user=user))  # a refusal is an answer, not an event
    await _stream(call, chat.watch(room, user=user, after_seq=after_seq), _message_frame)
    return None


@endpoint("GET", "/v0/chat/inbox-events", "read", kind="events", query=_USER, answers=_DONE)
async def inbox_events(call: Call) -> Reply | None:
    """All chats of an inbox, then each that changes."""
    user = _user(call, call.params.get("user"))
    chat = _chat(call.service)
    await _asked(chat.inbox(user, limit=1))
    await _stream(call, chat.watch_inbox(user), _change_frame)
    return None


async def _stream(call: Call, source: AsyncIterator[Any], made: Callable[[Any], bytes]) -> None:
    with call.service.usage.stream(call.key):
        out = call.events()
        out.write(RETRY)
        task = asyncio.get_running_loop().create_task(_copy(source, out, made))
        try:
            await out.until_over()
        finally:
            task.cancel()


async def _copy(source: AsyncIterator[Any], out: EventStream, made: Callable[[Any], bytes]) -> None:
    room = asyncio.Event()
    out.on_room = room.set
    try:
        async for event in source:
            while not out.has_room():
                room.clear()
                out.blocked()
                await room.wait()
            out.write(made(event))
    except (Forbidden, InvalidRequest) as exc:
        out.end(error_frame(403, "ended", message=exc.message))
    except TopicdError as exc:
        out.end(error_frame(503, _refusal(exc).code, message=exc.message))
