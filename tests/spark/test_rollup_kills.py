"""A streaming rollup, killed at every step and run again: each window is written once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.spark.rollup_kills import Storm, storm
from tests.spark.rollup_victim import POINTS
from tests.support.daemon import wait_until
from topicd.client.blocking.client import Client
from topicd.spark.pipelines.session import LazySpark

pytestmark = pytest.mark.timeout(180)
AIMED = [
    *[(kind, f"{when}-{name}", 1) for kind, names in POINTS.items() for name in names for when in ("before", "after")],
    ("directory", "before-renamed", 2),
    ("topic", "after-manifest", 2),
]


@pytest.mark.parametrize(("kind", "point", "passing"), AIMED, ids=str)
def test_a_rollup_that_was_killed_ends_like_any_other(
    client: Client, socket: str, topic: str, tmp_path: Path, kind: str, point: str, passing: int
) -> None:
    """Killed in its first step and in a later one; the numbers are counted without Spark."""
    one = Storm(client, socket, tmp_path, topic, kind)
    for _ in range(2):
        one.fill()
        assert one.kill(point, passing, "inline")
        one.fill()  # what the next run finds is not what the one that died has planned
        assert not one.kill("never", 1, "inline")
        one.check()


def test_real_rollups_that_were_killed_with_their_jvm_end_like_any_other(
    spark: Any, client: Client, socket: str, tmp_path: Path
) -> None:
    assert storm(client, socket, tmp_path, LazySpark(session=spark), rounds=4, seed=5) >= 3


def test_a_step_that_was_decided_is_done_whatever_has_become_of_its_records(
    client: Client, socket: str, topic: str, tmp_path: Path
) -> None:
    one = Storm(client, socket, tmp_path, topic, "topic")
    one.fill()
    assert not one.kill("never", 1, "inline")
    one.fill()
    wanted = one.wanted()
    assert one.kill("after-decided", 1, "inline")
    for name in one.topics:
        client.configure(name, cap_records=1)
        head = client.state(name).head_seq
        wait_until(lambda: client.state(name).evict_floor == head, "the cap to be applied")  # noqa: B023
    assert not one.kill("never", 1)  # with Spark: it would say that the records are gone
    assert one.written() == wanted
