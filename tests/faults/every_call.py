"""The command line of a sweep that plays one world again and again, each time with one kind of fault at one call.

--every N      every Nth call only
--share I/N    every Nth of the cases, beginning with the Ith: shares are run side by side or one after the other
--kinds A,B    only these kinds of faults
--first        end with the first problem
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping

from tests.support.collecting import give_back

_GIVE_BACK = 25  # cases


def sweep(doc: str | None, calls_of: Callable[[], Mapping[str, int]], run_case: Callable[[str, int], list[str]]) -> int:
    """calls_of: for each kind of fault, how many calls there are. The exit code."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="every Nth call only")
    parser.add_argument("--share", default="0/1", help="I/N: every Nth of the cases, beginning with the Ith")
    parser.add_argument("--kinds", default=None, help="only these, with commas between them")
    parser.add_argument("--first", action="store_true", help="end with the first problem")
    given = parser.parse_args()
    calls = calls_of()
    kinds = list(calls) if given.kinds is None else given.kinds.split(",")
    if unknown := [kind for kind in kinds if kind not in calls]:
        raise SystemExit(f"no kind {', '.join(unknown)}; there are: {', '.join(calls)}")
    share, shares = map(int, given.share.split("/"))
    last = max(calls[kind] for kind in kinds)
    cases = [(kind, call) for call in range(1, last + 1, given.every) for kind in kinds if call <= calls[kind]]
    cases = cases[share::shares]
    began, found, number = time.monotonic(), 0, 0
    for number, (kind, call) in enumerate(cases, 1):
        lines = run_case(kind, call)
        for line in lines:
            print(line, flush=True)
        found += len(lines)
        if lines and given.first:
            break
        if number % _GIVE_BACK == 0:
            give_back()
    print(f"{number} cases over {last} calls in {time.monotonic() - began:.0f} s, {found} problems")
    return 1 if found else 0
