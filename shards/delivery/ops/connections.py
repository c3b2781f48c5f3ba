"""Who is connected to this shard, and what for."""

from __future__ import annotations

from typing import Any

from topicd.ipc.protocol.messages import ListConnections
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.shards.delivery.sessions.connection import Connection

_NAMED = 20  # topics of one connection that are told by name
_MOST = 10_000  # connections in one answer


@operation(ListConnections)
def list_connections(call: Call, want: ListConnections) -> None:
    call.connection.rights.require("admin")
    oldest_first = sorted(call.shard.connections.open, key=lambda connection: connection.since_ms)
    call.answer({"connections": [_row(connection) for connection in oldest_first[:_MOST]]})


def _row(connection: Connection) -> dict[str, Any]:
    subscriptions = list(connection.subscriptions.values())
    followed = [feed.topic.name for one in subscriptions if not one.pattern for feed in one.feeds.values()]
    waited_for = [name for one in subscriptions for name in one.awaited]
    names = sorted([one.pattern for one in subscriptions if one.pattern] + followed + waited_for)
    return {
        "who": connection.who,
        "client": connection.client,
        "since_ts": connection.since_ms,
        "token": connection.rights.name if connection.needs_token else "",
        "bytes_in": connection.bytes_in,
        "bytes_out": connection.bytes_out,
        "subscriptions": names[:_NAMED],
        "topics": len(names),
    }
