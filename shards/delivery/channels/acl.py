"""Who may do what in a channel. Promise: every rule is here, once, and raises what refuses; nothing is changed."""

from __future__ import annotations

from topicd.channel import ChannelState
from topicd.errors import ChannelFull, Conflict, Forbidden, NotMember, NotOwner, PayloadTooLarge
from topicd.shards.delivery.channels.members import is_member
from topicd.words import counted


def check_member(state: ChannelState, user: str) -> None:
    if not is_member(state.members, user):
        raise NotMember(f"{user!r} is no member of channel {state.handler!r}", channel=state.handler, user=user)


def check_owner(state: ChannelState, user: str) -> None:
    if state.owner != user:
        raise NotOwner(
            f"{user!r} is not the owner of channel {state.handler!r}, that is {state.owner or 'nobody'}",
            channel=state.handler,
            user=user,
            owner=state.owner,
        )


def may_join(state: ChannelState, user: str) -> None:
    _check_list(state, "join", state.acl.join, user)
    if len(state.members) >= state.config.max_clients:
        raise ChannelFull(
            f"channel {state.handler!r} has {counted(len(state.members), 'member')}, "
            f"max_clients is {state.config.max_clients}",
            channel=state.handler,
            max_clients=state.config.max_clients,
        )


def may_publish(state: ChannelState, user: str, size: int) -> None:
    check_member(state, user)
    _check_list(state, "publish", state.acl.publish, user)
    check_type(state, fifo=False)
    check_payload(state, size)


def may_read(state: ChannelState, user: str) -> None:
    check_member(state, user)
    _check_list(state, "read", state.acl.read, user)


def check_payload(state: ChannelState, size: int) -> None:
    if size > state.config.max_payload_size:
        raise PayloadTooLarge(
            f"{size} bytes are more than max_payload_size of channel {state.handler!r}, which is "
            f"{state.config.max_payload_size}",
            channel=state.handler,
            max_payload_size=state.config.max_payload_size,
        )


def check_type(state: ChannelState, *, fifo: bool) -> None:
    if state.fifo and not fifo:
        message = f"channel {state.handler!r} is a queue (type fifo): push to it, pop from it"
        raise Conflict(message, channel=state.handler, type=state.type)
    if fifo and not state.fifo:
        message = f"channel {state.handler!r} is no queue (type {state.type}): publish to it, watch it"
        raise Conflict(message, channel=state.handler, type=state.type)


def is_listed(state: ChannelState, users: tuple[str, ...], user: str) -> bool:
    return not users or user == state.owner or is_member(users, user)


def _check_list(state: ChannelState, name: str, users: tuple[str, ...], user: str) -> None:
    if not is_listed(state, users, user):
        raise Forbidden(
            f"{user!r} is not on the {name} list of channel {state.handler!r}",
            channel=state.handler,
            user=user,
            list=name,
        )
