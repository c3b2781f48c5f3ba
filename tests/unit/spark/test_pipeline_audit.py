"""What loss-audit and fsck do with what they see, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from topicd.cli.offline.check import SegmentJob
from topicd.client.core.answers import TopicState
from topicd.model import TopicConfig
from topicd.spark.pipelines import fsck, loss_audit
from topicd.spark.pipelines.loss_audit import Bad, Seen, tiles_of
from topicd.spark.pipelines.report import Report


def state(*, head: int, count: int, floor: int = 1, earliest: int = 1) -> TopicState:
    return TopicState(
        "orders", 7, head, earliest, head + 1, floor, count, 0, None, None, 0.0, TopicConfig(), head, 0, []
    )


def accounted(before: TopicState, after: TopicState, *seen: Seen) -> dict[str, Any]:
    report = Report("loss-audit", loss_audit.COLUMNS)
    loss_audit._account(report, before, after, list(seen))
    return {**report.rows[0], "notes": report.notes}


def test_a_topic_is_asked_for_above_its_floor_and_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_audit, "TILE", 10)
    assert [(tile.after, tile.up_to) for tile in tiles_of(state(head=25, count=20, floor=6))] == [
        (5, 15),
        (15, 25),
    ]
    assert tiles_of(state(head=0, count=0)) == []


@pytest.mark.parametrize(
    ("before", "after", "live", "damaged", "wanted"),
    [
        ((100, 100), (100, 100), 100, [], {"deleted": 0, "lost": 0}),
        ((100, 60), (100, 60), 60, [], {"deleted": 40, "lost": 0}),
        # The daemon counts five that it does not serve.
        ((100, 60), (100, 60), 55, [], {"deleted": 40, "lost": 5}),
        ((100, 60), (100, 60), 50, [Bad(11, 20, "rot")], {"deleted": 40, "lost": 10}),
        # Stored and deleted while it was read.
        ((100, 100), (150, 150), 100, [], {"deleted": 0, "lost": 0}),
        ((100, 100), (150, 130), 85, [], {"deleted": 15, "lost": 0}),
    ],
)
def test_what_is_missing_is_deleted_or_lost(
    before: tuple[int, int], after: tuple[int, int], live: int, damaged: list[Bad], wanted: dict[str, int]
) -> None:
    seen = Seen("orders", live, damaged, [], [(1, 5)])
    states = [state(head=head, count=count) for head, count in (before, after)]
    found = accounted(*states, seen)
    assert {key: found[key] for key in wanted} == wanted
    assert bool(found["notes"]) == bool(wanted["lost"])


def test_a_segment_that_goes_away_while_it_is_checked_is_no_traceback(tmp_path: Path) -> None:
    job = SegmentJob(tmp_path / "0000000000000001", 1, frozenset({"data", "tags"}), None)
    report = fsck.check_one(job)
    assert report.damaged
    assert "went away" in report.findings[0].what
