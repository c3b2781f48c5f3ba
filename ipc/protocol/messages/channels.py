"""Channels: asked of the shard that owns the topic `topicd.channel.` with the hash of the handler behind it."""

from __future__ import annotations

from typing import Any

from topicd import limits
from topicd.channel import LISTS, TYPES
from topicd.ipc.protocol.fields import choice, config, flag, handler, number, payload, text, user, users
from topicd.ipc.protocol.messages.declaring import Op, Request
from topicd.ipc.protocol.messages.watching import CREDIT_MAX
from topicd.limits import MAX_SEQ, MAX_U64, MIB

_STATE = "channel, owner, type, config, acl {join, publish, read}, members (how many)"
_ME = "who asks; default: the token's subject, or the user of the peer's uid"


class JoinChannel(
    Request, op=Op.CHANNEL_JOIN, changes=True, answer=f"{_STATE}, created, joined (false: it was a member before)"
):
    """Whoever joins a channel that is not there makes it, and owns it."""

    channel: str = handler()
    user: str | None = user(help=_ME)


class LeaveChannel(Request, op=Op.CHANNEL_LEAVE, changes=True, answer="channel, gone (nobody is left), owner"):
    channel: str = handler()
    user: str | None = user(help=_ME)


class PublishToChannel(Request, op=Op.CHANNEL_PUBLISH, changes=True, answer="seq, deduped"):
    channel: str = handler()
    user: str | None = user(help=_ME)
    data: bytes = payload()
    key: int = number(0, MAX_SEQ, default=0, help="the same for each repetition of this message; 0: it is not repeated")


class WatchChannel(
    Request,
    op=Op.CHANNEL_WATCH,
    answer="topics [{topic, topic_id, from_seq}] (one: its log), then PUSH and NOTICE with the same request id",
):
    """As SUBSCRIBE: CREDIT and UNSUBSCRIBE as there. The node of a record is the user it is from. A NOTICE `topic`
    says that messages come from another log from now on; those with the event `channel` have a kind, and `ends` in
    the last of them."""

    channel: str = handler()
    user: str | None = user(help=_ME)
    credit: int = number(1, CREDIT_MAX, default=MIB, help="bytes that may be pushed")
    from_seq: int | None = number(0, MAX_SEQ, default=None, help="messages behind this one; default: only what comes")
    epoch: int | None = number(0, MAX_U64, default=None, help="topic id that from_seq belongs to")
    events: bool = flag(default=False, help="also who joins, leaves, comes and goes, and what is changed")


class ChannelHistory(
    Request,
    op=Op.CHANNEL_HISTORY,
    answer="messages [{seq, ts, from, data}], history_id (if one was given), first_seq, last_seq",
):
    """Of a persistent channel. From the first that is kept, if that is later; behind the last there are none."""

    channel: str = handler()
    user: str | None = user(help=_ME)
    from_seq: int = number(1, MAX_SEQ, default=1)
    limit: int = number(1, 0xFFFF_FFFF, default=limits.CHANNEL_HISTORY_MAX, help="more than 100 are 100")
    history_id: str | None = text(64, default=None, help="comes back with the answer")


class ChannelSeq(Request, op=Op.CHANNEL_SEQ, answer="first_seq, last_seq; both 0: nothing is kept"):
    channel: str = handler()
    user: str | None = user(help=_ME)


class GetChannel(
    Request, op=Op.CHANNEL_STATE, answer=f"{_STATE}, users [members behind `after`], connected [users], next (or nil)"
):
    channel: str = handler()
    user: str | None = user(help=_ME)
    after: str = text(64, default="", help="users behind this one")
    limit: int = number(0, 10_000, default=1_000, help="users in one answer")


class SetChannelAcl(Request, op=Op.CHANNEL_ACL, changes=True, answer=_STATE):
    """An empty list: everybody. The owner may in any case."""

    channel: str = handler()
    user: str | None = user(help=_ME)
    access: str = choice(*LISTS, help="the list")
    mode: str = choice("set", "allow", "remove", default="set")
    users: tuple[str, ...] = users()


class ConfigureChannel(Request, op=Op.CHANNEL_CONFIG, changes=True, answer=_STATE):
    channel: str = handler()
    user: str | None = user(help=_ME)
    config: dict[str, Any] | None = config(help="the fields to change; none: only told")


class SetChannelType(Request, op=Op.CHANNEL_TYPE, changes=True, answer=_STATE):
    """To fifo, which needs a persistent channel; there is no way back."""

    channel: str = handler()
    user: str | None = user(help=_ME)
    type: str = choice(*TYPES)


class DeleteChannel(Request, op=Op.CHANNEL_DELETE, changes=True, answer="channel"):
    channel: str = handler()
    user: str | None = user(help=_ME)


class PushToChannel(Request, op=Op.CHANNEL_PUSH, changes=True, answer="seq, deduped, depth"):
    """By the owner of a channel of type fifo."""

    channel: str = handler()
    user: str | None = user(help=_ME)
    data: bytes = payload()
    key: int = number(0, MAX_SEQ, default=0, help="the same for each repetition of this element; 0: it is not repeated")


class PopFromChannel(Request, op=Op.CHANNEL_POP, changes=True, answer="seq, ts, from, data"):
    """At most once: an element whose answer is lost is gone."""

    channel: str = handler()
    user: str | None = user(help=_ME)


class ClearChannel(Request, op=Op.CHANNEL_CLEAR, changes=True, answer="cleared, next_seq"):
    """Everything in a channel of type fifo is given up; what needs_recovery is in order again."""

    channel: str = handler()
    user: str | None = user(help=_ME)


class ListChannels(
    Request,
    op=Op.CHANNEL_LIST,
    answer="channels [{channel, owner, type, persist, members, connected (how many)}], "
    "next (handler to continue after, or nil)",
):
    """Each shard lists its own."""

    prefix: str = text(limits.HANDLER_MAX, default="")
    after: str = text(limits.HANDLER_MAX, default="", help="handlers behind this one")
    limit: int = number(1, limits.LIST_PAGE_MAX, default=limits.LIST_PAGE_DEFAULT)
    member: str | None = user(help="only those it is a member of")


class ChannelSlots(Request, op=Op.CHANNEL_SLOTS, answer="channels [handlers] (of the user, in this shard)"):
    """Between shards: what a user has room for. reserve and release go to the user's home shard."""

    action: str = choice("reserve", "release", "channels")
    user: str | None = user()
    channel: str = text(limits.HANDLER_MAX, default="")
