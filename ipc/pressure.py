"""One pressure for the whole daemon, 0 to 1, and what each delivery shard says for it, in shared memory.

Promise: everybody reads the same numbers; what a step does is in LADDER and nowhere else. Every word is written whole
by one process: the first line by the supervisor, each other line by one delivery shard.

   64  value       millionths
   72  steps       bit i: step i of LADDER is in force
   80  gather_us   pushes are gathered for so long; 0: not at all
   88  commit_us   a WAL shard waits so long for company; 0: not at all
   96  watching    1 while the supervisor looks every LOOK_S; else a shard that feels pressure calls it
  128  the line of delivery shard 0, then one of LINE bytes for each
       +0 depth       topics that moved and whose followers wait
       +8 latency_us  what a topic waits for its turn, smoothed
      +16 pool        business of the threads for checkpoints, millionths
      +24 ring        occupation of the fullest ring, smoothed, millionths
      +32 backlog     the fullest of what is bounded behind it (writes under way, records in no segment), millionths
      +40 paused      for so much of the time those who write much paused for those who ask for little, millionths
"""

from __future__ import annotations

from typing import NamedTuple

from topicd._native import core
from topicd.ipc import shm
from topicd.paths import pressure_shm

LOOK_S = 0.1
LINE = 64
_VALUE = 64
_STEPS = 72
_GATHER = 80
_COMMIT = 88
_WATCHING = 96
_LINES = 128
_MILLION = 1_000_000

LATENCY_TARGET_MS = 5.0
GATHER_MS_MAX = 20.0
COMMIT_MS = (0.5, 10.0)


class Step(NamedTuple):
    name: str
    above: float  # begins when the pressure is higher
    below: float  # ends when it is lower
    sustained_s: float  # for so long
    effect: str


GATHER, WIDEN, PAUSE, REFUSE = range(4)
LADDER = (
    Step("gather", 0.2, 0.15, 0.0, "pushes are gathered for up to 20 ms"),
    Step("widen", 0.4, 0.3, 0.0, "a WAL shard waits 0.5 to 10 ms for more before it writes"),
    Step("pause", 0.8, 0.6, 1.0, "routers go one band lower; topics of negative priority are not pushed"),
    Step("refuse", 0.95, 0.85, 0.0, "a write whose ring is full is throttled"),
)
_PAUSE_BIT = 1 << PAUSE
_REFUSE_BIT = 1 << REFUSE


class Inputs(NamedTuple):
    """What one delivery shard says; shares are 0 to 1."""

    depth: int = 0
    latency_ms: float = 0.0
    pool: float = 0.0
    ring: float = 0.0
    backlog: float = 0.0
    paused: float = 0.0  # says how busy it is with floods; no pressure


def pressure_of(said: Inputs) -> float:
    """The worst of it: a bottleneck is no smaller because the rest is idle. At the latency's target, at a thousand
    topics that wait, or with all threads busy, the first step is near; a full ring alone is heavy, and only what piles
    up behind it, or nobody being served at all, is full pressure."""
    return max(
        said.latency_ms / (said.latency_ms + 4 * LATENCY_TARGET_MS),
        said.depth / (said.depth + 4_096),
        0.2 * min(1.0, said.pool),
        0.5 * min(1.0, said.ring),
        min(1.0, said.backlog),
    )


def gather_us(value: float) -> int:
    """While the step gather is in force: from nothing at its threshold to GATHER_MS_MAX at full pressure."""
    low = LADDER[GATHER].above
    return round(max(0.0, min(1.0, (value - low) / (1 - low))) * GATHER_MS_MAX * 1_000)


def commit_us(value: float) -> int:
    """While the step widen is in force."""
    low, (least, most) = LADDER[WIDEN].above, COMMIT_MS
    return round((least + max(0.0, min(1.0, (value - low) / (1 - low))) * (most - least)) * 1_000)


def create(instance: str, delivery_shards: int) -> shm.Region:
    size = _LINES - shm.BODY_AT + delivery_shards * LINE
    return shm.create(pressure_shm(instance), shm.RegionKind.PRESSURE, size, instance)


class Board:
    """The region, for its readers and for the writer of a line."""

    def __init__(self, region: shm.Region) -> None:
        self._region = region
        self.memory = region.memory

    @classmethod
    def attach(cls, instance: str) -> Board:
        return cls(shm.attach(pressure_shm(instance), shm.RegionKind.PRESSURE, instance))

    def close(self) -> None:
        self._region.close()

    # ---- what the supervisor says ----

    @property
    def value(self) -> float:
        return core.load(self.memory, _VALUE) / _MILLION

    @property
    def steps(self) -> int:
        return core.load(self.memory, _STEPS)

    @property
    def gather_us(self) -> int:
        return core.load(self.memory, _GATHER)

    @property
    def commit_us(self) -> int:
        return core.load(self.memory, _COMMIT)

    @property
    def watching(self) -> bool:
        return core.load(self.memory, _WATCHING) != 0

    @property
    def pausing(self) -> bool:
        """Topics of negative priority are not pushed."""
        return core.load(self.memory, _STEPS) & _PAUSE_BIT != 0

    @property
    def routers_lower(self) -> int:
        """By so many bands do routers go behind what else their source has to do."""
        return 1 if self.pausing else 0

    @property
    def refusing(self) -> bool:
        """A write whose ring is full is throttled."""
        return core.load(self.memory, _STEPS) & _REFUSE_BIT != 0

    def say(self, value: float, steps: int, gather_us: int, commit_us: int, *, watching: bool) -> None:
        """Of the supervisor only."""
        memory = self.memory
        core.store(memory, _VALUE, round(value * _MILLION))
        core.store(memory, _GATHER, gather_us)
        core.store(memory, _COMMIT, commit_us)
        core.store(memory, _STEPS, steps)
        core.store(memory, _WATCHING, 1 if watching else 0)

    # ---- what the shards say ----

    def report(self, shard: int, said: Inputs) -> None:
        """Of that delivery shard only."""
        memory, at = self.memory, _LINES + shard * LINE
        core.store(memory, at, said.depth)
        core.store(memory, at + 8, round(said.latency_ms * 1_000))
        core.store(memory, at + 16, round(said.pool * _MILLION))
        core.store(memory, at + 24, round(said.ring * _MILLION))
        core.store(memory, at + 32, round(said.backlog * _MILLION))
        core.store(memory, at + 40, round(said.paused * _MILLION))

    def said(self, shard: int) -> Inputs:
        memory, at = self.memory, _LINES + shard * LINE
        return Inputs(
            core.load(memory, at),
            core.load(memory, at + 8) / 1_000,
            core.load(memory, at + 16) / _MILLION,
            core.load(memory, at + 24) / _MILLION,
            core.load(memory, at + 32) / _MILLION,
            core.load(memory, at + 40) / _MILLION,
        )
