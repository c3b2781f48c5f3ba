"""A queue against a model of one, over random histories with expiry, delays, priorities, groups, limits, unique keys,
dead letters, changes of configuration, checkpoints, snapshots and kills. `python -m tests.model.queues`: longer ones.
"""

from __future__ import annotations

import os

import pytest

from tests.model.queue_machine import run_histories

EXAMPLES = int(os.environ.get("TOPICD_MODEL_EXAMPLES", "12"))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_queue_agrees_with_the_model() -> None:
    assert run_histories(EXAMPLES, 40, 20_251) > EXAMPLES
