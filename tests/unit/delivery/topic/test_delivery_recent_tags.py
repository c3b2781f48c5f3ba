"""Tags of records that no sealed segment knows yet."""

from __future__ import annotations

from tests.unit.delivery.kit import stamped
from topicd.model import TagMatch
from topicd.shards.delivery.topic.recent_tags import RecentTags

A, B, A_ALL = TagMatch(b"a"), TagMatch(b"b"), TagMatch(b"a", prefix=True)


def noted() -> RecentTags:
    """1 a, 2 none, 3 b, 4 ab, 5 a"""
    tags = RecentTags()
    first = stamped([b"x"] * 3, 1, tags=[b"a", None, b"b"])
    second = stamped([b"x"] * 2, 4, tags=[b"ab", b"a"])
    for blob in (first, second):
        tags.note(blob.data, blob.start, blob.end)
    return tags


def test_exact_and_prefix_matches_come_in_order_of_seq() -> None:
    tags = noted()
    assert tags.matching(A, 1, 5) == [1, 5]
    assert tags.matching(A_ALL, 1, 5) == [1, 4, 5]
    assert tags.matching(TagMatch(b"c"), 1, 5) == []


def test_both_bounds_are_included() -> None:
    tags = noted()
    assert tags.matching(A_ALL, 4, 4) == [4]
    assert tags.matching(A_ALL, 2, 4) == [4]
    assert tags.matching(A_ALL, 6, 9) == []


def test_what_a_sealed_segment_knows_is_forgotten_and_nothing_else() -> None:
    tags = noted()
    tags.forget(3)
    assert tags.matching(B, 1, 5) == []
    assert tags.matching(A_ALL, 1, 5) == [4, 5]
    tags.forget(5)
    assert len(tags) == 0


def test_only_part_of_a_batch_may_be_noted() -> None:
    tags, blob = RecentTags(), stamped([b"x"] * 3, 1, tags=[b"a", b"a", b"a"])
    tags.note(blob.data, blob.offset_of(2), blob.end)
    assert tags.matching(A, 1, 3) == [2, 3]


def test_clear_forgets_everything() -> None:
    tags = noted()
    tags.clear()
    assert tags.matching(A_ALL, 1, 5) == []
