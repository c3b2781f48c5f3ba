"""How far a topic is compacted outlives a restart by its snapshot."""

from __future__ import annotations

from topicd.shards.delivery.topic.compacted import Compacted


def test_what_a_snapshot_holds_comes_back() -> None:
    part, other = Compacted(), Compacted()
    part.through, part.deleted = 16, 6
    other.restore(part.to_snapshot(20))
    assert (other.through, other.deleted) == (16, 6)
