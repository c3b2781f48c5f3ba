"""`python -m tests.model`: random histories of topics, a real daemon against the model."""

from __future__ import annotations

import argparse
import contextlib
import secrets
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path

from tests.model.machine import machine_for, run_examples
from tests.model.world import World

ROUND = 10  # examples between two lines of progress
FRESH = 40  # rounds after which a new daemon is taken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, printed")
    parser.add_argument("--length", type=int, default=80, help="steps of one history")
    parser.add_argument("--pure", action="store_true", help="the daemon without its native core")
    parser.add_argument("--no-shrink", action="store_true", help="show the first failing history as it is")
    parser.add_argument("--keep", type=Path, default=Path("var/model"), help="where journal and log of a failure go")
    given = parser.parse_args()
    seed = secrets.randbits(31) if given.seed is None else given.seed
    print(f"seed {seed}, {given.steps} steps, {'pure' if given.pure else 'native'} core", flush=True)
    began, done, compared, number = time.monotonic(), 0, 0, 0
    while done < given.steps:
        with tempfile.TemporaryDirectory(prefix="topicd-model-") as scratch, _world(scratch, given.pure) as world:
            for _ in range(FRESH):
                try:
                    run_examples(
                        machine_for(world), ROUND, given.length, seed=seed + number, shrink=not given.no_shrink
                    )
                except KeyboardInterrupt:
                    return 130
                except BaseException:
                    traceback.print_exc()
                    where = given.keep / f"seed-{seed}-{number}"
                    with contextlib.suppress(FileNotFoundError):
                        shutil.copytree(Path(scratch) / "failed", where, dirs_exist_ok=True)
                    world.keep(where / "last")
                    print(f"\nDIFFERENCE: --seed {seed + number} --steps 1; journal and log in {where}", flush=True)
                    return 1
                number += 1
                took = time.monotonic() - began
                steps = done + world.steps
                print(f"{steps} steps, {compared + world.compared} comparisons, {took:.0f} s", flush=True)
                if steps >= given.steps:
                    break
            done += world.steps
            compared += world.compared
    print(f"{done} steps, {compared} comparisons in {time.monotonic() - began:.0f} s, seed {seed}: no difference")
    return 0


@contextlib.contextmanager
def _world(scratch: str, pure: bool):  # type: ignore[no-untyped-def]
    world = World(Path(scratch) / "world", pure=pure)
    try:
        world.open()
        yield world
    finally:
        world.close()


if __name__ == "__main__":
    sys.exit(main())
