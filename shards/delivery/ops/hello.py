"""The first message of a connection, and whether anybody is there."""

from __future__ import annotations

import topicd
from topicd import limits
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.messages import Hello, Ping, Status
from topicd.ipc.protocol.wire import PROTOCOL_VERSION, check_version
from topicd.shards.delivery.sessions.call import Call, operation


@operation(Hello)
def hello(call: Call, want: Hello) -> None:
    check_version(want.version)
    shard, session = call.shard, call.session
    if session.needs_token:
        session.rights = shard.authorize(want.token)
    session.greeted = True
    call.answer(
        {
            "version": PROTOCOL_VERSION,
            "server": topicd.__version__,
            "instance": shard.instance,
            "role": "delivery",
            "shard": shard.index,
            "wal_shards": shard.wal_shards,
            "delivery_shards": shard.delivery_shards,
            "shards": shard.socket_paths,
            "tcp_ports": shard.tcp_ports,
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
