"""What a client was told when it was connected, and every limit of time that it keeps to."""

from __future__ import annotations

from types import EllipsisType
from typing import Any, TypeAlias

from topicd.client.core.events import Events
from topicd.client.core.shardmap import ShardMap
from topicd.errors import InvalidRequest
from topicd.ipc.protocol.retry import FOREVER_S, Tempo

DEFAULT_TIMEOUT_S = 30.0  # of an operation with all its repetitions
DIAL_S = 5.0  # of one attempt to connect and be greeted, at a shard or at the front door
MAX_CONNECTIONS = 32  # of the blocking client, to one shard
TOPIC_IDS_KEPT = 65_536
COMMIT_HOLD_S = 600.0  # so long room is held for a commit after its last batch
STAGE_TTL_S = 86_400.0  # after which what was staged and not committed expires
SPOOL_DURABILITIES = ("os", "fsync")
SPOOL_BYTES = 1 << 30  # what may wait for the daemon before publishing is refused
BULK_WINDOW = 8  # batches of one long list that are under way at once
PIPELINE_MAX = 512  # records of a pipeline that are under way at once


Timeout: TypeAlias = float | None  # seconds; None waits for ever
OwnTimeout: TypeAlias = Timeout | EllipsisType  # ...: that of the client


def seconds(timeout: OwnTimeout, otherwise: float = DEFAULT_TIMEOUT_S) -> float:
    if timeout is None:
        return FOREVER_S
    if isinstance(timeout, EllipsisType):
        return otherwise
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidRequest(f"a timeout is a number of seconds, or None to wait for ever, not {timeout!r:.50}")
    return min(float(timeout), FOREVER_S)


def span(what: str, given: Any) -> float:
    """A number of seconds from 0 on; as many as poll() cannot wait are for ever."""
    if isinstance(given, bool) or not isinstance(given, int | float) or not given >= 0:
        raise InvalidRequest(f"{what} is a number of seconds from 0 on, not {given!r:.100}")
    return min(float(given), FOREVER_S)


class Shared:
    """What all parts of a client share: where the shards are, how long to try, what to show at the door."""

    def __init__(
        self, shard_map: ShardMap, *, tempo: Tempo, timeout: float, token: str | None, events: Events | None = None
    ) -> None:
        self.shard_map = shard_map
        self.tempo = tempo
        self.timeout = timeout
        self.token = token
        self.events = events or Events(tempo.monotonic)
        self.closed = False


def check_no_spool(durability: str, max_bytes: int) -> None:
    """Of a client without one: what would be passed over is refused."""
    for name, given, default in (
        ("spool_durability", durability, SPOOL_DURABILITIES[0]),
        ("spool_bytes", max_bytes, SPOOL_BYTES),
    ):
        if given != default:
            raise InvalidRequest(f"{name} says nothing without a spool: connect(spool=DIR)")
