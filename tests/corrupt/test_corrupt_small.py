"""A small seeded part of `make corrupt` and `make flips`."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from tests.corrupt.damage import NO_FILES, copy
from tests.corrupt.flips import PART_BYTES, broken, some
from tests.corrupt.rounds import beyond, examine, play
from tests.corrupt.world import FINAL_RUN, Outcome, Truth, build, check, start

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


@pytest.mark.fault("ODD-05")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("thing", NO_FILES)
def test_what_is_no_file_in_the_place_of_any_kind_of_file(tmp_path: Path, thing: Callable[[Path], None]) -> None:
    """As a lost one: the start serves the rest and reports, fsck agrees, repair makes nothing worse."""
    template = tmp_path / "template"
    truth = build(template, PART_BYTES, small=True)
    files = sorted(path.relative_to(template) for path in template.rglob("*") if path.is_file() and path.name != "LOCK")
    kinds = {(path.suffix, path.parts[0], path.name.partition("-")[0], ".part" in path.name): path for path in files}

    def put(path: Path) -> None:
        path.unlink()
        thing(path)

    found = {}
    for path in kinds.values():
        problems = examine(template, tmp_path, truth, lambda root, path=path: put(root / path))  # type: ignore[misc]
        if problems:
            found[path] = problems
        refused = path.name in ("FORMAT", "identity.bin")
        with_it = copy(template, tmp_path / "refused")
        put(with_it / path)
        outcome = start(with_it, truth.next_id)
        assert bool(outcome.refused) == refused, (path, outcome.refused)
    assert len(kinds) >= 10
    assert not found


def gone(topic: Path) -> None:
    shutil.rmtree(topic)


def emptied(topic: Path) -> None:
    shutil.rmtree(topic)
    topic.mkdir()


def without(topic: Path, number: int) -> None:
    """All files of one of its segments."""
    names = sorted({path.stem for path in topic.glob("seg-*")})
    for path in topic.glob(f"{names[number]}.*"):
        path.unlink()


def without_first(topic: Path) -> None:
    without(topic, 0)


def without_last(topic: Path) -> None:
    without(topic, -1)


@pytest.mark.fault("ROTT-14")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lose", [gone, emptied, without_first, without_last])
def test_no_file_is_left_to_complain_about(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    """The start reports the records, and so does fsck."""
    template = tmp_path / "template"
    truth = build(template)
    for name, topic in truth.directories.items():
        problems = examine(template, tmp_path, truth, lambda root, name=name: lose(root / "topics" / name))  # type: ignore[misc]
        assert problems == [], topic


@pytest.mark.fault("SWAP-04")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", ["del", "idx", "tags"])
def test_a_copy_under_another_seq_costs_no_record(tmp_path: Path, part: str) -> None:
    template = tmp_path / "template"
    truth = build(template, small=True)
    for path in sorted(template.rglob(f"*.{part}")):
        first = int(path.stem.removeprefix("seg-"))
        beside = path.relative_to(template).with_name(f"seg-{first + 3:020d}.{part}")

        def put(root: Path, path: Path = path, beside: Path = beside) -> None:
            shutil.copyfile(path, root / beside)

        problems = examine(template, tmp_path, truth, put)
        assert problems == [], beside
        outcome = start(tmp_path / "started", truth.next_id, FINAL_RUN + 2)
        assert outcome.records == truth.records


def test_a_report_excuses_only_what_the_damage_can_reach() -> None:
    truth = Truth({"a": {1: b"x"}, "b": {1: b"y"}}, {"a": {2}, "b": set()}, directories={"01": "a", "02": "b"})

    def found(damage: list[str], **records: dict[int, bytes]) -> Outcome:
        return Outcome(damage=damage, records=records)

    data, index, snapshot = {"topics/01/seg-1.data"}, {"topics/01/seg-1.idx"}, {"meta/shard-00/snapshot-7.part-1.bin"}
    assert not beyond(truth, found(["lost"], a={}, b={1: b"y"}), data)
    assert beyond(truth, found(["lost"], a={1: b"x"}, b={}), data)
    assert beyond(truth, found(["built anew"], a={}, b={1: b"y"}), index)
    assert beyond(truth, found(["taken from the one before"], a={}, b={1: b"y"}), snapshot)
    assert beyond(truth, found(["from WAL"], a={1: b"x", 2: b"z"}, b={1: b"y"}), index)
    assert beyond(truth, Outcome(refused="an index"), index)
    assert not beyond(truth, found(["cut"], a={}, b={}), {"wal/shard-00/wal-0.log"})


def test_undamaged_directory_is_served_whole_and_called_undamaged(tmp_path: Path) -> None:
    truth = build(tmp_path / "data")
    found = check(tmp_path / "data")
    assert not isinstance(found, str) and found.findings == []
    outcome = start(tmp_path / "data", truth.next_id)
    assert (outcome.refused, outcome.broken, outcome.damage) == ("", "", [])
    assert {name: outcome.records[name] for name in truth.records} == truth.records
