"""Ranges, their cuts and the offsets of streams: pure functions."""

from __future__ import annotations

import os

import pytest

from topicd.errors import FormatError, InvalidRequest
from topicd.spark import offsets, plan
from topicd.spark.offsets import Place
from topicd.spark.options import ReadOptions
from topicd.spark.plan import Range, literal_prefix, split


def options(**given: str) -> ReadOptions:
    return ReadOptions.parse({"topic": "orders", **given})


def seqs(tasks: list[tuple[Range, ...]]) -> list[tuple[str, int]]:
    return [(r.topic, seq) for task in tasks for r in task for seq in range(r.after + 1, r.up_to + 1)]


@pytest.mark.parametrize("sizes", [(1,), (7, 0, 3), (1, 1, 1, 1), (100,), (0,), (13, 29, 1)])
@pytest.mark.parametrize("parts", [1, 2, 3, 8, 1000])
def test_every_seq_is_in_one_task(sizes: tuple[int, ...], parts: int) -> None:
    ranges = [Range(f"t{i}", i, 10, 10 + size) for i, size in enumerate(sizes)]
    tasks = split(ranges, options(minPartitions=str(parts)))
    assert seqs(tasks) == seqs([tuple(ranges)])
    assert min(parts, sum(sizes)) >= len(tasks) > 0 or sum(sizes) == 0


def test_tasks_are_as_many_as_cores_and_not_smaller_than_they_are_worth() -> None:
    cores = os.cpu_count() or 1
    assert len(split([Range("t", 1, 0, 10_000_000)], options())) == cores
    assert len(split([Range("t", 1, 0, plan.WORTH_A_TASK)], options())) == 1
    assert len(split([Range(f"t{i}", i, 0, 10) for i in range(1000)], options())) == 1


def test_tasks_end_where_full_segments_end() -> None:
    tasks = split([Range("t", 1, 12_345, 1_234_567)], options(minPartitions="4"))
    cuts = [task[-1].up_to for task in tasks]
    assert all(cut % plan.SEGMENT_RECORDS == 0 for cut in cuts[:-1]) and len(cuts) == 4
    sizes = [sum(map(len, task)) for task in tasks]
    assert max(sizes) - min(sizes) <= 2 * plan.SEGMENT_RECORDS


def test_the_most_records_of_a_task_count_more_than_the_number_of_tasks() -> None:
    tasks = split([Range("t", 1, 0, 100)], options(minPartitions="2", maxRecordsPerPartition="30"))
    assert [sum(map(len, task)) for task in tasks] == [30, 30, 30, 10]


@pytest.mark.parametrize(
    ("pattern", "prefix"),
    [
        ("orders.*", "orders"),
        (r"orders\..*", "orders"),
        ("orders", "orders"),
        ("orders?", "order"),
        ("ab*", "a"),
        ("a{2}", ""),
        ("ab+", "ab"),
        ("a|b", ""),
        ("(a)", ""),
        (".*", ""),
    ],
)
def test_only_names_that_can_fit_are_listed(pattern: str, prefix: str) -> None:
    assert literal_prefix(pattern) == prefix


# ---- offsets ----


def test_offsets_are_the_same_text_whatever_the_order() -> None:
    places = {"b": Place(2, 20), "a": Place(1, 10, after=3, lost="1-3")}
    encoded = offsets.encode(places)
    assert list(encoded) == ["a", "b"]
    assert encoded == {"a": {"id": 1, "seq": 10, "after": 3, "lost": "1-3"}, "b": {"id": 2, "seq": 20}}
    assert offsets.decode(encoded) == places


@pytest.mark.parametrize("text", [{"a": 1}, {"a": {"id": 1}}, {"a": {"id": "x", "seq": 1}}, {"a": None}])
def test_an_offset_of_something_else_is_refused(text: dict[str, object]) -> None:
    with pytest.raises(FormatError, match="not topicd's"):
        offsets.decode(text)


def test_what_lies_between_two_offsets() -> None:
    start = {
        "grown": {"id": 1, "seq": 5},
        "idle": {"id": 2, "seq": 7, "after": 3, "lost": "1-3"},
        "anew": {"id": 3, "seq": 9},
        "gone": {"id": 9, "seq": 1},
    }
    end = {
        "grown": {"id": 1, "seq": 8},
        "idle": {"id": 2, "seq": 7, "after": 3, "lost": "1-3"},
        "anew": {"id": 4, "seq": 2},
        "new": {"id": 5, "seq": 50, "after": 40},
        "gone": {"id": 9, "seq": 1},
    }
    assert list(offsets.ranges(start, end)) == [
        Range("anew", 4, 0, 2),
        Range("grown", 1, 5, 8),
        Range("new", 5, 40, 50),
    ]


def test_a_batch_that_ends_before_it_starts_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="topic t: a batch cannot end at 4, before its start 5"):
        list(offsets.ranges({"t": {"id": 1, "seq": 5}}, {"t": {"id": 1, "seq": 4}}))


BEFORE = {"idle": Place(1, 10), "long": Place(2, 0), "short": Place(3, 5, after=2, lost="1-2")}
REACHABLE = {
    "idle": Place(1, 10),
    "long": Place(2, 900),
    "short": Place(3, 105),
    "new": Place(4, 30, after=20),
    "anew": Place(5, 40, after=0, lost="8-"),
}


@pytest.mark.parametrize("most", [1, 2, 3, 4, 7, 100, 1049, 1050])
def test_a_limit_is_kept_to_and_shared(most: int) -> None:
    end = offsets.limited(BEFORE, REACHABLE, most)
    planned = list(offsets.ranges(offsets.encode(BEFORE), offsets.encode(end)))
    assert most - len(planned) < sum(map(len, planned)) <= most
    assert all(r.up_to <= REACHABLE[r.topic].seq for r in planned)
    assert end["idle"] == BEFORE["idle"]
    if most >= 4:
        assert {r.topic for r in planned} == {"long", "short", "new", "anew"}


def test_batches_of_a_limit_end_where_everything_is_read() -> None:
    heads = {"long": Place(1, 900), "short": Place(2, 7)}
    at, read = {"long": Place(1, 0), "short": Place(2, 0)}, []
    while (end := offsets.limited(at, heads, 400)) != at:
        read += offsets.ranges(offsets.encode(at), offsets.encode(end))
        at = end
    everything = [(topic, seq) for topic, place in heads.items() for seq in range(1, place.seq + 1)]
    assert sorted(seqs([tuple(read)])) == everything


def test_available_now_goes_no_further_than_its_target() -> None:
    target = {"long": Place(2, 500), "short": Place(9, 105), "anew": Place(5, 10)}
    found = offsets.at_most({**REACHABLE, "anew": Place(5, 40, after=20)}, target)
    assert found == {"long": Place(2, 500), "anew": Place(5, 20, after=20)}
