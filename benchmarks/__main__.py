"""`python -m benchmarks`: ours and the peers in one run; the report on stdout, progress on stderr."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
from pathlib import Path
from types import FrameType

from benchmarks import bars, cases, channels, chat, machine, peers, report, routers, synccheck, table
from benchmarks.model import CHANNEL, DISK, HTTP, OURS
from benchmarks.peers.base import Peer
from benchmarks.rounds import run_cases, say
from topicd.bench import machine as hardware
from topicd.bench.load import Load

REPO = Path(__file__).resolve().parent.parent
# Measured by themselves, with no peers.
ALONE = {"routers": routers.main, "channels": channels.bench, "chat": chat.bench}
FOREIGN = tuple(name for name in peers.MODULES if name not in (DISK, OURS, CHANNEL, HTTP))


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, under three minutes")
    tests = f"tests: {', '.join(cases.TESTS)}; or one of {', '.join(ALONE)}"
    parser.add_argument("--only", type=_names, default=[], metavar="A,C", help=tests)
    parser.add_argument(
        "--peers", type=_names, default=list(FOREIGN), metavar="redis,nats", help=f"of {', '.join(FOREIGN)}"
    )
    parser.add_argument("--no-ours", action="store_true", help="the peers alone")
    parser.add_argument("--rounds", type=int, help=f"default {cases.FULL_ROUNDS}, quick {cases.QUICK_ROUNDS}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every figure of every round")
    parser.add_argument("--charts", type=Path, metavar="DIR", help="a PNG for each case (needs matplotlib)")
    parser.add_argument("--dir", type=Path, help="where the servers keep their data: a real disk (default: var/bench)")
    found = parser.parse_args(argv)
    if unknown := set(found.peers) - set(FOREIGN):
        parser.error(f"unknown peer {', '.join(sorted(unknown))}; known are {', '.join(FOREIGN)}")
    if len(found.only) == 1 and found.only[0] in ALONE:
        return found
    try:
        cases.select(found.only, found.quick)
    except ValueError as error:
        parser.error(str(error))
    return found


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    # A termination unwinds like an interrupt: every server is stopped on the way out.
    signal.signal(signal.SIGTERM, _terminate)
    work_dir = (options.dir or REPO / "var" / "bench") / str(os.getpid())
    work_dir.mkdir(parents=True, exist_ok=True)
    try:
        machine.check_disk(work_dir)
        alone = ALONE.get(options.only[0]) if len(options.only) == 1 else None
        return alone(work_dir, quick=options.quick) if alone is not None else _run(options, work_dir)
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)


def _run(options: argparse.Namespace, work_dir: Path) -> int:
    facts = hardware.facts(work_dir)
    wanted = [DISK, *([] if options.no_ours else [OURS, CHANNEL, HTTP]), *(n for n in FOREIGN if n in options.peers)]
    chosen = cases.select(options.only, options.quick)
    if hardware.is_virtual() and not options.quick:
        say("touching memory: a virtual machine gets its pages at the first touch")
        facts["memory"] += f", {machine.touch_memory():.1f} GiB of it touched before the first round"
    with contextlib.ExitStack() as stack:
        loads = [(case.test, case.load(options.quick)) for case in chosen]
        found, skipped = _open(wanted, work_dir, stack, loads)
        described, syncs = _describe(found, work_dir)
        rounds = options.rounds or (cases.QUICK_ROUNDS if options.quick else cases.FULL_ROUNDS)
        results = run_cases(chosen, found, quick=options.quick, rounds=rounds)
    judgements = [] if options.no_ours else bars.judge_all(results, syncs, {case.test for case in chosen})
    run = report.Run(facts, described, skipped, chosen, results, judgements, options.quick)
    print(table.render(run))
    if options.json:
        report.write(report.as_document(run), options.json)
    if options.charts:
        from benchmarks import charts

        charts.draw(chosen, results, options.charts)
    return 0


def _open(
    names: list[str], work_dir: Path, stack: contextlib.ExitStack, loads: list[tuple[str, Load]]
) -> tuple[list[Peer], dict[str, str]]:
    """Start every peer that has something to do and can run here; those that cannot get a clear line."""
    found: list[Peer] = []
    skipped: dict[str, str] = {}
    for name in names:
        try:
            kind = peers.load(name)
            reason = kind.missing()
        except ImportError as error:
            reason = f"{name}: {error}"
        if not reason and not any(kind(work_dir / name).drivers(*load) for load in loads):
            continue
        if reason:
            skipped[name] = reason
            say(f"{reason}: skipped (make bench-deps)")
            continue
        try:
            found.append(stack.enter_context(kind(work_dir / name)))
        except RuntimeError as error:
            if name not in FOREIGN:
                raise
            skipped[name] = str(error)
            say(f"{name} cannot be started: {error}: skipped")
    return found, skipped


def _describe(found: list[Peer], work_dir: Path) -> tuple[dict[str, dict[str, str]], dict[str, bool | None]]:
    described: dict[str, dict[str, str]] = {}
    syncs: dict[str, bool | None] = {}
    for peer in found:
        described[peer.name] = peer.facts()
        if peer.has_sessions:
            checked = synccheck.check(peer, work_dir)
            described[peer.name]["sync"] = str(checked)
            syncs[peer.name] = checked.syncs_each
            say(f"{peer.name} {checked}")
    return described, syncs


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    sys.exit(main())
