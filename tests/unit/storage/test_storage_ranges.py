from __future__ import annotations

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topicd.shards.storage.ranges import Ranges

pairs = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])), max_size=30)


@given(pairs, st.integers(0, 70), st.integers(0, 30))
def test_behaves_like_a_set_of_seqs(given_pairs: list[tuple[int, int]], first: int, width: int) -> None:
    ranges, model = Ranges(), set[int]()
    for a, b in given_pairs:
        fresh = set(range(a, b + 1)) - model
        assert ranges.add(a, b) == len(fresh)
        model |= fresh
    assert ranges.covered == len(model)
    assert {seq for seq in range(80) if seq in ranges} == model
    last = first + width
    inside = [seq for a, b in ranges.within(first, last) for seq in range(a, b + 1)]
    outside = [seq for a, b in ranges.missing(first, last) for seq in range(a, b + 1)]
    assert inside == sorted(model & set(range(first, last + 1)))
    assert outside == sorted(set(range(first, last + 1)) - model)
    assert ranges.count_within(first, last) == len(inside)


@given(pairs)
def test_stays_sorted_disjoint_and_merged(given_pairs: list[tuple[int, int]]) -> None:
    ranges = Ranges(given_pairs)
    flat = list(ranges)
    assert all(a <= b for a, b in flat)
    assert all(before[1] + 1 < after[0] for before, after in pairwise(flat))
    assert ranges == Ranges(reversed(given_pairs))
    assert Ranges.unpack(ranges.packed()) == ranges


def test_packed_is_pairs_of_u64_and_follows_changes() -> None:
    ranges = Ranges([(5, 9)])
    assert ranges.packed() == struct.pack("<QQ", 5, 9)
    ranges.add(2)
    assert ranges.packed() == struct.pack("<QQQQ", 2, 2, 5, 9)


def test_a_copy_is_apart() -> None:
    ranges = Ranges([(1, 2)])
    twin = ranges.copy()
    twin.add(9)
    assert list(ranges) == [(1, 2)]
    assert twin.covered == 3
    assert repr(twin) == "Ranges([(1, 2), (9, 9)])"


def test_truth_length_and_strangers() -> None:
    assert not Ranges()
    assert len(Ranges([(1, 100)])) == 1
    assert "1" not in Ranges([(1, 100)])
    assert Ranges() != []


def test_a_backward_range_is_refused() -> None:
    with pytest.raises(ValueError, match="backwards"):
        Ranges().add(5, 4)


def test_whether_a_stretch_is_touched_and_where_what_holds_a_seq_ends() -> None:
    ranges = Ranges([(3, 5), (9, 9)])
    for first in range(1, 12):
        for last in range(first, 12):
            assert ranges.touches(first, last) is bool(ranges.within(first, last))
    assert [ranges.last_of(seq) for seq in range(1, 11)] == [0, 0, 5, 5, 5, 0, 0, 0, 9, 0]
    assert not Ranges().touches(1, 9) and Ranges().last_of(1) == 0
