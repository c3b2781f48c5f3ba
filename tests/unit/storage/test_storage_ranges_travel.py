"""Sets of seqs travel between processes of Spark, whether these run machine code or sources."""

from __future__ import annotations

import pickle

import pytest

from topicd.shards.storage.ranges import Ranges

SETS = [[], [(1, 1)], [(3, 9), (11, 11), (20, 2**63 - 1)]]


@pytest.mark.parametrize("pairs", SETS, ids=len)
@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_a_set_arrives_whole_and_goes_on_as_one(pairs: list[tuple[int, int]], protocol: int) -> None:
    found: Ranges = pickle.loads(pickle.dumps(Ranges(pairs), protocol))
    assert list(found) == pairs and found.covered == Ranges(pairs).covered
    found.add(15, 16)
    assert found.covered == Ranges(pairs).covered + 2


def test_the_travelling_form_names_the_class_and_its_pairs_only() -> None:
    """What either kind of process can make: no attributes, which machine code keeps elsewhere."""
    made, given = Ranges([(3, 9), (11, 11)]).__reduce__()
    assert made is Ranges and given == ([(3, 9), (11, 11)],)
