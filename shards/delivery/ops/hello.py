"""The first message of a connection, and whether anybody is there."""

from __future__ import annotations

import topicd
from topicd import limits
from topicd.errors import InvalidRequest, Unauthorized
from topicd.ipc.protocol.messages import Hello, Ping, Status
from topicd.ipc.protocol.wire import PROTOCOL_VERSION, check_version
from topicd.shards.delivery.sessions.call import Call, operation
from topicd.tokens import digest_of


@operation(Hello)
def hello(call: Call, want: Hello) -> None:
    check_version(want.version)
    place, connections, connection = call.shard.place, call.shard.connections, call.connection
    if connection.needs_token and not connection.greeted:
        guest = connection.guest
        try:
            connection.rights = connections.authorize(want.token, connection.who)
            connection.token = digest_of(want.token or "")
        except Unauthorized as exc:
            if guest is None:
                raise
            connection.turn_away(call.request_id, exc, connections.strangers.delay(guest.address))
            return
        if guest is not None:
            connections.strangers.leave(guest)
    if connection.trusted and want.client == limits.CHAT_KEEPER:
        connection.keeps = limits.CHATS
    connection.greeted = True
    connection.client = str(want.client)[:64]
    call.answer(
        {
            "version": PROTOCOL_VERSION,
            "server": topicd.__version__,
            "instance": place.instance,
            "role": "delivery",
            "shard": place.index,
            "wal_shards": place.wal_shards,
            "delivery_shards": place.delivery_shards,
            "shards": place.socket_paths,
            "tcp_ports": connections.tcp_ports,
            "chat": place.settings.chat,
            "chat_port": place.settings.chat_host_port[1] if place.settings.chat_listen else 0,
            "limits": {
                "max_batch_records": limits.MAX_BATCH_RECORDS,
                "max_batch_bytes": limits.MAX_BATCH_BYTES,
                "max_copy_bytes": limits.MAX_COPY_BYTES,
                "max_copy_ranges": limits.MAX_COPY_RANGES,
            },
        }
    )


@operation(Ping)
def ping(call: Call, want: Ping) -> None:
    call.answer({})


@operation(Status)
def status(call: Call, want: Status) -> None:
    raise InvalidRequest("the status is told by the supervisor's socket only, on the daemon's own machine")
