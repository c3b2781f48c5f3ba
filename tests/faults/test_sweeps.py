"""A seeded part of `make faults`, and the order of durability calls in every scene."""

from __future__ import annotations

from random import Random

import pytest

from tests.faults.kills import KILLED_SCENES, kill_cases, run_kill
from tests.faults.story import SCENES, Scene
from tests.faults.sweep import in_order, run_case, sample

CASES = 60
KILLS = 30
ids = [scene.name for scene in SCENES]


@pytest.mark.fault("WAL-18", "CKP-01", "SNP-05", "REC-01")
@pytest.mark.parametrize("scene", SCENES, ids=ids)
def test_durability_calls_are_in_order(scene: Scene) -> None:
    assert in_order(scene) == []


@pytest.mark.fault(
    *("WAL-01", "WAL-02", "WAL-04", "WAL-05", "WAL-06", "WAL-07", "WAL-08", "WAL-10", "WAL-11", "WAL-12"),
    *("WAL-16", "WAL-17", "WAL-18", "ROT-01", "ROT-02", "ROT-03"),
    *("CKP-01", "CKP-02", "DIR-01", "SNP-01", "SNP-02", "DEL-01", "DEL-02"),
    *("EVI-01", "TOP-01", "REC-01", "REC-02", "REC-08", "DED-01", "VIS-01", "JOB-01"),
)
@pytest.mark.parametrize("scene", SCENES, ids=ids)
def test_every_promise_holds_wherever_the_disk_dies_or_fails(scene: Scene) -> None:
    broken = {str(case): found for case in sample(scene, Random(scene.name), CASES) if (found := run_case(case))}
    assert not broken


@pytest.mark.fault("PROC-10", "PROC-11", "DED-01", "JOB-02")
@pytest.mark.parametrize("name", KILLED_SCENES)
def test_every_promise_holds_wherever_one_shard_dies(name: str) -> None:
    scene = next(scene for scene in SCENES if scene.name == name)
    chosen = Random(name).sample(list(kill_cases([scene])), KILLS)
    broken = {str(kill): found for kill in chosen if (found := run_kill(kill))}
    assert not broken
