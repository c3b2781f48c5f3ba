"""Where a delivery shard is: its clock, settings, files and number among the others. Only the settings ever change, and
only as a whole, when the daemon reloads them.
"""

from __future__ import annotations

from functools import lru_cache

from topicd.ipc.tally import Tally
from topicd.limits import KIB
from topicd.paths import topic_dir_name
from topicd.shards.process.runtime import Shard

_DIRS_KEPT = 8_192


class Place:
    def __init__(self, shard: Shard) -> None:
        boot = shard.boot
        self.clock = shard.clock
        self.settings = shard.settings
        self.fs = shard.fs
        self.data = shard.data
        self.index = boot.index
        self.instance = boot.instance
        self.run = boot.run
        self.wal_shards = boot.wal_shards
        self.delivery_shards = boot.delivery_shards
        self.wal_seed = boot.wal_seed
        self.power_lost = boot.power_lost
        self.socket_paths = [str(shard.run.delivery_socket(i).absolute()) for i in range(boot.delivery_shards)]
        self.tally = Tally.attach(boot.instance, boot.index, boot.delivery_shards)  # what all shards hold together
        # Asked for with every read from segments and every write to them.
        topics = shard.data.topics
        self.topic_dir = lru_cache(_DIRS_KEPT)(lambda topic_id: topics / topic_dir_name(topic_id))
        ring_bytes = shard.settings.ring_bytes
        # A batch larger than the ring goes through it in pieces; a frame always fits one.
        self.piece_bytes = ring_bytes * 3 // 4
        # A batch below this may travel with others, as long as they are together no more than that.
        self.small_batch = min(16 * KIB, ring_bytes // 8)
        self.gathered_bytes = min(256 * KIB, ring_bytes // 4)
