"""`python -m benchmarks.compare OTHER`: this checkout and another one, round by round in one run, and the ratio of
their medians. For changes that shall cost nothing: a ratio of 1 is level, above 1 this checkout is better.

Both must be set up (`make setup`). Rounds are interleaved and change who goes first, so that a slow minute of the
machine hits both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import cases
from benchmarks.model import OURS
from benchmarks.rounds import say

HERE = Path(__file__).resolve().parent.parent
BARS = "A,B,C,D,E,G,H"
LEVEL = 0.95  # below this a change costs something


class Row(NamedTuple):
    case: str
    variant: str
    figure: str
    unit: str
    here: float
    other: float
    ratio: float  # above 1: here is better


def run_round(checkout: Path, only: str, full: bool) -> dict[tuple[str, str, str], float]:
    """The figures of ours in one round of a checkout's own benchmarks: (case, variant, figure) -> value."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "round.json"
        command = [str(checkout / ".venv/bin/python"), "-m", "benchmarks", "--rounds", "1", "--peers", ""]
        command += ["--only", only, "--json", str(out), *([] if full else ["--quick"])]
        done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=False)
        if not out.exists():
            raise SystemExit(f"{checkout}: the round failed\n{done.stderr[-2000:]}")
        return figures_of(json.loads(out.read_text()))


def figures_of(document: dict[str, Any]) -> dict[tuple[str, str, str], float]:
    return {
        (case["id"], row["variant"], name): value["median"]
        for case in document["cases"]
        for row in case["results"]
        if row["peer"] == OURS
        for name, value in row["figures"].items()
    }


def ratios(here: list[dict[tuple[str, str, str], float]], other: list[dict[tuple[str, str, str], float]]) -> list[Row]:
    """Of the figures that the tables show; both sides must have them."""
    rows = []
    for case in cases.all_cases():
        for figure in case.figures:
            variants = sorted({variant for found in here for name, variant, _ in found if name == case.id})
            for variant in variants:
                key = (case.id, variant, figure.name)
                ours, theirs = ([found[key] for found in side if key in found] for side in (here, other))
                if ours and theirs and median(ours) and median(theirs):
                    a, b = median(ours), median(theirs)
                    rows.append(Row(*key, figure.unit, a, b, a / b if figure.higher_is_better else b / a))
    return rows


def render(rows: list[Row]) -> str:
    lines = ["| case | figure | here | other | ratio |", "|---|---|---|---|---|"]
    for row in rows:
        name = f"{row.case} {row.variant}".strip()
        mark = "" if row.ratio >= LEVEL else " **below**"
        lines.append(
            f"| {name} | {row.figure} {row.unit} | {row.here:,.6g} | {row.other:,.6g} | {row.ratio:.2f}{mark} |"
        )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--only", default=BARS, metavar="A,C", help=f"tests (default {BARS})")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--full", action="store_true", help="full sizes instead of the quick ones")
    given = parser.parse_args(argv)
    other = given.other.resolve()
    found: dict[Path, list[dict[tuple[str, str, str], float]]] = {HERE: [], other: []}
    for number in range(given.rounds):
        for checkout in (HERE, other) if number % 2 == 0 else (other, HERE):
            say(f"round {number + 1}/{given.rounds}: {checkout}")
            found[checkout].append(run_round(checkout, given.only, given.full))
    sys.stdout.write(render(ratios(found[HERE], found[other])) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
