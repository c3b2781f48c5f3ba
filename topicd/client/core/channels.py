"""Channels as a client sees them: what its requests say, and what the answers mean. Built once for both faces."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, NamedTuple, TypeAlias

from topicd.channel import ChannelAcl, ChannelConfig, channel_topic, check_handler, check_user
from topicd.client.core.records import Event, Gap, Record
from topicd.client.core.requests import Request, of_daemon, of_topic
from topicd.errors import ConnectionLost, FormatError, InvalidRequest
from topicd.ipc.protocol import messages
from topicd.ipc.protocol.codec import number
from topicd.ipc.protocol.following import ChannelWanted, Wanted
from topicd.ipc.protocol.once import new_producer_id
from topicd.limits import CHANNEL_HISTORY_MAX, LIST_PAGE_MAX
from topicd.lists import check_list

Access: TypeAlias = Literal["join", "publish", "read"]
Mode: TypeAlias = Literal["set", "allow", "remove"]


class Unanswered(ConnectionLost):
    """A pop whose answer was lost: its element is gone, if it was popped. Nobody repeats it by himself."""

    retriable = False


@dataclass(frozen=True, slots=True)
class ChannelInfo:
    channel: str
    owner: str | None
    type: str
    config: ChannelConfig
    acl: ChannelAcl
    members: int


@dataclass(frozen=True, slots=True)
class ChannelRow:
    """A line of the list of channels."""

    channel: str
    owner: str | None
    type: str
    persist: bool
    members: int
    connected: int


@dataclass(frozen=True, slots=True)
class Joined:
    info: ChannelInfo
    created: bool
    joined: bool  # false: it was a member before


@dataclass(frozen=True, slots=True)
class Members:
    owner: str | None
    users: list[str]
    connected: list[str]


@dataclass(frozen=True, slots=True)
class ChannelMessage:
    """One message, or one element of a queue."""

    channel: str
    seq: int
    ts: int
    user: str
    data: bytes

    @property
    def time(self) -> datetime:
        """When it was stored."""
        return datetime.fromtimestamp(self.ts / 1000, UTC)

    def text(self) -> str:
        return self.data.decode()

    def json(self) -> Any:
        return json.loads(self.data)


@dataclass(frozen=True, slots=True)
class ChannelEvent:
    """Something that happened in a channel that is watched: joined, left, owner, connected, disconnected, config, acl,
    type, deleted, forbidden (this user may read no more), log (its messages come from a new, empty log), missed (so
    many events did not reach this reader)."""

    channel: str
    kind: str
    user: str | None
    detail: dict[str, Any]


ChannelItem: TypeAlias = ChannelMessage | ChannelEvent | Gap


def event_of(channel: str, notice: dict[str, Any]) -> ChannelEvent:
    detail = {key: value for key, value in notice.items() if key not in ("event", "kind", "user")}
    user = notice.get("user")
    return ChannelEvent(channel, str(notice.get("kind")), None if user is None else str(user), detail)


def item_of(channel: str, event: Event) -> ChannelItem:
    if isinstance(event, Record):
        return ChannelMessage(channel, event.seq, event.ts, event.node or "", event.data)
    return event


def wanted_watch(channel: str, user: str | None, start: int | str, events: bool) -> Wanted:
    """start: latest, earliest or the seq behind which to begin."""
    check_handler(channel)
    if user is not None:
        check_user(user)
    if start in ("latest", "earliest"):
        place = (str(start), 0)
    elif isinstance(start, int) and not isinstance(start, bool) and start >= 0:
        place = ("seq", start)
    else:
        raise InvalidRequest(f"start must be latest, earliest or a seq, not {start!r:.100}")
    names = (channel_topic(channel),)
    return Wanted(names, None, place, None, (), channel=ChannelWanted(channel, user, events))


# ---- requests ----


def _of(channel: str, message: messages.Request, parse: Any) -> Request[Any]:
    check_handler(channel)
    return of_topic(message, channel_topic(channel), parse)


def _who(user: str | None) -> str | None:
    return None if user is None else check_user(user)


def _info(answer: dict[str, Any]) -> ChannelInfo:
    try:
        acl = ChannelAcl(**{name: tuple(users) for name, users in answer["acl"].items()})
        config = ChannelConfig(**answer["config"])
        owner, kind = answer["owner"], str(answer["type"])
        return ChannelInfo(str(answer["channel"]), owner, kind, config, acl, number(answer, "members"))
    except (KeyError, TypeError, AttributeError) as exc:
        raise FormatError(f"the daemon's channel is malformed: {exc}") from None


def _message(channel: str, row: Any) -> ChannelMessage:
    try:
        return ChannelMessage(channel, int(row["seq"]), int(row["ts"]), str(row["from"]), bytes(row["data"]))
    except (KeyError, TypeError, ValueError) as exc:
        raise FormatError(f"the daemon's message is malformed: {exc}") from None


def join(channel: str, user: str | None) -> Request[Joined]:
    def parse(answer: dict[str, Any]) -> Joined:
        return Joined(_info(answer), bool(answer.get("created")), bool(answer.get("joined")))

    return _of(channel, messages.JoinChannel(channel=channel, user=_who(user)), parse)


def leave(channel: str, user: str | None) -> Request[bool]:
    """Whether the channel is gone."""
    message = messages.LeaveChannel(channel=channel, user=_who(user))
    return _of(channel, message, lambda answer: bool(answer.get("gone")))


def publish(channel: str, data: bytes, user: str | None) -> Request[int]:
    message = messages.PublishToChannel(channel=channel, user=_who(user), data=data, key=new_producer_id())
    return _of(channel, message, lambda answer: number(answer, "seq"))


def push(channel: str, data: bytes, user: str | None) -> Request[int]:
    message = messages.PushToChannel(channel=channel, user=_who(user), data=data, key=new_producer_id())
    return _of(channel, message, lambda answer: number(answer, "seq"))


def pop(channel: str, user: str | None) -> Request[ChannelMessage]:
    message = messages.PopFromChannel(channel=channel, user=_who(user))
    return _of(channel, message, lambda answer: _message(channel, answer))


def clear(channel: str, user: str | None) -> Request[int]:
    """How many elements were given up."""
    message = messages.ClearChannel(channel=channel, user=_who(user))
    return _of(channel, message, lambda answer: number(answer, "cleared"))


def history(channel: str, from_seq: int, limit: int, user: str | None) -> Request[list[ChannelMessage]]:
    if isinstance(from_seq, bool) or not isinstance(from_seq, int) or from_seq < 1:
        raise InvalidRequest(f"from_seq is a seq from 1 on, not {from_seq!r:.100}")
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InvalidRequest(f"limit is a number from 1 on, not {limit!r:.100}")
    message = messages.ChannelHistory(
        channel=channel, user=_who(user), from_seq=from_seq, limit=min(limit, CHANNEL_HISTORY_MAX)
    )

    def parse(answer: dict[str, Any]) -> list[ChannelMessage]:
        return [_message(channel, row) for row in answer.get("messages") or []]

    return _of(channel, message, parse)


def seq(channel: str, user: str | None) -> Request[tuple[int, int]]:
    def parse(answer: dict[str, Any]) -> tuple[int, int]:
        return number(answer, "first_seq"), number(answer, "last_seq")

    return _of(channel, messages.ChannelSeq(channel=channel, user=_who(user)), parse)


class MembersPage(NamedTuple):
    members: Members
    next: str | None


def members_page(channel: str, user: str | None, after: str) -> Request[MembersPage]:
    def parse(answer: dict[str, Any]) -> MembersPage:
        users, connected = answer.get("users") or [], answer.get("connected") or []
        return MembersPage(Members(answer.get("owner"), list(users), list(connected)), answer.get("next"))

    return _of(channel, messages.GetChannel(channel=channel, user=_who(user), after=after), parse)


def joined_pages(pages: Iterable[Members]) -> Members:
    """As one; who is connected stands on every page from its place on."""
    owner, users, connected = None, [], set()
    for page in pages:
        owner = page.owner
        users += page.users
        connected.update(page.connected)
    return Members(owner, users, sorted(connected))


def info(channel: str, user: str | None) -> Request[ChannelInfo]:
    return _of(channel, messages.GetChannel(channel=channel, user=_who(user), limit=0), _info)


def set_acl(channel: str, access: str, users: Iterable[str], mode: str, user: str | None) -> Request[ChannelInfo]:
    if not isinstance(users, str):
        check_list(users, "users")
    given = [users] if isinstance(users, str) else list(users)
    message = messages.SetChannelAcl(
        channel=channel, user=_who(user), access=access, mode=mode, users=tuple(check_user(one) for one in given)
    )
    return _of(channel, message, _info)


def set_config(channel: str, config: dict[str, Any], user: str | None) -> Request[ChannelInfo]:
    known = ChannelConfig(persist=False)
    known.updated({**config, "persist": False} if "persist" in config else config)  # what no channel could be
    return _of(channel, messages.ConfigureChannel(channel=channel, user=_who(user), config=config), _info)


def set_type(channel: str, kind: str, user: str | None) -> Request[ChannelInfo]:
    return _of(channel, messages.SetChannelType(channel=channel, user=_who(user), type=kind), _info)


def delete(channel: str, user: str | None) -> Request[None]:
    return _of(channel, messages.DeleteChannel(channel=channel, user=_who(user)), lambda answer: None)


class RowsPage(NamedTuple):
    rows: list[ChannelRow]
    next: str | None


def rows_page(prefix: str, after: str, member: str | None) -> Request[RowsPage]:
    """Of the shard that it is sent to."""

    def parse(answer: dict[str, Any]) -> RowsPage:
        try:
            rows = [ChannelRow(**row) for row in answer.get("channels") or []]
        except TypeError as exc:
            raise FormatError(f"the daemon's list of channels is malformed: {exc}") from None
        return RowsPage(rows, answer.get("next"))

    message = messages.ListChannels(prefix=prefix, after=after, limit=LIST_PAGE_MAX, member=_who(member))
    return of_daemon(message, parse)
