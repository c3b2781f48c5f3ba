"""Long work in short pieces: all of it is done, in order, and others have their turn."""

from __future__ import annotations

import asyncio
import time

import pytest

from topicd.shards.delivery import slices
from topicd.shards.delivery.slices import in_slices, spread


@pytest.fixture(autouse=True)
def true_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.004)


def test_short_work_is_done_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 60.0)
    done: list[int] = []
    assert list(in_slices(range(10), done.append)) == []
    assert done == list(range(10))


def test_long_work_yields_when_a_slice_is_used_up() -> None:
    done: list[int] = []

    def slow(number: int) -> None:
        time.sleep(slices.SLICE_S * 1.5)
        done.append(number)

    seen = [list(done) for _ in in_slices(range(3), slow)]
    assert seen == [[0], [0, 1], [0, 1, 2]]


def test_others_have_their_turn_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    order: list[str] = []

    async def scene() -> None:
        async def other() -> None:
            for _ in range(3):
                order.append("other")
                await asyncio.sleep(0)

        beside = asyncio.ensure_future(other())
        await spread(in_slices(range(3), lambda number: order.append("work")))
        await beside

    asyncio.run(scene())
    assert order.index("other") < len(order) - 1 - order[::-1].index("work")
    assert order.count("work") == order.count("other") == 3
