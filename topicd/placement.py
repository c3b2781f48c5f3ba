"""Which shard owns a topic. Clients and daemon compute the same answer; never Python's hash()."""

from __future__ import annotations

import struct

import xxhash

from topicd.limits import CHANNELS

_CHANNEL = len(CHANNELS) + 64  # with the hash of the handler


def delivery_shard(topic_name: str, shards: int) -> int:
    """The logs of one channel are all in one shard, whatever follows its hash in their names."""
    if topic_name.startswith(CHANNELS):
        topic_name = topic_name[:_CHANNEL]
    return int(xxhash.xxh3_64_intdigest(topic_name.encode())) % shards


def wal_shard(topic_id: int, shards: int) -> int:
    return int(xxhash.xxh3_64_intdigest(struct.pack("<Q", topic_id))) % shards
