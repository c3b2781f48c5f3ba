"""What every process of the daemon sets up before it does anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import cast

import pytest

from topicd import child
from topicd.child import Process


@pytest.fixture
def switch_interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)


def test_a_thread_that_computes_gives_way_soon_to_the_one_that_answers(switch_interval: float) -> None:
    seen: list[float] = []
    child.run(cast(Process, None), lambda process: seen.append(sys.getswitchinterval()))
    assert seen[0] <= switch_interval / 10
