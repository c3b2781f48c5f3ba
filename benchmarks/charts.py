"""One picture for each case: medians as bars, the extremes of the rounds as whiskers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.model import CHANNEL, DISK, OURS, Case, Figure, Results

COLOURS = {
    OURS: "#c0392b",
    CHANNEL: "#c0392b",
    "redis": "#7f8c8d",
    "nats": "#34495e",
    "sqlite": "#95a5a6",
    DISK: "#dfe6e9",
}
WIDTH_IN = 9.0
ROW_IN = 0.34


def draw(cases: Sequence[Case], results: Results, folder: Path) -> list[Path]:
    """Write `<case>.png` into the folder; the paths written."""
    import matplotlib as mpl

    mpl.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    return [path for case in cases if (path := _draw(case, results, folder / f"{case.id}.png"))]


def _draw(case: Case, results: Results, path: Path) -> Path | None:
    from matplotlib import pyplot as plt

    keys = list(results.keys(case.id))
    figures = [f for f in case.figures if any(results.spread(key, f.name) for key in keys)]
    if not figures:
        return None
    height = 1.2 + ROW_IN * len(keys) * len(figures)
    image, axes = plt.subplots(len(figures), 1, figsize=(WIDTH_IN, height), squeeze=False)
    for (axis,), figure in zip(axes, figures, strict=True):
        _bars(axis, case, figure, results)
    image.suptitle(case.title, fontsize=11)
    image.tight_layout()
    image.savefig(path, dpi=120)
    plt.close(image)
    return path


def _bars(axis: object, case: Case, figure: Figure, results: Results) -> None:
    rows = [(key, s) for key in results.keys(case.id) if (s := results.spread(key, figure.name))]
    labels = [f"{key.peer} {key.variant}".strip() for key, _ in rows]
    medians = [s.median for _, s in rows]
    whiskers = [[s.median - s.low for _, s in rows], [s.high - s.median for _, s in rows]]
    colours = [COLOURS.get(key.peer, "#bdc3c7") for key, _ in rows]
    axis.barh(labels, medians, xerr=whiskers, color=colours, ecolor="#2d3436", capsize=2)  # type: ignore[attr-defined]
    axis.invert_yaxis()  # type: ignore[attr-defined]
    better = "more is better" if figure.higher_is_better else "less is better"
    axis.set_xlabel(f"{figure.head} ({better})", fontsize=8)  # type: ignore[attr-defined]
    axis.tick_params(labelsize=8)  # type: ignore[attr-defined]
