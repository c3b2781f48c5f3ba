"""What every shard sets up before it does anything."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from topicd import child
from topicd.shards.process import runtime


@pytest.fixture
def switch_interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)


def test_a_thread_that_computes_gives_way_soon_to_the_one_that_answers(
    monkeypatch: pytest.MonkeyPatch, switch_interval: float
) -> None:
    seen: list[float] = []
    monkeypatch.setattr(runtime, "boot", lambda make_clock: None)
    monkeypatch.setattr(child, "run", lambda process, main: seen.append(sys.getswitchinterval()))
    runtime.run(lambda shard: None)
    assert seen[0] <= switch_interval / 10
