"""What a pipeline has done, for people and programs. Promise: the table and the JSON come from the same rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

# label, done, total (0: nobody knows); called from any thread
Progress = Callable[[str, int, int], None]


def no_progress(label: str, done: int, total: int) -> None:
    pass


@dataclass
class Report:
    """`columns` are the keys of each row, in the order of the table; `totals` stand beside the rows in the JSON."""

    pipeline: str
    columns: tuple[str, ...]
    rows: list[dict[str, Any]] = field(default_factory=list)
    totals: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # what a reader of the table has to know beside it
    summary: str = ""
    dry_run: bool = False
    failed: bool = False  # the pipeline ended well and found something bad: damage, losses

    def to_json(self) -> dict[str, Any]:
        body = {"pipeline": self.pipeline, "dry_run": self.dry_run, "failed": self.failed}
        return {**body, **self.totals, "rows": self.rows, "notes": self.notes}
