"""A seeded part of all the ways in which the work of a router can be interrupted. All of them: `make router-faults`."""

from __future__ import annotations

import pytest

from tests.faults.router_sweep import SCENES, RouterScene, run_scene

CASES = 25


@pytest.mark.fault("RTR-01", "RTR-02")
@pytest.mark.parametrize("scene", SCENES, ids=[scene.name for scene in SCENES])
def test_a_destination_is_what_its_source_says_wherever_it_ends(scene: RouterScene) -> None:
    assert run_scene(scene, CASES) == {}
