"""Which shard owns a topic. Clients and daemon compute the same answer; never Python's hash()."""

from __future__ import annotations

import struct

import xxhash


def delivery_shard(topic_name: str, shards: int) -> int:
    return int(xxhash.xxh3_64_intdigest(topic_name.encode())) % shards


def wal_shard(topic_id: int, shards: int) -> int:
    return int(xxhash.xxh3_64_intdigest(struct.pack("<Q", topic_id))) % shards
