"""The report in Markdown: machine, settings, one table for each case, and the bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.bars import Judgement, Source
from benchmarks.model import CHANNEL, HTTP, OURS, Case, Key, Results
from benchmarks.report import Run
from topicd.bench.stats import Spread

NONE = "-"


def render(run: Run) -> str:
    parts = ["# Benchmarks", "", *_facts(run.machine), "", *_peers(run.peers, run.skipped), ""]
    if run.quick:
        parts += ["Quick run: small sizes and short rounds; the bars are an indication only.", ""]
    for case in run.cases:
        parts += [f"## {case.title}", "", *case_table(case, run.results), ""]
    if run.judgements:
        parts += ["## Bars", "", *bar_table(run.judgements), ""]
    return "\n".join(parts)


def case_table(case: Case, results: Results) -> list[str]:
    """Medians with spread; the last column is about our variant of the same name, or else our best."""
    rows = [_case_row(case, key, results) for key in results.keys(case.id)]
    rows += [
        [key.peer, key.variant, *([NONE] * len(case.figures)), "", f"failed: {reason}"]
        for key, reason in results.failures.items()
        if key.case == case.id
    ]
    if not rows:
        return ["Nothing measured."]
    return table(["who", "how", *(figure.head for figure in case.figures), "spread", "ours is better by"], rows)


def _case_row(case: Case, key: Key, results: Results) -> list[str]:
    spreads = [results.spread(key, figure.name) for figure in case.figures]
    values = [number(s.median) if s else NONE for s in spreads]
    shown = next((s for s in spreads if s), None)
    around = f"±{shown.percent:.0f} %" if shown and shown.rounds > 1 else ""
    return [key.peer, key.variant, *values, around, _better(case, key, spreads[0], results)]


def _better(case: Case, key: Key, theirs: Spread | None, results: Results) -> str:
    figure = case.headline
    us = case.test if case.test in (CHANNEL, HTTP) else OURS
    same = results.spread(Key(case.id, us, key.variant), figure.name)
    best = results.best(case.id, us, figure.name, higher=figure.higher_is_better)
    ours = same or (best[1] if best else None)
    if theirs is None or ours is None or key.peer == us or not theirs.median or not ours.median:
        return ""
    ratio = ours.median / theirs.median
    return f"{ratio if figure.higher_is_better else 1 / ratio:.2f} x"


def bar_table(judgements: Sequence[Judgement]) -> list[str]:
    rows = []
    for found in judgements:
        bar = found.bar
        sign = "≥" if bar.at_least else "≤"
        if isinstance(bar.against, Source):
            wanted = f"{sign} {bar.factor:g} x" + (f" (stretch {bar.stretch:g})" if bar.stretch else "")
            ratio = f"{found.ratio:.2f} x" if found.ratio is not None else NONE
        else:
            wanted, ratio = f"{sign} {bar.against * bar.factor:g}", ""
        verdict = found.verdict.value + (f": {found.note}" if found.note else "")
        rows.append([bar.test, bar.text, number(found.ours), number(found.reference), ratio, wanted, verdict])
    return table(["test", "bar", "ours", "reference", "ratio", "wanted", "verdict"], rows)


def _facts(facts: Mapping[str, str]) -> list[str]:
    return table(["machine", ""], [[name, value] for name, value in facts.items()])


def _peers(peers: Mapping[str, Mapping[str, str]], skipped: Mapping[str, str]) -> list[str]:
    rows = [[name, f["version"], f["settings"], f.get("sync", "")] for name, f in peers.items()]
    lines = table(["peer", "version", "settings", "sync check of durable appends"], rows)
    return lines + ([""] if skipped else []) + [f"{reason}: skipped (make bench-deps)" for reason in skipped.values()]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in [heads, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def number(value: float | None) -> str:
    """Three significant digits, thousands apart."""
    if value is None:
        return NONE
    if abs(value) >= 1000:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value / 10**digits) * 10**digits:,}"
    return f"{value:.3g}"
