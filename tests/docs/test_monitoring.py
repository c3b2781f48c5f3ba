"""The dashboard, the alert rules and the metrics page name metrics that exist, with labels they have."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.promtext import Exposition
from topicd import metrics

DOCS = Path(__file__).resolve().parents[2] / "docs"
DASHBOARD = DOCS / "grafana" / "topicd.json"
RULES = DOCS / "alerts" / "topicd.rules.yml"
PAGE = DOCS / "metrics.md"

KINDS = {f"topicd_{metric.name}": metric.kind for metric in metrics.METRICS}
_NAME = re.compile(r"\btopicd_[a-z0-9_]+")
_RATED = re.compile(r"\b(rate|increase|deriv)\((topicd_[a-z0-9_]+)")
_BY = re.compile(r"\bby \(([a-z, ]+)\)")


def series_names() -> set[str]:
    """Everything a page may have at the beginning of a line."""
    found = set()
    for name, kind in KINDS.items():
        found |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    return found


def expressions(node: Any) -> Iterator[str]:
    """Every `expr` and variable query of the dashboard."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("expr", "query") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)
    elif isinstance(node, list):
        for value in node:
            yield from expressions(value)


def rules() -> list[tuple[str, str]]:
    """(name, expression); the file is plain enough to be read by lines."""
    text = RULES.read_text()
    names = re.findall(r"- alert: (\w+)", text)
    found = re.findall(r"^ +expr: (.+)$", text, re.MULTILINE)
    assert len(names) == len(found) == len(set(names))
    return list(zip(names, found, strict=True))


def all_expressions() -> list[str]:
    return [*expressions(json.loads(DASHBOARD.read_text())), *(expression for _, expression in rules())]


def test_every_metric_that_is_asked_for_exists() -> None:
    asked = {name for expression in all_expressions() for name in _NAME.findall(expression)}
    assert len(asked) > 30
    assert asked <= series_names()


def test_counters_are_rated_and_gauges_are_not() -> None:
    for expression in all_expressions():
        for function, name in _RATED.findall(expression):
            kind = "gauge" if function == "deriv" else "counter"
            assert name.endswith("_bucket") or KINDS[name] == kind, expression


def test_labels_that_are_grouped_by_exist() -> None:
    found = Exposition(metrics.render(STATUS))
    known = {label for _, labels in found.samples for label, _ in labels}
    assert known == {"run", "process", "shard", "wal", "dlv", "topic", "le", "step", "consumer"}
    for expression in all_expressions():
        for group in _BY.findall(expression):
            assert {label.strip() for label in group.split(",")} <= known, expression


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in cells) < 24
        assert not cells & taken, panel["title"]
        taken |= cells


@pytest.mark.parametrize("metric", metrics.METRICS, ids=lambda metric: metric.name)
def test_the_page_has_every_metric(metric: metrics.Metric) -> None:
    assert re.search(rf"^\| `topicd_{metric.name}` \| {metric.kind} \|.*\| {re.escape(metric.help)} \|$", TEXT, re.M)


def test_the_page_names_nothing_else_and_explains_every_alert() -> None:
    assert set(_NAME.findall(TEXT)) <= series_names() | set(KINDS)
    assert re.findall(r"^\| `(Topicd\w+)` \|", TEXT, re.M) == [name for name, _ in rules()]


TEXT = PAGE.read_text()
STATUS = {
    "state": "serving",
    "pressure": {"value": 0.5, "steps": [{"name": "gather", "active": True, "times": 1}]},
    "processes": [
        {"name": "wal-00", "stats": {"ring_used": [1], "sync_histogram": [1] * 13}},
        {"name": "dlv-00", "stats": {"top_topics": [["a", 1, 1, 1, 1, 1]], "top_consumers": [["a", "c", 1, 1]]}},
    ],
}
