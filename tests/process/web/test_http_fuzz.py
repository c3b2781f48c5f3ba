"""Some hundred hostile requests; `make fuzz-http` plays a hundred thousand."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.process.web.fuzz import Broken, Player, Report, fuzz
from tests.process.web.hostile import STRATEGIES, Case

CASES = 600


def test_hostile_requests_harm_nobody(tmp_path: Path) -> None:
    report = fuzz(tmp_path, CASES, seed=11)
    assert report.cases == CASES
    assert report.healthy > 5, report
    assert set(STRATEGIES) == set(report.by_strategy)


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_kind_follows_from_its_seed(name: str) -> None:
    first, second = (STRATEGIES[name][0](random.Random(5)) for _ in range(2))
    assert first == second and first.data


@pytest.mark.parametrize(
    ("case", "received"),
    [
        (Case(b"x", answers=1), b"HTTP/1.1 500 Internal Server Error\r\n\r\n"),
        (Case(b"x", answers=1), b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
        (Case(b"x"), b"something else"),
    ],
)
def test_the_harness_notices_what_must_not_come_back(case: Case, received: bytes) -> None:
    with pytest.raises(Broken):
        Player(0, Report())._judge(case, received)
