"""Listening to chats and inboxes, and signals to those who do."""

from __future__ import annotations

from typing import Any

from topicd.errors import InvalidRequest, Throttled
from topicd.ipc.protocol import chat as wire
from topicd.shards.chat.call import Call, operation
from topicd.shards.chat.live import ChatSubscription, InboxSubscription, Subscription
from topicd.shards.chat.ops.messages import visible
from topicd.shards.chat.rows import Kind

SUBSCRIPTIONS_MAX = 1_000  # of one connection


@operation(wire.Subscribe)
def subscribe(call: Call, want: wire.Subscribe) -> dict[str, Any]:
    live = call.service.live
    if len(call.subscriptions) >= SUBSCRIPTIONS_MAX:
        raise Throttled(f"a connection has at most {SUBSCRIPTIONS_MAX} subscriptions", limit="subscriptions")
    made: Subscription
    if want.chat is None:
        if want.after_seq is not None:
            raise InvalidRequest("after_seq belongs to a chat; an inbox begins with all its rows")
        user, _ = call.required_user(want.user)
        made = InboxSubscription(live, call.out, call.request_id, want.credit, user)
    else:
        chat, meta, acting = visible(call, want.chat, want.user, made_later=True)
        # One who heard more than there is, because a backup was restored for example, hears what comes.
        after = meta.last_seq if want.after_seq is None else min(want.after_seq, meta.last_seq)
        leaves = None if meta.kind == Kind.DM else acting  # of two users nobody can be removed
        made = ChatSubscription(live, call.out, call.request_id, want.credit, chat, leaves, after)
    call.subscriptions[call.request_id] = made
    return {"subscription": call.request_id}


@operation(wire.Unsubscribe)
def unsubscribe(call: Call, want: wire.Unsubscribe) -> dict[str, Any]:
    found = call.subscriptions.pop(want.subscription, None)
    if found is not None:
        found.close()
    return {}


@operation(wire.Credit)
def credit(call: Call, want: wire.Credit) -> None:
    found = call.subscriptions.get(want.subscription)
    if found is not None:
        found.grant(want.events)


@operation(wire.Signal)
def signal(call: Call, want: wire.Signal) -> dict[str, Any]:
    user, name = call.required_user(want.user)
    chat, _, _ = visible(call, want.chat, want.user)
    call.service.counts["signals"] += 1
    body = {
        "user": user.hex(),
        "name": name or call.service.names.user_name(user),
        "kind": want.kind,
        "data": want.data,
    }
    return {"told": call.service.live.signal(chat, {"chat": chat.hex(), **body})}
