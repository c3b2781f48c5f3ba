"""One bit of every byte of every file, one after the other: what is served is right, or reported, or refused with the
reason; fsck agrees with the start, and repair takes nothing away. `make flips`.

    python -m tests.corrupt.flips                       every byte: an hour on one core
    python -m tests.corrupt.flips --each 20 --seed 7    so many of each kind of file
    python -m tests.corrupt.flips --share 0/4           the first of four shares, to be run side by side
    python -m tests.corrupt.flips --small               every byte of small files, none of the log and of records, in a
                                                        directory with fewer of each: some ten minutes on one core
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.corrupt.rounds import Starts, examine
from tests.corrupt.world import Truth, build
from topicd.shards.storage import snapshot

PART_BYTES = 900  # of a snapshot: several parts
WORLDS = (None, PART_BYTES)
LARGE = (".data", ".log")
MEMORY = Path("/dev/shm")  # no promise of a flip has to do with power: a disk in memory does


class Flip(NamedTuple):
    path: Path  # below the root
    at: int
    bit: int

    def __str__(self) -> str:
        return f"bit {self.bit} of byte {self.at} of {self.path}"

    def do(self, root: Path) -> None:
        path = root / self.path
        raw = bytearray(path.read_bytes())
        raw[self.at] ^= 1 << self.bit
        path.write_bytes(raw)

    @property
    def kind(self) -> tuple[str, ...]:
        """Files of which one is as good as another."""
        return self.path.parts[0], self.path.suffix, "part" if ".part-" in self.path.name else ""


def every(root: Path, but: Path | None = None) -> Iterator[Flip]:
    """Zeros at the end of a log are room for more and not looked at. Which bit depends on the place. but: another
    directory, whose files are not looked at again."""
    for path in sorted(file for file in root.rglob("*") if file.is_file() and file.name != "LOCK"):
        raw = path.read_bytes()
        known = but and but / path.relative_to(root)
        if known and known.is_file() and known.read_bytes() == raw:
            continue
        for at in range(len(raw.rstrip(b"\0") if path.suffix == ".log" else raw)):
            yield Flip(path.relative_to(root), at, (at * 5 + 3) % 8)


def some(root: Path, each: int, chosen: random.Random) -> list[Flip]:
    """So many of each kind of file, whichever."""
    kinds: dict[tuple[str, ...], list[Flip]] = {}
    for flip in every(root):
        kinds.setdefault(flip.kind, []).append(flip)
    return [
        flip._replace(bit=chosen.randrange(8))
        for _, flips in sorted(kinds.items())
        for flip in chosen.sample(flips, min(each, len(flips)))
    ]


def broken(template: Path, work: Path, truth: Truth, flips: list[Flip]) -> dict[str, list[str]]:
    """What was not as promised, by flip."""
    starts = Starts()
    found = {str(flip): examine(template, work, truth, flip.do, starts) for flip in flips}
    return {flip: problems for flip, problems in found.items() if problems}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corrupt.flips")
    parser.add_argument("--each", type=int, default=None, help="so many of each kind of file; default: every byte")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="fewer files, and not the bytes of the log and of records")
    parser.add_argument("--share", default="0/1", help="I/N: every Nth of them, beginning with the Ith")
    args = parser.parse_args()
    share, shares = map(int, args.share.split("/"))
    memory = MEMORY if os.access(MEMORY, os.W_OK) else None
    began, done, bad = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory(prefix="topicd-flips-", dir=memory) as place:
        for number, part_bytes in enumerate(WORLDS):
            template = Path(place) / f"template-{number}"
            truth = build(template, part_bytes or snapshot.PART_BYTES, small=args.small)
            # What the second world has besides are its snapshots.
            all_of_it = every(template, Path(place) / "template-0" if number else None)
            flips = list(all_of_it) if args.each is None else some(template, args.each, random.Random(args.seed))
            flips = [flip for flip in flips if not (args.small and flip.path.suffix in LARGE)][share::shares]
            kinds = sorted({"/".join(filter(None, flip.kind)) for flip in flips})
            print(f"{len(flips)} bytes of {len({flip.path for flip in flips})} files: {' '.join(kinds)}", flush=True)
            starts = Starts()
            for flip in flips:
                problems = examine(template, Path(place), truth, flip.do, starts)
                done += 1
                bad += bool(problems)
                for line in problems:
                    print(f"{flip}: {line}", flush=True)
    print(f"{done} flips: {bad} broke a promise; {time.monotonic() - began:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
