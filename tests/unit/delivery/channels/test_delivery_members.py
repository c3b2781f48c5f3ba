"""Row C20: members stay sorted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topicd.shards.delivery.channels.members import is_member, with_member, without_member

USERS = st.text("abc", min_size=1, max_size=3)


@given(st.lists(st.tuples(st.booleans(), USERS), max_size=40))
def test_c20_they_are_a_sorted_set(steps: list[tuple[bool, str]]) -> None:
    members: tuple[str, ...] = ()
    expected: set[str] = set()
    for joins, user in steps:
        members = with_member(members, user) if joins else without_member(members, user)
        (expected.add if joins else expected.discard)(user)
        assert members == tuple(sorted(expected))
        assert is_member(members, user) == joins
