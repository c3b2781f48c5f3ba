"""The order of a run: case by case, round by round, every peer in turn, so that noise falls on all alike."""

from __future__ import annotations

import gc
import os
import sys
import time
import traceback
from collections.abc import Sequence

from benchmarks.costs import Costs
from benchmarks.model import Case, Key, Results
from benchmarks.peers.base import Driver, Peer
from topicd.bench.load import Load

LOG_LINES = 20


def say(text: str) -> None:
    """Progress; the report alone goes to standard output."""
    print(text, file=sys.stderr, flush=True)


def run_cases(cases: Sequence[Case], peers: Sequence[Peer], *, quick: bool, rounds: int) -> Results:
    results = Results()
    started = time.monotonic()
    for case in cases:
        say(f"[{time.monotonic() - started:5.0f} s] {case.title}")
        run_case(case, case.load(quick), peers, case.rounds_of(rounds, quick), results)
    say(f"[{time.monotonic() - started:5.0f} s] done")
    return results


def run_case(case: Case, load: Load, peers: Sequence[Peer], rounds: int, results: Results) -> None:
    plan = [(peer, variant, driver) for peer in peers for variant, driver in peer.drivers(case.test, load).items()]
    for _ in range(rounds):
        for peer, variant, driver in plan:
            key = Key(case.id, peer.name, variant)
            if key not in results.failures:
                _measure(key, peer, driver, load, results)
    for peer in peers:
        peer.end_case()


def _measure(key: Key, peer: Peer, driver: Driver, load: Load, results: Results) -> None:
    """One driver, one round. A failure is a line of the report; the other peers go on."""
    gc.collect()
    # What the last one left dirty would otherwise be paid by this one's first sync.
    os.sync()
    try:
        costs = Costs(peer.pids)
        results.add(key, costs.added_to(driver(peer, load), load.size))
    except Exception as error:
        results.fail(key, f"{type(error).__name__}: {error}")
        say(f"  {key.peer} {key.variant}: {type(error).__name__}: {error}")
        if os.environ.get("BENCH_TRACE"):
            traceback.print_exc()
            for log in sorted(peer.root.parent.glob(f"{peer.root.name}*.log")):
                say("\n".join([f"  {log.name}:", *log.read_text(errors="replace").splitlines()[-LOG_LINES:]]))
