"""What a client was told when it was connected, and every limit of time that it keeps to."""

from __future__ import annotations

from topicd.client.core.shardmap import ShardMap
from topicd.ipc.protocol.retry import Tempo

DEFAULT_TIMEOUT_S = 30.0  # of an operation with all its repetitions
DIAL_S = 5.0  # of one attempt to connect and be greeted, at a shard or at the front door
MAX_CONNECTIONS = 32  # of the blocking client, to one shard
TOPIC_IDS_KEPT = 65_536
COMMIT_HOLD_S = 600.0  # so long room is held for a commit after its last batch
STAGE_TTL_S = 86_400.0  # after which what was staged and not committed expires
SPOOL_BYTES = 1 << 30  # what may wait for the daemon before publishing is refused
BULK_WINDOW = 8  # batches of one long list that are under way at once
PIPELINE_MAX = 512  # records of a pipeline that are under way at once


class Shared:
    """What all parts of a client share: where the shards are, how long to try, what to show at the door."""

    def __init__(self, shard_map: ShardMap, *, tempo: Tempo, timeout: float, token: str | None) -> None:
        self.shard_map = shard_map
        self.tempo = tempo
        self.timeout = timeout
        self.token = token
        self.closed = False
