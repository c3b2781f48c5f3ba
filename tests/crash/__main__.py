"""`python -m tests.crash`: kill a real daemon again and again and compare what it serves with what it promised."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.rounds import CLASSES, Options, Report, run


class Meter:
    """A line per round; on a terminal a bar below them."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._began = time.monotonic()
        self._tty = sys.stdout.isatty()

    def tell(self, report: Report) -> None:
        clear = "\r\033[K" if self._tty else ""
        print(f"{clear}round {report.number}/{self._rounds} {report}", flush=True)
        if self._tty:
            share = report.number / self._rounds
            left = (time.monotonic() - self._began) / report.number * (self._rounds - report.number)
            filled = int(share * 40)
            print(f"[{'#' * filled}{'.' * (40 - filled)}] {share:4.0%}, {left:.0f} s left", end="", flush=True)
            if report.number == self._rounds:
                print("\r\033[K", end="")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, printed")
    parser.add_argument("--classes", default=",".join(CLASSES), help="durability classes, comma-separated")
    parser.add_argument("--shards", default="1,2,3", help="shard counts to choose from, comma-separated")
    parser.add_argument("--keep", type=Path, default=Path("var/crash"), help="where a violation is kept")
    given = parser.parse_args()
    classes = tuple(given.classes.split(","))
    if unknown := set(classes) - set(CLASSES):
        parser.error(f"unknown class {', '.join(sorted(unknown))}; known are {', '.join(CLASSES)}")
    seed = secrets.randbits(31) if given.seed is None else given.seed
    options = Options(given.rounds, seed, classes, tuple(int(n) for n in given.shards.split(",")), given.keep)
    print(f"seed {seed}, {options.rounds} rounds, classes {', '.join(classes)}", flush=True)
    meter, began = Meter(options.rounds), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="topicd-crash-") as scratch:
        try:
            run(options, Path(scratch), meter.tell)
        except KeyboardInterrupt:
            return 130
        except Exception as exc:
            print(f"\nVIOLATION (seed {seed}): {exc}", *getattr(exc, "__notes__", []), sep="\n", flush=True)
            return 1
    print(
        f"{options.rounds} rounds in {time.monotonic() - began:.0f} s, seed {seed}: nothing lost, doubled or reordered"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
