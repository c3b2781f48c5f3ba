"""`python -m tests.model.queues`: longer random histories of a queue against the model."""

from __future__ import annotations

import argparse
import secrets
import sys
import time

from tests.model.queue_machine import run_histories

ROUND = 10  # histories between two lines of progress


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.model.queues", description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, printed")
    parser.add_argument("--length", type=int, default=60, help="steps of one history")
    given = parser.parse_args()
    seed = secrets.randbits(31) if given.seed is None else given.seed
    print(f"seed {seed}, {given.steps} steps", flush=True)
    began, done, number = time.monotonic(), 0, 0
    while done < given.steps:
        done += run_histories(ROUND, given.length, seed + number)
        number += 1
        print(f"{done} steps, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{done} steps in {time.monotonic() - began:.0f} s, seed {seed}: no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
