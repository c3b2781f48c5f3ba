"""Which shard owns a topic: the same answer everywhere and for ever."""

from __future__ import annotations

from collections import Counter

import pytest

from topicd._native import core
from topicd.placement import delivery_shard, wal_shard

# Frozen: clients in other languages compute the same, and data directories live longer than processes.
GOLDEN = {"orders": 0xA88CCDC9FA4974FB, "a": 0xE6C632B61E964E1F, "topicd.test:1": 0x5E7EA2B83612BB82}


def test_the_owner_is_xxh3_of_the_name() -> None:
    for name in ("orders", "a", "x" * 255, "a.b_c:d-e"):
        digest = core.xxh3_64(name.encode())
        for shards in (1, 2, 3, 8, 256):
            assert delivery_shard(name, shards) == digest % shards


def test_the_wal_shard_is_xxh3_of_the_id_as_eight_bytes() -> None:
    for topic_id in (1, 7, 2**32, 2**64 - 1):
        digest = core.xxh3_64(topic_id.to_bytes(8, "little"))
        for shards in (1, 2, 8, 64):
            assert wal_shard(topic_id, shards) == digest % shards


@pytest.mark.parametrize(("name", "digest"), GOLDEN.items())
def test_the_hash_of_known_names_never_changes(name: str, digest: int) -> None:
    assert delivery_shard(name, 2**64) == digest


def test_topics_spread_over_the_shards() -> None:
    names = Counter(delivery_shard(f"topic-{n}", 8) for n in range(8000))
    ids = Counter(wal_shard(n, 8) for n in range(1, 8001))
    for spread in (names, ids):
        assert sorted(spread) == list(range(8))
        assert max(spread.values()) < 1.2 * min(spread.values())
