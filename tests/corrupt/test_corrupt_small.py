"""A small seeded part of `make corrupt` and `make flips`."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.corrupt.flips import PART_BYTES, broken, some
from tests.corrupt.rounds import play
from tests.corrupt.world import build, check, start

ROUNDS = 15


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.fault("ROTT-10")
@pytest.mark.timeout(300)
def test_random_damage_is_right_bytes_or_reported(tmp_path: Path) -> None:
    template = tmp_path / "template"
    truth = build(template)
    broken = {}
    for number in range(ROUNDS):
        done, problems = play(template, tmp_path, truth, Random(f"ci/{number}"))
        if problems:
            broken["; ".join(done)] = problems
    assert not broken


@pytest.mark.fault("ROTT-11")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part_bytes", [PART_BYTES, None])
def test_a_flipped_bit_in_any_kind_of_file_is_right_bytes_or_reported(tmp_path: Path, part_bytes: int | None) -> None:
    template = tmp_path / "template"
    truth = build(template, part_bytes) if part_bytes else build(template)
    flips = some(template, 3, Random("ci"))
    kinds = {flip.kind for flip in flips}
    wanted = {("FORMAT", "", ""), ("meta", ".bin", ""), ("topics", ".bin", ""), ("wal", ".log", "")}
    wanted |= {("topics", f".{part}", "") for part in ("data", "idx", "tags", "del")}
    assert kinds >= wanted | ({("meta", ".bin", "part")} if part_bytes else set())
    assert broken(template, tmp_path, truth, flips) == {}


def test_undamaged_directory_is_served_whole_and_called_undamaged(tmp_path: Path) -> None:
    truth = build(tmp_path / "data")
    found = check(tmp_path / "data")
    assert not isinstance(found, str) and found.findings == []
    outcome = start(tmp_path / "data", truth.next_id)
    assert (outcome.refused, outcome.broken, outcome.damage) == ("", "", [])
    assert {name: outcome.records[name] for name in truth.records} == truth.records
