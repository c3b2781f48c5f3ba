"""The daemon against a model of a topic, over random histories with evictions, deletes, clock steps, checkpoints,
rewrites and restarts. `python -m tests.model` runs longer ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model.machine import machine_for, run_examples
from tests.model.world import World

EXAMPLES = int(os.environ.get("TOPICD_MODEL_EXAMPLES", "12"))
STEPS = 60


@pytest.fixture(params=[False, True], ids=["native", "pure"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path / "world", pure=request.param)
    try:
        found.open()
        yield found
    finally:
        found.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_daemon_agrees_with_the_model(world: World) -> None:
    run_examples(machine_for(world), EXAMPLES, STEPS, seed=20_240)
    assert world.steps > EXAMPLES
