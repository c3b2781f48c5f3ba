"""A whole run, and the same as JSON: everything that the Markdown says, and every single round."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.bars import Judgement
from benchmarks.model import Case, Results

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Run:
    """All there is to tell about a run."""

    machine: Mapping[str, str]
    peers: Mapping[str, Mapping[str, str]]  # version, settings and sync check of each
    skipped: Mapping[str, str]
    cases: Sequence[Case]
    results: Results
    judgements: Sequence[Judgement]
    quick: bool


def as_document(run: Run) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "quick": run.quick,
        "machine": dict(run.machine),
        "peers": {name: dict(found) for name, found in run.peers.items()},
        "skipped": dict(run.skipped),
        "cases": [_case(case, run.results, run.quick) for case in run.cases],
        "bars": [_bar(found) for found in run.judgements],
    }


def write(document: Mapping[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def _case(case: Case, results: Results, quick: bool) -> dict[str, Any]:
    rows = []
    for key in results.keys(case.id):
        names = {name for figures in results.rounds[key] for name in figures}
        spreads = {name: s for name in sorted(names) if (s := results.spread(key, name))}
        rows.append(
            {
                "peer": key.peer,
                "variant": key.variant,
                "figures": {name: {"median": s.median, "low": s.low, "high": s.high} for name, s in spreads.items()},
                "rounds": results.rounds[key],
            }
        )
    return {
        "id": case.id,
        "title": case.title,
        "load": asdict(case.load(quick)),
        "units": {figure.name: figure.unit for figure in case.figures},
        "results": rows,
        "failures": {f"{k.peer} {k.variant}".strip(): why for k, why in results.failures.items() if k.case == case.id},
    }


def _bar(found: Judgement) -> dict[str, Any]:
    return {
        "test": found.bar.test,
        "text": found.bar.text,
        "ours": found.ours,
        "reference": found.reference,
        "ratio": found.ratio,
        "factor": found.bar.factor,
        "at_least": found.bar.at_least,
        "verdict": found.verdict.value,
        "note": found.note,
    }
