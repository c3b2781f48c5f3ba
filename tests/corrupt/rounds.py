"""One round: damage a copy of the directory, and hold the start, fsck and repair to what they promise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

from tests.corrupt.damage import copy, damage
from tests.corrupt.world import FINAL_RUN, Outcome, Truth, check, start
from topicd.cli.offline.check import Checked


def play(template: Path, work: Path, truth: Truth, random: Random) -> tuple[list[str], list[str]]:
    """(what was done, what is wrong)"""
    done: list[str] = []
    problems = examine(template, work, truth, lambda damaged: done.extend(damage(damaged, random)))
    return done, problems


def examine(template: Path, work: Path, truth: Truth, harm: Callable[[Path], None]) -> list[str]:
    """What is wrong with the ways in which start, fsck and repair deal with it."""
    damaged = copy(template, work / "damaged")
    harm(damaged)
    checked = check(damaged)
    outcome = start(copy(damaged, work / "started"), truth.next_id)
    problems = [*judge(truth, outcome), *compare(checked, outcome, truth)]
    mended = copy(damaged, work / "mended")
    check(mended, mend=True)
    after = start(mended, truth.next_id)
    problems += [f"after repair: {line}" for line in judge(truth, after)]
    if not outcome.refused:
        less = sorted(outcome.served() - after.served())
        if less:
            problems.append(f"repair took away {less[:5]}… ({len(less)}); {after.refused or after.damage[:3]}")
    again = start(work / "started", truth.next_id, FINAL_RUN + 1)
    if not outcome.refused and not outcome.broken:
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
