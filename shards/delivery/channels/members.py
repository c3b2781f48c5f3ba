"""The members of a channel: a sorted tuple, so that the same members are the same bytes whoever came first."""

from __future__ import annotations

from bisect import bisect_left

Members = tuple[str, ...]


def is_member(members: Members, user: str) -> bool:
    at = bisect_left(members, user)
    return at < len(members) and members[at] == user


def with_member(members: Members, user: str) -> Members:
    at = bisect_left(members, user)
    if at < len(members) and members[at] == user:
        return members
    return (*members[:at], user, *members[at:])


def without_member(members: Members, user: str) -> Members:
    at = bisect_left(members, user)
    if at == len(members) or members[at] != user:
        return members
    return members[:at] + members[at + 1 :]
