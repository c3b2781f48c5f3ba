"""Which records a reader wants: by default all of them, whole."""

from __future__ import annotations

import pytest

from topicd.model import TagMatch
from topicd.shards.delivery.reading.filters import NO_FILTER, ReadFilter


def test_by_default_everything_is_wanted() -> None:
    assert (NO_FILTER.match, NO_FILTER.nodes, NO_FILTER.metadata_only) == (None, (), False)
    assert ReadFilter() == NO_FILTER


@pytest.mark.parametrize(
    "chosen", [ReadFilter(TagMatch(b"t")), ReadFilter(nodes=(b"n",)), ReadFilter(metadata_only=True)]
)
def test_one_wish_makes_it_another_filter(chosen: ReadFilter) -> None:
    """A subscription without a filter is served without questions: none must be taken for one."""
    assert chosen != NO_FILTER
