"""A small part of the sweep over compaction; `make compaction-faults` is all of it."""

from __future__ import annotations

from random import Random

import pytest

from tests.faults import compaction
from tests.faults.compaction import KINDS


@pytest.mark.fault("CMP-01")
def test_the_newest_record_of_each_tag_survives_whatever_happens() -> None:
    calls, chance = compaction.calls_of(), Random(25)
    found = []
    for number in range(12):
        found += compaction.run_case(KINDS[number % len(KINDS)], chance.randint(1, calls))
    assert not found, "\n".join(found)
