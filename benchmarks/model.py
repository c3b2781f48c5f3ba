"""The nouns of a run: a load, a case, the figures of a round, and all results with their medians."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from topicd.bench.load import Figures, Load
from topicd.bench.stats import Spread, spread

OURS = "topicd"
DISK = "disk"
CHANNEL = "filechannel"  # ours as well, in its own process
HTTP = "http"  # ours as well, with a gateway


@dataclass(frozen=True, slots=True)
class Figure:
    """How a figure is named, printed and judged."""

    name: str
    unit: str
    higher_is_better: bool

    @property
    def head(self) -> str:
        """As a column: a rate is named well enough by its unit."""
        told = self.unit.endswith("/s") or self.unit.startswith("CPU")
        words = self.unit if told else f"{self.name.replace('_', ' ')} {self.unit}"
        return words.strip()


MB_S = Figure("mb_s", "MB/s", True)
P50 = Figure("p50", "µs", False)
P99 = Figure("p99", "µs", False)
P999 = Figure("p999", "µs", False)
CPU_M = Figure("cpu_m", "CPU s per million", False)
WRITTEN = Figure("written", "bytes per byte", False)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the report: a test letter or name, a load for each mode, and the figures it yields."""

    id: str
    test: str
    title: str
    figures: tuple[Figure, ...]  # the first is the headline
    full: Load
    quick: Load | None  # None: part of the full run only
    rounds: int | None = None  # upper limit, for what is slow or steady
    quick_rounds: int | None = None

    def load(self, quick: bool) -> Load:
        return self.quick if quick and self.quick else self.full

    def rounds_of(self, wanted: int, quick: bool) -> int:
        limits = [self.rounds, self.quick_rounds if quick else None]
        return min([wanted, *(limit for limit in limits if limit is not None)])

    @property
    def headline(self) -> Figure:
        return self.figures[0]


class Key(NamedTuple):
    case: str
    peer: str
    variant: str


@dataclass
class Results:
    """Figures of every round. Medians are taken here and nowhere else."""

    rounds: dict[Key, list[Figures]] = field(default_factory=dict)
    failures: dict[Key, str] = field(default_factory=dict)

    def add(self, key: Key, figures: Figures) -> None:
        self.rounds.setdefault(key, []).append(figures)

    def fail(self, key: Key, reason: str) -> None:
        self.failures[key] = reason

    def spread(self, key: Key, figure: str) -> Spread | None:
        values = [f[figure] for f in self.rounds.get(key, ()) if figure in f]
        return spread(values) if values else None

    def keys(self, case: str, peer: str | None = None) -> Iterator[Key]:
        for key in self.rounds:
            if key.case == case and peer in (None, key.peer):
                yield key

    def best(
        self, case: str, peer: str, figure: str, *, higher: bool, among: Sequence[str] = ()
    ) -> tuple[Key, Spread] | None:
        """The variant of a peer with the best median; `among` names those that count, if not all do."""
        keys = [key for key in self.keys(case, peer) if not among or key.variant in among]
        found = [(k, s) for k in keys if (s := self.spread(k, figure)) is not None]
        if not found:
            return None
        return (max if higher else min)(found, key=lambda pair: pair[1].median)
