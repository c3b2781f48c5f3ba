"""Channels over HTTP: the words of the native protocol, and watching as server-sent events. Contract: docs/http.md.

Who asks is the subject of the key. Without keys it is whoever `as` names, and without that an operator of this machine.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import Any, Literal

import msgspec
from msgspec import Raw, Struct

from topicd.channel import channel_topic, check_handler, check_user
from topicd.client.aio.channels import AsyncChannelWatch
from topicd.client.aio.watch import AsyncWatch
from topicd.client.core.channels import ChannelEvent, ChannelItem, ChannelMessage, wanted_watch
from topicd.client.core.records import Event
from topicd.errors import TopicdError
from topicd.gateway import errors
from topicd.gateway.endpoints import Call, endpoint
from topicd.gateway.errors import Refusal
from topicd.gateway.keys import require_name
from topicd.gateway.records_json import data_text
from topicd.gateway.schemas import clamp
from topicd.gateway.sse import RETRY, EventStream, error_frame, frame
from topicd.gateway.web.messages import Reply
from topicd.ipc.protocol import messages
from topicd.ipc.protocol.once import new_producer_id
from topicd.limits import CHANNEL_HISTORY_MAX, KIB, LIST_PAGE_MAX

_BATCH_BYTES = 256 * KIB
_CHANNEL = "/v0/channels/{channel}"
_NOBODY = "the key has no subject: nobody knows which user it stands for"
_WHO = {"as": "on whose behalf, where no keys are needed"}

# Errors that channels have and topics have not, or not in these words.
_STATUS = {
    "channel_not_found": 404,
    "queue_empty": 404,
    "not_member": 403,
    "not_owner": 403,
    "forbidden": 403,
    "channel_full": 422,
    "channel_limit": 422,
    "queue_full": 422,
    "payload_too_large": 413,
    "needs_recovery": 409,
    "conflict": 409,
    "storage_failed": 503,
    "storage_corrupt": 500,
}

# What an endpoint may answer, beside what every one may.
_WRONG = {400: "a channel, a user or a field that is not allowed", 404: "no such channel"}
_DONE = {200: "done", **_WRONG}
_CHANGED = {**_DONE, 409: "does not go together with what the channel is"}
_STORED = {201: "stored", **_WRONG, 409: "the channel is of another type", 422: "full"}


class Message(Struct):
    data: Raw


class Fields(Struct, forbid_unknown_fields=True):
    max_clients: int | None = None
    max_payload_size: int | None = None
    max_persist_messages: int | None = None
    persist: bool | None = None
    message_flush_interval: int | None = None

    def given(self) -> dict[str, Any]:
        found = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in found.items() if value is not None}


class Access(Struct, forbid_unknown_fields=True):
    access: Literal["join", "publish", "read"]
    users: list[str] = []
    mode: Literal["set", "allow", "remove"] = "set"


class Kind(Struct, forbid_unknown_fields=True):
    type: Literal["pubsub", "fifo"]


def _member(call: Call, channel: str) -> str | None:
    """Who asks for what needs somebody. None: whoever the daemon takes this machine's user for, where no keys are
    needed."""
    user = _user(call, channel)
    if user is None and call.service.keys.needed:
        raise errors.forbidden(_NOBODY)
    return user


def _user(call: Call, channel: str) -> str | None:
    """None: an operator."""
    check_handler(channel)
    require_name(call.rights, channel)
    wanted = call.params.get("as")
    if not call.service.keys.needed:
        return None if wanted is None else check_user(wanted)
    subject = call.rights.subject
    if subject is None and "admin" not in call.rights.scopes:
        raise errors.forbidden(_NOBODY)
    if wanted is not None and wanted != subject:
        raise errors.forbidden(f"the key may not act as {wanted!r:.100}")
    return subject


async def _ask(call: Call, channel: str, message: messages.Request) -> dict[str, Any]:
    try:
        return await call.service.shards.ask(channel_topic(channel), message)
    except TopicdError as exc:
        raise _refusal(exc) from exc


def _refusal(error: TopicdError) -> Refusal:
    status = _STATUS.get(error.code)
    return errors.of(error) if status is None else Refusal(status, error.code, error.message, dict(error.detail))


def _told(call: Call, seq: int, ts: int, user: str, data: bytes, channel: str) -> Reply:
    """With the data spliced in as it is."""
    body = msgspec.json.encode({"channel": channel, "seq": seq, "ts": ts, "from": user})
    performance = msgspec.json.encode({"server_total_ms": call.elapsed_ms()})
    return Reply(200, body[:-1] + b',"data":' + data_text(data) + b',"performance":' + performance + b"}")


# ---- members ----


@endpoint(
    "POST",
    f"{_CHANNEL}/join",
    "write",
    query=_WHO,
    answers={200: "a member", 201: "the channel is made", 400: _WRONG[400], 404: _WRONG[404], 422: "full"},
)
async def join(call: Call, channel: str) -> Reply:
    """Become a member; the first one makes the channel and owns it."""
    answer = await _ask(call, channel, messages.JoinChannel(channel=channel, user=_member(call, channel)))
    return call.answer(answer, 201 if answer["created"] else 200)


@endpoint("POST", f"{_CHANNEL}/leave", "write", query=_WHO, answers=_DONE)
async def leave(call: Call, channel: str) -> Reply:
    """Be a member no more."""
    return call.answer(await _ask(call, channel, messages.LeaveChannel(channel=channel, user=_member(call, channel))))


@endpoint(
    "GET",
    f"{_CHANNEL}/members",
    "read",
    query={**_WHO, "after": "users behind this one", "limit": "1 to 10000, default 1000"},
    answers=_DONE,
)
async def members(call: Call, channel: str) -> Reply:
    """Members, and who of them is connected."""
    limit = clamp(call.number("limit", 1_000), 1, 10_000)
    want = messages.GetChannel(
        channel=channel, user=_user(call, channel), after=call.params.get("after", "")[:64], limit=limit
    )
    answer = await _ask(call, channel, want)
    return call.answer({name: answer[name] for name in ("owner", "users", "connected", "next")})


# ---- what a channel is ----


@endpoint("GET", _CHANNEL, "read", query=_WHO, answers=_DONE)
async def get_channel(call: Call, channel: str) -> Reply:
    """Owner, type, configuration and lists."""
    answer = await _ask(call, channel, messages.GetChannel(channel=channel, user=_user(call, channel), limit=0))
    return call.answer({name: answer[name] for name in ("channel", "owner", "type", "config", "acl", "members")})


@endpoint(
    "GET",
    "/v0/channels",
    "read",
    query={"prefix": "of handlers", "after": "handlers behind this one", "limit": "1 to 1000", **_WHO},
    answers={200: "a page", 400: "a user that is not allowed"},
)
async def list_channels(call: Call) -> Reply:
    """Channels by handler; with a user, those it is in."""
    wanted = call.params.get("as")
    if call.service.keys.needed and "admin" not in call.rights.scopes:
        wanted = call.rights.subject
        if wanted is None:
            raise errors.forbidden(_NOBODY)
    limit = clamp(call.number("limit", 100), 1, LIST_PAGE_MAX)
    member = None if wanted is None else check_user(wanted)
    rows: list[dict[str, Any]] = []
    after: str | None = call.params.get("after", "")[:255]
    while after is not None and len(rows) <= limit:
        found, after = await _page(call, member, after, limit)
        rows += [row for row in found if not call.rights.prefixes or row["channel"].startswith(call.rights.prefixes)]
    more = after is not None or len(rows) > limit
    return call.answer({"channels": rows[:limit], "next": rows[limit - 1]["channel"] if more else None})


async def _page(call: Call, member: str | None, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """Of all shards, as far as each has told all; and behind which there may be more."""
    want = messages.ListChannels(prefix=call.params.get("prefix", "")[:255], after=after, limit=limit, member=member)
    pages = await call.service.shards.ask_all(want)
    ends = [page["next"] for page in pages if page["next"] is not None]
    end = min(ends) if ends else None
    rows = heapq.merge(*(page["channels"] for page in pages), key=lambda row: row["channel"])
    return [row for row in rows if end is None or row["channel"] <= end], end


@endpoint("PUT", f"{_CHANNEL}/config", "write", body=Fields, query=_WHO, answers=_CHANGED)
async def set_config(call: Call, channel: str, body: Fields) -> Reply:
    """Change fields of the configuration."""
    want = messages.ConfigureChannel(channel=channel, user=_user(call, channel), config=body.given())
    return call.answer(await _ask(call, channel, want))


@endpoint("PUT", f"{_CHANNEL}/acl", "write", body=Access, query=_WHO, answers=_CHANGED)
async def set_acl(call: Call, channel: str, body: Access) -> Reply:
    """Change who may join, publish or read."""
    users = tuple(check_user(user) for user in body.users)
    want = messages.SetChannelAcl(
        channel=channel, user=_user(call, channel), access=body.access, mode=body.mode, users=users
    )
    return call.answer(await _ask(call, channel, want))


@endpoint("PUT", f"{_CHANNEL}/type", "write", body=Kind, query=_WHO, answers=_CHANGED)
async def set_type(call: Call, channel: str, body: Kind) -> Reply:
    """Make a queue of it, for good."""
    want = messages.SetChannelType(channel=channel, user=_user(call, channel), type=body.type)
    return call.answer(await _ask(call, channel, want))


@endpoint("DELETE", _CHANNEL, "write", query=_WHO, answers=_DONE)
async def delete(call: Call, channel: str) -> Reply:
    """Delete the channel with its history."""
    return call.answer(await _ask(call, channel, messages.DeleteChannel(channel=channel, user=_user(call, channel))))


# ---- messages ----


@endpoint("POST", f"{_CHANNEL}/publish", "write", body=Message, query=_WHO, answers=_STORED)
async def publish(call: Call, channel: str, body: Message) -> Reply:
    """Send a message to all members that are connected."""
    want = messages.PublishToChannel(
        channel=channel, user=_member(call, channel), data=bytes(body.data), key=new_producer_id()
    )
    answer = await _ask(call, channel, want)
    return call.answer({"seq": answer["seq"]}, 201)


@endpoint(
    "GET",
    f"{_CHANNEL}/history",
    "read",
    query={**_WHO, "from_seq": "from 1 on, inclusive", "limit": "1 to 100"},
    answers=_CHANGED,
)
async def history(call: Call, channel: str) -> Reply:
    """Messages of a persistent channel."""
    want = messages.ChannelHistory(
        channel=channel,
        user=_user(call, channel),
        from_seq=call.number("from_seq", 1),
        limit=clamp(call.number("limit", CHANNEL_HISTORY_MAX), 1, CHANNEL_HISTORY_MAX),
    )
    answer = await _ask(call, channel, want)
    rows = [_row(m["seq"], m["ts"], m["from"], m["data"]) for m in answer["messages"]]
    rest = {name: answer[name] for name in ("first_seq", "last_seq")}
    body = msgspec.json.encode({**rest, "performance": {"server_total_ms": call.elapsed_ms()}})
    return Reply(200, b'{"messages":[' + b",".join(rows) + b"]," + body[1:])


def _row(seq: int, ts: int, user: str, data: bytes) -> bytes:
    head = msgspec.json.encode({"seq": seq, "ts": ts, "from": user})
    return head[:-1] + b',"data":' + data_text(data) + b"}"


@endpoint("GET", f"{_CHANNEL}/seq", "read", query=_WHO, answers=_CHANGED)
async def seq(call: Call, channel: str) -> Reply:
    """The first and the last message that is kept; 0: there is none."""
    return call.answer(await _ask(call, channel, messages.ChannelSeq(channel=channel, user=_user(call, channel))))


# ---- queues ----


@endpoint("POST", f"{_CHANNEL}/push", "write", body=Message, query=_WHO, answers=_STORED)
async def push(call: Call, channel: str, body: Message) -> Reply:
    """Put an element at the end of a queue."""
    want = messages.PushToChannel(
        channel=channel, user=_user(call, channel), data=bytes(body.data), key=new_producer_id()
    )
    answer = await _ask(call, channel, want)
    return call.answer({"seq": answer["seq"], "depth": answer["depth"]}, 201)


@endpoint("POST", f"{_CHANNEL}/pop", "write", query=_WHO, answers=_CHANGED)
async def pop(call: Call, channel: str) -> Reply:
    """Take the first element of a queue, at most once."""
    want = messages.PopFromChannel(channel=channel, user=_user(call, channel))
    try:
        found = await call.service.shards.ask_once(channel_topic(channel), want)
    except TopicdError as exc:
        raise _refusal(exc) from exc
    return _told(call, found["seq"], found["ts"], found["from"], found["data"], channel)


@endpoint("POST", f"{_CHANNEL}/clear", "write", query=_WHO, answers=_CHANGED)
async def clear(call: Call, channel: str) -> Reply:
    """Give up everything in a queue."""
    return call.answer(await _ask(call, channel, messages.ClearChannel(channel=channel, user=_user(call, channel))))


# ---- watching ----


@endpoint(
    "GET",
    f"{_CHANNEL}/watch",
    "read",
    kind="events",
    query={**_WHO, "token": "a key, instead of the header", "from_seq": "messages behind this one", "events": "true"},
    answers=_CHANGED,
)
async def watch(call: Call, channel: str) -> Reply | None:
    """Messages as server-sent events; as long as it is open, the user is connected."""
    service, user = call.service, _member(call, channel)
    said = call.head.headers.get(b"last-event-id", b"").decode("latin-1") or call.params.get("from_seq", "")
    start: int | str = int(said) if said.isascii() and said.isdigit() and len(said) < 19 else "latest"
    wanted = wanted_watch(channel, user, start, call.flag("events", False))
    opened: AsyncWatch[Event] = AsyncWatch(service.shards.shared, wanted, on_gap="yield", batch_bytes=_BATCH_BYTES)
    with service.usage.stream(call.key):
        try:
            items = AsyncChannelWatch(await opened.open(), channel)
        except TopicdError as exc:
            await opened.close()
            raise _refusal(exc) from exc
        await _Telling(call.events(), items).run()
    return None


class _Telling:
    """From the watch to the stream, as fast as the reader reads."""

    def __init__(self, events: EventStream, items: AsyncChannelWatch) -> None:
        self._events = events
        self._items = items
        self._room = asyncio.Event()
        events.on_room = self._room.set

    async def run(self) -> None:
        self._events.write(RETRY)
        telling = asyncio.ensure_future(self._tell())
        try:
            await self._events.until_over()
        finally:
            telling.cancel()
            await self._items.close()

    async def _tell(self) -> None:
        try:
            async for item in self._items:
                while not self._events.has_room():
                    self._room.clear()
                    self._events.blocked()
                    await self._room.wait()
                self._events.write(_frame(item))
            self._events.end()
        except TopicdError as exc:
            refusal = _refusal(exc)
            self._events.end(error_frame(refusal.status, refusal.code))


def _frame(item: ChannelItem) -> bytes:
    if isinstance(item, ChannelMessage):
        return frame(b"message", _row(item.seq, item.ts, item.user, item.data), b"%d" % item.seq)
    if isinstance(item, ChannelEvent):
        return frame(b"channel", msgspec.json.encode({"kind": item.kind, "user": item.user, **item.detail}))
    gap = {"first_seq": item.first_seq, "last_seq": item.last_seq, "reason": item.reason}
    return frame(b"gap", msgspec.json.encode(gap))
