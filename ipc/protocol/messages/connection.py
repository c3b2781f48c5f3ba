"""The connection itself: greeting, status, who is connected, and what tests ask."""

from __future__ import annotations

from topicd.ipc.protocol.fields import anything, flag, number, text
from topicd.ipc.protocol.messages.declaring import Op, Request
from topicd.limits import MAX_SEQ

TOKEN_MAX = 4_096


class Hello(
    Request,
    op=Op.HELLO,
    open_ended=True,  # another version's HELLO is answered with the version spoken here, whatever it holds
    answer="version, server, instance, role (supervisor or delivery), shard, wal_shards, delivery_shards, "
    "shards [socket paths], tcp_ports? (delivery shards), chat? (is there a chat store), chat_port? (0: none), limits",
):
    version: int = anything(help="of the protocol")
    client: str = text(256, default="", help="who connects, for the log")
    token: str | None = text(TOKEN_MAX, default=None, help="over TCP")


class Ping(Request, op=Op.PING):
    """Is anybody there?"""


class Status(Request, op=Op.STATUS, answer="the processes, their state and counters"):
    """Of the supervisor only."""

    stats: bool = flag(default=True, help="with the counters of each process")
    settings: bool = flag(default=False, help="nothing but the settings in force")


class ListConnections(
    Request,
    op=Op.CONNECTIONS,
    answer="connections [{who, client, since_ts, token, bytes_in, bytes_out, subscriptions [names], topics}]",
):
    """Of the shard that is asked; it needs the right admin."""


class Debug(Request, op=Op.DEBUG, answer="now_ms, damage, …"):
    """Only with the setting test_clock. The pressure is the supervisor's, all else a delivery shard's."""

    advance_ms: int | None = number(0, MAX_SEQ, default=None)
    set_ms: int | None = number(0, MAX_SEQ, default=None)
    checkpoint: bool = flag(default=False)
    snapshot: bool = flag(default=False)
    pressure_ppm: int | None = number(0, 1_000_000, default=None, help="millionths: the pressure from now on")
    pressure_off: bool = flag(default=False, help="it is what the shards say again")
