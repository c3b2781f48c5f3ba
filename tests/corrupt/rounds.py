"""One round: damage a copy of the directory, and hold the start, fsck and repair to what they promise."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.corrupt.damage import copy, damage
from tests.corrupt.world import FINAL_RUN, Outcome, Truth, check, mend, start
from topicd.cli.offline.check import Checked


def play(template: Path, work: Path, truth: Truth, random: Random) -> tuple[list[str], list[str]]:
    """(what was done, what is wrong)"""
    done: list[str] = []
    problems = examine(template, work, truth, lambda damaged: done.extend(damage(damaged, random)))
    return done, problems


REPLACEABLE = (".idx", ".tags", ".del", "topic.bin")


class Starts:
    """Starts of which only the outcome matters: the bytes of the directory and the number of the run decide it, so that
    none is made twice. Most flips of a file that is built anew leave one and the same directory behind."""

    MOST = 4_096

    def __init__(self) -> None:
        self._known: dict[tuple[str, int], Outcome] = {}
        self.saved = 0

    def note(self, state: str, run: int, outcome: Outcome) -> None:
        if len(self._known) < self.MOST:
            self._known[state, run] = outcome

    def outcome(self, root: Path, next_id: int, run: int = FINAL_RUN) -> Outcome:
        state = fingerprint(root)
        known = self._known.get((state, run))
        if known is not None:
            self.saved += 1
            return known
        found = start(root, next_id, run)
        self.note(state, run, found)
        return found


def fingerprint(root: Path) -> str:
    """Of all names and bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for place, folders, names in os.walk(root):
        folders.sort()
        digest.update(f"{os.path.relpath(place, root)}\0{folders}\0".encode())
        for name in sorted(names):
            path = os.path.join(place, name)
            if not stat.S_ISREG(os.lstat(path).st_mode):
                digest.update(f"{name}\0{os.readlink(path) if os.path.islink(path) else 'special'}\0".encode())
                continue
            with open(path, "rb", buffering=0) as file:
                raw = file.readall()
            digest.update(f"{name}\0{len(raw)}\0".encode())
            digest.update(raw)
    return digest.hexdigest()


def examine(
    template: Path, work: Path, truth: Truth, harm: Callable[[Path], None], starts: Starts | None = None
) -> list[str]:
    """What is wrong with the ways in which start, fsck and repair deal with it. starts: of earlier examinations of the
    same directory."""
    starts = starts or Starts()
    damaged = copy(template, work / "damaged")
    harm(damaged)
    before = fingerprint(damaged)
    checked = check(damaged)
    problems = [] if fingerprint(damaged) == before else ["fsck without repair changed the directory"]
    outcome = start(copy(damaged, work / "started"), truth.next_id)
    starts.note(before, FINAL_RUN, outcome)
    problems += [*judge(truth, outcome), *compare(checked, outcome, truth)]
    problems += beyond(truth, outcome, touched(template, damaged))
    if not isinstance(checked, str):
        mend(damaged, checked)
    after = starts.outcome(damaged, truth.next_id)
    problems += [f"after repair: {line}" for line in judge(truth, after)]
    if not outcome.refused:
        less = sorted(outcome.served() - after.served())
        if less:
            problems.append(f"repair took away {less[:5]}… ({len(less)}); {after.refused or after.damage[:3]}")
    if not outcome.refused and not outcome.broken:
        again = starts.outcome(work / "started", truth.next_id, FINAL_RUN + 1)
        problems += [f"second start: {line}" for line in judge(truth, again, known=outcome)]
    return problems


def judge(truth: Truth, outcome: Outcome, known: Outcome | None = None) -> list[str]:
    """Right bytes, or reported. known: the start before, whose reports count too."""
    if outcome.broken:
        return [f"the start broke: {outcome.broken}"]
    if outcome.refused:
        return [] if known is None else [f"refused only now: {outcome.refused}"]
    problems = []
    reports = [*outcome.damage, *(known.damage if known else [])]
    for name, expected in truth.records.items():
        found = outcome.records.get(name, {})
        wrong = [seq for seq, data in found.items() if seq in expected and data != expected[seq]]
        if wrong:
            problems.append(f"{name}: wrong bytes at {wrong[:5]}")
        # A delete that was in the log only goes with the log; one that a snapshot held, with all of them.
        excused = any("WAL" in line or "/wal/" in line or "adopted" in line for line in reports)
        back = sorted(seq for seq in found if seq in truth.deleted[name])
        if back and not excused:
            problems.append(f"{name}: deleted records {back[:5]}… ({len(back)}) are back")
        strange = sorted(seq for seq in found if seq not in expected and seq not in truth.deleted[name])
        if strange:
            problems.append(f"{name}: records {strange[:5]} were never written")
        missing = {seq for seq in expected if seq not in found}
        for first, last in outcome.unreadable.get(name, []):
            missing -= set(range(first, last + 1))
        if missing and not reports:
            problems.append(f"{name}: {sorted(missing)[:5]}… ({len(missing)}) missing without a word")
    return problems


def touched(template: Path, damaged: Path) -> set[str]:
    """Files of which there are more, fewer or others than before."""
    before, after = (
        {path.relative_to(root).as_posix(): path for path in root.rglob("*") if not stat.S_ISDIR(path.lstat().st_mode)}
        for root in (template, damaged)
    )
    same = {
        name
        for name in before.keys() & after.keys()
        if stat.S_ISREG(after[name].lstat().st_mode) and before[name].read_bytes() == after[name].read_bytes()
    }
    return (before.keys() | after.keys()) - same


def beyond(truth: Truth, outcome: Outcome, files: set[str]) -> list[str]:
    """A report excuses no more than what the damage can reach: other topics have everything, and so has every topic
    where only files were hurt that others can replace."""
    if outcome.broken or not files:
        return []
    places = {name.split("/")[0] for name in files}
    snapshots = {name.partition(".")[0] for name in files}
    if places == {"topics"}:
        hurt = {truth.directories.get(name.split("/")[1], "") for name in files}
        replaceable = all(name.endswith(REPLACEABLE) for name in files)
    elif places == {"meta"} and len(snapshots) == 1 and "snapshot" in snapshots.pop():
        hurt, replaceable = set(), True
    else:
        return []
    if outcome.refused:
        return [f"refused for {sorted(files)}: {outcome.refused}"]
    problems = []
    for name, expected in truth.records.items():
        missing = sorted(expected.keys() - outcome.records.get(name, {}).keys())
        back = sorted(outcome.records.get(name, {}).keys() & truth.deleted[name])
        if missing and (replaceable or name not in hurt):
            problems.append(f"{name}: {missing[:5]}… ({len(missing)}) missing, out of reach of {sorted(files)}")
        if back:
            problems.append(
                f"{name}: deleted records {back[:5]}… ({len(back)}) are back, out of reach of {sorted(files)}"
            )
    return problems


def compare(checked: Checked | str, outcome: Outcome, truth: Truth) -> list[str]:
    """fsck agrees with the start."""
    if isinstance(checked, str):
        return [] if outcome.refused else [f"fsck refuses ({checked}), the start does not"]
    if checked.damaged:
        return []
    missing = [
        name
        for name, expected in truth.records.items()
        if set(expected) - set(outcome.records.get(name, {})) and not outcome.refused
    ]
    if outcome.refused:
        return [f"fsck finds no damage, the start refuses: {outcome.refused}"]
    if outcome.damage or missing:
        return [f"fsck finds no damage, the start: {outcome.damage[:3]} {missing}"]
    return []
