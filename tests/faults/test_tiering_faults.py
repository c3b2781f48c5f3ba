"""A small part of the sweep over segments that move while their shard serves; `make tier-faults` is all of it."""

from __future__ import annotations

from random import Random

import pytest

from tests.faults import tiering
from tests.faults.tiering import KINDS


@pytest.mark.fault("TIR-09")
def test_history_is_whole_wherever_a_move_is_interrupted() -> None:
    calls, chance = tiering.calls_of(), Random(25)
    found = []
    for number in range(12):
        found += tiering.run_case(KINDS[number % len(KINDS)], chance.randint(1, calls))
    assert not found, "\n".join(found)
