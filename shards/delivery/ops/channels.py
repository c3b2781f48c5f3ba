"""Channels: joined and left, published to, watched, looked at, changed; queues pushed to and popped from. Who asks is
the user of the connection, or whoever it may act as; an operator who names nobody looks after channels of others."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from topicd.channel import ChannelState, channel_topic
from topicd.errors import Forbidden, InvalidRequest, NotReady
from topicd.ipc.protocol.messages import (
    ChannelHistory,
    ChannelSeq,
    ChannelSlots,
    ClearChannel,
    ConfigureChannel,
    DeleteChannel,
    GetChannel,
    JoinChannel,
    LeaveChannel,
    ListChannels,
    PopFromChannel,
    PublishToChannel,
    PushToChannel,
    SetChannelAcl,
    SetChannelType,
    WatchChannel,
)
from topicd.rights import Principal
from topicd.shards.delivery.channels import acl
from topicd.shards.delivery.channels.channel import Channel
from topicd.shards.delivery.channels.presence import ChannelWatch
from topicd.shards.delivery.ops.records import check_room
from topicd.shards.delivery.reading.filters import NO_FILTER
from topicd.shards.delivery.reading.subscriptions import Subscription
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.shards.delivery.topic.topic import Topic


def _principal(call: Call) -> Principal:
    connection = call.connection
    return Principal(connection.rights, connection.uid, not call.shard.place.settings.channel_auth)


def _user(call: Call, scope: str, handler: str, user: str | None) -> str:
    """Who asks, and may with the rights of this connection."""
    call.connection.rights.require_channel(scope, handler)
    return _principal(call).acting_as(user)


def _owner(call: Call, handler: str, user: str | None) -> str | None:
    """Who asks for what only an owner may; None: an operator, who may."""
    call.connection.rights.require_channel("write", handler)
    principal = _principal(call)
    return None if user is None and principal.operator else principal.acting_as(user)


def _check_reader(call: Call, state: ChannelState, user: str | None) -> None:
    call.connection.rights.require_channel("read", state.handler)
    principal = _principal(call)
    if user is not None or not principal.operator:
        acl.may_read(state, principal.acting_as(user))


def _row(state: ChannelState) -> dict[str, Any]:
    return {
        "channel": state.handler,
        "owner": state.owner,
        "type": state.type,
        "config": state.config.to_fields(),
        "acl": state.acl.to_fields(),
        "members": len(state.members),
    }


# ---- members ----


@operation(JoinChannel)
def join(call: Call, want: JoinChannel) -> None:
    channels, user = call.shard.channels, _user(call, "write", want.channel, want.user)

    async def work() -> dict[str, Any]:
        joined = await channels.mutations.join(want.channel, user)
        return {**_row(joined.state), "created": joined.created, "joined": joined.joined}

    channels.answer_later(work(), call.answer, call.refuse)


@operation(LeaveChannel)
def leave(call: Call, want: LeaveChannel) -> None:
    channels, user = call.shard.channels, _user(call, "write", want.channel, want.user)

    async def work() -> dict[str, Any]:
        state = await channels.mutations.leave(want.channel, user)
        return {"channel": want.channel, "gone": state is None, "owner": None if state is None else state.owner}

    channels.answer_later(work(), call.answer, call.refuse)


# ---- messages ----


@operation(PublishToChannel)
def publish(call: Call, want: PublishToChannel) -> None:
    channels, user = call.shard.channels, _user(call, "write", want.channel, want.user)
    channel, state = channels.registry.get(want.channel)

    def stored(seq: int, deduped: bool) -> None:
        call.answer({"seq": seq, "deduped": deduped})

    channels.publishing.publish(channel, state, user, want.data, want.key, stored, call.refuse)


@operation(WatchChannel)
def watch(call: Call, want: WatchChannel) -> None:
    shard, connection, sub_id = call.shard, call.connection, call.request_id
    user = _user(call, "read", want.channel, want.user)
    channel, state = shard.channels.registry.get(want.channel)
    acl.may_read(state, user)
    acl.check_type(state, fifo=False)
    topic = channel.log()
    if sub_id in connection.subscriptions:
        raise InvalidRequest(f"subscription {sub_id} exists already on this connection")
    check_room(call, len(connection.subscriptions), "subscriptions")
    subscription = Subscription(shard.pushing, connection, connection.rights, sub_id, want.credit, NO_FILTER, "")
    connection.subscriptions[sub_id] = subscription
    at, anew = _start(topic, want)
    log = {"topic": channel_topic(want.channel), "topic_id": topic.id, "from_seq": at}
    call.answer({"topics": [log]})
    ChannelWatch(channel, user, subscription, events=want.events).open(topic, at, anew=anew)


def _start(topic: Topic, want: WatchChannel) -> tuple[int, bool]:
    """Behind which seq, and whether that was said of an earlier log: then all of this one is new."""
    if want.epoch is not None and want.epoch != topic.id:
        return 0, True
    if want.from_seq is None:
        return topic.seqs.visible, False
    # No message of this log has such a seq: who says it only with a seq saw it in another one.
    return (0, True) if want.epoch is None and want.from_seq > topic.seqs.head else (want.from_seq, False)


@operation(ChannelHistory)
def history(call: Call, want: ChannelHistory) -> None:
    channels = call.shard.channels
    channel, state = channels.registry.get(want.channel)
    _check_reader(call, state, want.user)
    acl.check_type(state, fifo=False)
    first, last = channels.publishing.seqs(channel, state)
    messages = channels.publishing.history(channel, state, want.from_seq, want.limit)
    tag = {} if want.history_id is None else {"history_id": want.history_id}
    call.answer({"messages": messages, "first_seq": first, "last_seq": last, **tag})


@operation(ChannelSeq)
def seq(call: Call, want: ChannelSeq) -> None:
    channels = call.shard.channels
    channel, state = channels.registry.get(want.channel)
    _check_reader(call, state, want.user)
    first, last = channels.publishing.seqs(channel, state)
    call.answer({"first_seq": first, "last_seq": last})


# ---- looked at ----


@operation(GetChannel)
def get(call: Call, want: GetChannel) -> None:
    channel, state = call.shard.channels.registry.get(want.channel)
    call.connection.rights.require_channel("read", want.channel)
    principal = _principal(call)
    if want.user is not None or not principal.operator:
        acl.check_member(state, principal.acting_as(want.user))
    at = bisect_right(state.members, want.after) if want.after else 0
    users = state.members[at : at + want.limit]
    following = users[-1] if users and at + want.limit < len(state.members) else None
    connected = [user for user in channel.connected() if user > want.after][: want.limit]
    call.answer({**_row(state), "users": list(users), "connected": connected, "next": following})


@operation(ListChannels)
def list_channels(call: Call, want: ListChannels) -> None:
    rights, principal, registry = call.connection.rights, _principal(call), call.shard.channels.registry
    rights.require("read")
    member = want.member
    if not principal.operator or member is not None:
        member = principal.acting_as(member)
    states, following = registry.page(want.prefix, want.after, want.limit, member)
    rows = []
    for state in states:
        if rights.prefixes and not state.handler.startswith(rights.prefixes):
            continue
        channel, _ = registry.get(state.handler)
        rows.append(
            {
                "channel": state.handler,
                "owner": state.owner,
                "type": state.type,
                "persist": state.config.persist,
                "members": len(state.members),
                "connected": len(channel.watchers),
            }
        )
    call.answer({"channels": rows, "next": following})


# ---- changed ----


@operation(SetChannelAcl)
def set_acl(call: Call, want: SetChannelAcl) -> None:
    channels, owner = call.shard.channels, _owner(call, want.channel, want.user)

    async def work() -> dict[str, Any]:
        return _row(await channels.mutations.set_acl(want.channel, owner, want.access, want.mode, want.users))

    channels.answer_later(work(), call.answer, call.refuse)


@operation(ConfigureChannel)
def configure(call: Call, want: ConfigureChannel) -> None:
    channels = call.shard.channels
    if not want.config:
        _, state = channels.registry.get(want.channel)
        _check_reader(call, state, want.user)
        call.answer(_row(state))
        return
    owner, fields = _owner(call, want.channel, want.user), want.config

    async def work() -> dict[str, Any]:
        return _row(await channels.mutations.set_config(want.channel, owner, fields))

    channels.answer_later(work(), call.answer, call.refuse)


@operation(SetChannelType)
def set_type(call: Call, want: SetChannelType) -> None:
    channels, owner = call.shard.channels, _owner(call, want.channel, want.user)

    async def work() -> dict[str, Any]:
        return _row(await channels.mutations.set_type(want.channel, owner, want.type))

    channels.answer_later(work(), call.answer, call.refuse)


@operation(DeleteChannel)
def delete(call: Call, want: DeleteChannel) -> None:
    channels, owner = call.shard.channels, _owner(call, want.channel, want.user)

    async def work() -> dict[str, Any]:
        await channels.mutations.delete(want.channel, owner)
        return {"channel": want.channel}

    channels.answer_later(work(), call.answer, call.refuse)


# ---- queues ----


def _queue(call: Call, handler: str) -> tuple[Channel, ChannelState]:
    channel, state = call.shard.channels.registry.get(handler)
    acl.check_type(state, fifo=True)
    return channel, state


@operation(PushToChannel)
def push(call: Call, want: PushToChannel) -> None:
    channels, owner = call.shard.channels, _owner(call, want.channel, want.user)
    channel, state = _queue(call, want.channel)
    if owner is not None:
        acl.check_owner(state, owner)
    user = owner or _principal(call).user or state.owner or ""

    def stored(seq: int, deduped: bool) -> None:
        queue, topic = channel.queue, channel.topic
        depth = queue.depth(topic) if queue is not None and topic is not None else 0
        call.answer({"seq": seq, "deduped": deduped, "depth": depth})

    channels.publishing.push(channel, state, user, want.data, want.key, stored, call.refuse)


@operation(PopFromChannel)
def pop(call: Call, want: PopFromChannel) -> None:
    channel, state = _queue(call, want.channel)
    call.connection.rights.require_channel("write", want.channel)
    _check_reader(call, state, want.user)
    call.shard.channels.answer_later(call.shard.channels.pop(channel, channel.log()), call.answer, call.refuse)


@operation(ClearChannel)
def clear(call: Call, want: ClearChannel) -> None:
    owner = _owner(call, want.channel, want.user)
    channel, state = _queue(call, want.channel)
    if owner is not None:
        acl.check_owner(state, owner)
    call.shard.channels.answer_later(call.shard.channels.clear(channel), call.answer, call.refuse)


# ---- between shards ----


@operation(ChannelSlots)
def slots(call: Call, want: ChannelSlots) -> None:
    channels, user = call.shard.channels, want.user
    if not _principal(call).local:
        raise Forbidden("shards ask each other for this, nobody else")
    if user is None:
        raise InvalidRequest("user is missing")
    if want.action == "channels":
        call.answer({"channels": sorted(channels.registry.by_user.get(user, ()))})
        return
    if channels.slots.home_of(user) != call.shard.place.index:
        raise NotReady(f"the home of {user!r} is another shard", retry_after_ms=20)
    if want.action == "release":
        channels.slots.give_back(user, want.channel)
        call.answer({})
        return

    async def work() -> dict[str, Any]:
        await channels.slots.take(user, want.channel)
        return {}

    channels.answer_later(work(), call.answer, call.refuse)
