"""Random damage to a data directory, again and again: right bytes, or reported.

python -m tests.corrupt --rounds 1000 --seed 7
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.corrupt.rounds import play
from tests.corrupt.world import build


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corrupt")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", type=int, default=None, metavar="N", help="only this round")
    args = parser.parse_args()
    seed = args.seed if args.seed is not None else random.randrange(1 << 30)
    bad = 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="topicd-corrupt-") as place:
        template = Path(place) / "template"
        truth = build(template)
        for number in range(args.rounds) if args.only is None else [args.only]:
            done, problems = play(template, Path(place), truth, random.Random(f"{seed}/{number}"))
            if problems:
                bad += 1
                print(f"round {number} of seed {seed}: {'; '.join(done)}")
                for line in problems:
                    print(f"    {line}", flush=True)
    rounds = args.rounds if args.only is None else 1
    print(f"{rounds} rounds, seed {seed}: {bad} broke a promise; {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
