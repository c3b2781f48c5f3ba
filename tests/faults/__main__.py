"""`python -m tests.faults`: crash and fail every mutating call of every scene. Without --full a seeded sample."""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from random import Random

from tests.faults.kills import kill_cases, run_kill
from tests.faults.story import SCENES
from tests.faults.sweep import Case, cases, in_order, run_case
from tests.support.collecting import give_back

SAMPLE = 1_200
SHOWN = 20
KINDS = ("crash", "kill", "restart", "once", "always")
STEP = "step"  # one shard dies at a step


def _work(case: object) -> tuple[str, list[str]]:
    return str(case), run_case(case) if isinstance(case, Case) else run_kill(case)  # type: ignore[arg-type]


def _prepare() -> None:
    logging.disable(logging.CRITICAL)


def _chosen(given: argparse.Namespace, chance: Random) -> list[object]:
    scenes = [scene for scene in SCENES if given.scene in (None, scene.name)]
    if not scenes:
        raise SystemExit(f"no scene {given.scene!r}; there are: {', '.join(scene.name for scene in SCENES)}")
    seeds = range(7) if given.full else [chance.randrange(1_000) for _ in range(7)]
    kinds = given.kinds.split(",") if given.kinds else [*KINDS, STEP]
    found: list[object] = [case for case in cases(scenes, seeds=seeds) if case.kind in kinds]
    if STEP in kinds:
        found += kill_cases(scenes)
    return found if given.full else chance.sample(found, min(given.sample, len(found)))


def _run(chosen: list[object], workers: int) -> Iterator[tuple[str, list[str]]]:
    if workers == 1:
        for case in chosen:
            yield _work(case)
            give_back()
        return
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=25) as pool:
        yield from pool.imap_unordered(_work, chosen, chunksize=8)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="every case of every scene: some ten thousand, half an hour"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the sample; default: a random one, printed")
    parser.add_argument("--sample", type=int, default=SAMPLE, help="cases of a sample")
    parser.add_argument("--scene", default=None, help="only this one")
    parser.add_argument("--kinds", default=None, help="only these: crash,kill,restart,once,always,step")
    parser.add_argument("--first", action="store_true", help="end with the first violation")
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args()
    seed = secrets.randbits(31) if given.seed is None else given.seed
    _prepare()
    failed = [f"{scene.name}: {line}" for scene in SCENES for line in in_order(scene)]
    if failed and given.first:
        print(f"VIOLATION {failed[0]}")
        return 1
    chosen = _chosen(given, Random(seed))
    print(f"seed {seed}, {len(chosen)} cases of {len(SCENES)} scenes", flush=True)
    began, tty, kinds = time.monotonic(), sys.stdout.isatty(), Counter[str]()
    for done, (name, problems) in enumerate(_run(chosen, given.workers), 1):
        kinds["violated" if problems else "held"] += 1
        if problems:
            failed.append("\n    ".join([name, *problems[:4]]))
        if failed and given.first:
            break
        if tty:
            print(f"\r\033[K{done}/{len(chosen)}, {len(failed)} violations", end="", flush=True)
        elif done % 500 == 0:
            print(f"{done}/{len(chosen)}, {len(failed)} violations", flush=True)
    if tty:
        print("\r\033[K", end="")
    for line in failed[:SHOWN]:
        print(f"VIOLATION {line}")
    print(f"{len(chosen)} cases in {time.monotonic() - began:.0f} s, seed {seed}: {len(failed)} violations")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
