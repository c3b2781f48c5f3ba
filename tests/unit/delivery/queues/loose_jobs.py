"""The jobs of a queue without a shard around them."""

from __future__ import annotations

from typing import Any

from topicd.frames import FrameType
from topicd.model import TopicConfig
from topicd.shards.delivery.queues.jobs import Jobs
from topicd.shards.delivery.queues.lanes import GroupLimits
from topicd.shards.delivery.queues.options import Options

NOW = 1_700_000_000_000


def make(**config: Any) -> Jobs:
    return Jobs(TopicConfig.from_fields({"type": "queue", **config}))


def change(jobs: Jobs, **body: Any) -> None:
    jobs.replay(FrameType.LEASE, {"at": NOW, **body}, NOW)


def seqs(jobs: Jobs, most: int = 1_000) -> list[int]:
    picked = jobs.lanes.pick(most, NOW, GroupLimits(0, 0))
    return [seq for one in picked for seq in range(one.first, one.last + 1)]


def options(first: int, count: int = 1, **more: Any) -> Options:
    made = Options(first, count)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def again(jobs: Jobs, visible: int, live: list[tuple[int, int]]) -> Jobs:
    """As after a restart from a snapshot."""
    other = make()
    other.logs_leases = jobs.logs_leases
    other.restore(jobs.to_snapshot(visible))
    other.open(live, visible, NOW)
    return other
