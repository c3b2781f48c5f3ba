"""What a rollup is asked for, checked before anything is started."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from topicd.errors import InvalidRequest
from topicd.spark.loss import parse_gaps
from topicd.spark.options import ConnectionOptions

GROUPS = ("topic", "tag", "node")
NUMBERS = ("records", "bytes", "rate", "first_seq", "last_seq", "gaps", "p50_ms", "p95_ms", "p99_ms", "max_ms")
AVAILABLE, CONTINUOUS = "available", "continuous"
_WINDOW = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Options:
    place: ConnectionOptions
    topics: tuple[str, ...]
    window: str = "1m"
    by: tuple[str, ...] = ()  # tag, node beside the topic
    latency: str | None = None  # json:$.path or meta:$.path of the time a record was made; None: between arrivals
    to: Path | None = None
    to_topic: str | None = None
    stream: str | None = None  # available or continuous
    checkpoint: Path | None = None
    dry_run: bool = False
    acknowledge_gaps: str | None = None  # as the option acknowledgeGaps of the source

    @property
    def window_ms(self) -> int:
        found = _WINDOW.fullmatch(self.window.strip())
        if found is None or not int(found[1]):
            raise InvalidRequest(f"--window must be a length like 500ms, 10s, 1m, 1h or 1d, not {self.window!r:.50}")
        return int(found[1]) * _MS[found[2]]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(name for name in GROUPS if name == "topic" or name in self.by)


def check(options: Options) -> None:
    options.window_ms  # noqa: B018  (says early what is wrong with it)
    if (options.to is None) == (options.to_topic is None):
        raise InvalidRequest("say where the rollup goes: --to DIR or --to-topic TOPIC, one of them")
    if options.stream is not None and options.to_topic is not None and options.checkpoint is None:
        raise InvalidRequest("a streaming rollup to a topic needs --checkpoint DIR, where it remembers how far it is")
    if options.stream is not None and options.to is not None and options.checkpoint is not None:
        raise InvalidRequest("--checkpoint belongs to --to-topic: a directory remembers itself how far the rollup is")
    if options.acknowledge_gaps is not None:
        parse_gaps(options.acknowledge_gaps)
    wrong = [name for name in options.by if name not in GROUPS]
    if wrong:
        raise InvalidRequest(f"--by must be tag or node, not {wrong[0]!r:.50}")
    if options.latency is not None and not re.match(r"(json|meta):\$", options.latency):
        raise InvalidRequest(f"--latency must be json:$.path or meta:$.path, not {options.latency!r:.100}")
