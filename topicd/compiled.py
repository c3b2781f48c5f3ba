"""Which modules are compiled by mypyc, and whether a process uses their machine code or their source.

The source is what counts: machine code is used only if it was made from the very bytes that lie beside it. Who changes
a compiled module and forgets to build it again runs slower, never something else. Why: docs/adr/0005.
"""

from __future__ import annotations

import os
import sys
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

GROUP = "topicd_compiled"
# What runs for every append, push and group: on a machine that was idle before, each line of interpreted code is cold.
# The gateway gains nothing by it (docs/adr/0005).
MODULES = (
    "topicd.clock",
    "topicd.ipc.doorbell",
    "topicd.ipc.linger",
    "topicd.ipc.pressure",
    "topicd.ipc.ring",
    "topicd.ipc.slots",
    "topicd.ipc.walstate",
    "topicd.shards.delivery.agenda",
    "topicd.shards.delivery.counters",
    "topicd.shards.delivery.damage",
    "topicd.shards.delivery.load",
    "topicd.shards.delivery.ops.queues",
    "topicd.shards.delivery.pulse",
    "topicd.shards.delivery.ready",
    "topicd.shards.delivery.turn",
    "topicd.shards.delivery.queues.ahead",
    "topicd.shards.delivery.queues.crons",
    "topicd.shards.delivery.queues.deadlines",
    "topicd.shards.delivery.queues.ending",
    "topicd.shards.delivery.queues.facts",
    "topicd.shards.delivery.queues.giving_back",
    "topicd.shards.delivery.queues.handing",
    "topicd.shards.delivery.queues.jobs",
    "topicd.shards.delivery.queues.lanes",
    "topicd.shards.delivery.queues.leases",
    "topicd.shards.delivery.queues.options",
    "topicd.shards.delivery.queues.placed",
    "topicd.shards.delivery.queues.publishing",
    "topicd.shards.delivery.queues.queues",
    "topicd.shards.delivery.queues.rates",
    "topicd.shards.delivery.queues.service",
    "topicd.shards.delivery.queues.states",
    "topicd.shards.delivery.queues.takers",
    "topicd.shards.delivery.queues.tools",
    "topicd.shards.delivery.queues.uniques",
    "topicd.shards.delivery.reading.fan_out",
    "topicd.shards.delivery.reading.filters",
    "topicd.shards.delivery.reading.live",
    "topicd.shards.delivery.reading.long_polls",
    "topicd.shards.delivery.reading.patterns",
    "topicd.shards.delivery.reading.reading",
    "topicd.shards.delivery.reading.segments",
    "topicd.shards.delivery.reading.subscriptions",
    "topicd.shards.delivery.removing.deletion",
    "topicd.shards.delivery.removing.retention",
    "topicd.shards.delivery.sessions.call",
    "topicd.shards.delivery.sessions.connection",
    "topicd.shards.delivery.sessions.dispatch",
    "topicd.shards.delivery.sessions.fairness",
    "topicd.shards.delivery.sessions.outbox",
    "topicd.shards.delivery.sessions.peer",
    "topicd.shards.delivery.sessions.session",
    "topicd.shards.delivery.storing.backlog",
    "topicd.shards.delivery.storing.pressure",
    "topicd.shards.delivery.storing.rounds",
    "topicd.shards.delivery.storing.apply",
    "topicd.shards.delivery.storing.segmenting",
    "topicd.shards.delivery.topic.catalog",
    "topicd.shards.delivery.topic.changes",
    "topicd.shards.delivery.topic.commits",
    "topicd.shards.delivery.topic.compacted",
    "topicd.shards.delivery.topic.consumers",
    "topicd.shards.delivery.topic.contents",
    "topicd.shards.delivery.topic.flight",
    "topicd.shards.delivery.topic.floors",
    "topicd.shards.delivery.topic.follower",
    "topicd.shards.delivery.topic.idempotency_keys",
    "topicd.shards.delivery.topic.inflows",
    "topicd.shards.delivery.topic.part",
    "topicd.shards.delivery.topic.policy",
    "topicd.shards.delivery.topic.producers",
    "topicd.shards.delivery.topic.recent_tags",
    "topicd.shards.delivery.topic.scattered",
    "topicd.shards.delivery.topic.seqs",
    "topicd.shards.delivery.topic.tail",
    "topicd.shards.delivery.topic.topic",
    "topicd.shards.delivery.writing.admission",
    "topicd.shards.delivery.writing.append",
    "topicd.shards.delivery.writing.direct",
    "topicd.shards.delivery.writing.durability",
    "topicd.shards.delivery.writing.entry",
    "topicd.shards.delivery.writing.in_flight",
    "topicd.shards.delivery.writing.log",
    "topicd.shards.delivery.writing.outlet",
    "topicd.shards.delivery.writing.reservation",
    "topicd.shards.storage.ranges",
    "topicd.shards.storage.segment.index",
    "topicd.shards.storage.segment.reader",
    "topicd.shards.storage.segment.reader_cache",
    "topicd.shards.wal.committer",
    "topicd.shards.wal.log",
    "topicd.shards.wal.shard",
)
_ROOT = Path(__file__).parent.parent
# The types of other packages matter little here, and they may not be installed where it is compiled.
MYPY_ARGUMENTS = ("--config-file=", "--explicit-package-bases", "--ignore-missing-imports")
_NOT_MADE = "topicd/_native/not_compiled.txt"  # why there is no machine code, as far as the installation knows
_MADE_FROM = "topicd/_native/compiled.crc"  # one line for all sources: what the machine code was made from


class _Sources:
    """Finds the compiled modules' sources; without it Python would take whatever machine code lies there."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name not in MODULES:
            return None
        from importlib.machinery import SourceFileLoader
        from importlib.util import spec_from_file_location

        file = str(source_of(name))
        return spec_from_file_location(name, file, loader=SourceFileLoader(name, file))


def source_of(module: str, root: Path = _ROOT) -> Path:
    return root / f"{module.replace('.', '/')}.py"


def fingerprint(root: Path = _ROOT) -> str:
    """Of all sources, and of what they are compiled for."""
    crc = zlib.crc32(sys.implementation.cache_tag.encode())
    for module in MODULES:
        crc = zlib.crc32(source_of(module, root).read_bytes(), crc)
    return f"{crc:08x} {len(MODULES)}"


def note_built(root: Path) -> None:
    """The machine code below root was made from the sources below root."""
    (root / _MADE_FROM).write_text(fingerprint(root))


def note_failure(root: Path, why: str) -> None:
    """The sources below root were not compiled; nothing: they were."""
    if why:
        (root / _NOT_MADE).write_text(why)
        (root / _MADE_FROM).unlink(missing_ok=True)
    else:
        (root / _NOT_MADE).unlink(missing_ok=True)


def _reason() -> str:
    for variable, value in (("TOPICD_COMPILED", "0"), ("TOPICD_PURE", "1")):
        if os.environ.get(variable) == value:
            return f"{variable}={value} is set"
    try:
        made_from = (_ROOT / _MADE_FROM).read_text()
    except OSError:
        try:
            why = (_ROOT / _NOT_MADE).read_text()[:500]
        except OSError:
            return "nothing was compiled"
        return f"not compiled when it was installed: {why}"
    return "" if made_from == fingerprint() else "the sources have changed since they were compiled"


# Why this process runs the sources; empty: it runs machine code. Found out before any of the modules is imported.
why_not_used = _reason()
if why_not_used:
    sys.meta_path.insert(0, _Sources)
