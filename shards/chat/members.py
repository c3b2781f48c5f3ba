"""Who belongs to a chat, as rows that merge. Promise: merging is commutative, associative and idempotent, so that two
stores that have seen the same changes agree whatever the order; an old addition never revives a later removal.

A row has the time of the last addition and that of the last removal; it is active if nobody was removed at or behind
the addition. Rows are never deleted. Of two additions at the very same time the higher role counts: were it the local
one, two stores could disagree for ever.
"""

from __future__ import annotations

from typing import NamedTuple

from blake3 import blake3

from topicd.errors import InvalidRequest
from topicd.shards.chat import keys
from topicd.shards.chat.hlc import MAX_STAMP

PARTICIPANT = 0
ADMIN = 1
ROLES = {"participant": PARTICIPANT, "admin": ADMIN}
ROLE_NAMES = {number: name for name, number in ROLES.items()}


class Member(NamedTuple):
    role: int
    added_at: int  # packed time; 0: was never added, only removed
    removed_at: int = 0  # 0: was never removed

    @property
    def active(self) -> bool:
        return self.removed_at < self.added_at


NOBODY = Member(PARTICIPANT, 0, 0)


def checked(member: Member) -> Member:
    if member.role not in ROLE_NAMES:
        raise InvalidRequest(f"a role is 0 (participant) or 1 (admin), not {member.role!r:.50}")
    for stamp in (member.added_at, member.removed_at):
        if isinstance(stamp, bool) or not isinstance(stamp, int) or not 0 <= stamp <= MAX_STAMP:
            raise InvalidRequest(f"a member's time is a packed hybrid time, not {stamp!r:.50}")
    return member


def merge(one: Member, other: Member) -> Member:
    role = max(one.role, other.role)
    if one.added_at != other.added_at:
        role = one.role if one.added_at > other.added_at else other.role
    return Member(role, max(one.added_at, other.added_at), max(one.removed_at, other.removed_at))


def added(row: Member, role: int, stamp: int) -> Member:
    return merge(row, Member(role, stamp))


def removed(row: Member, stamp: int) -> Member:
    """Also of somebody who is not known: the removal is remembered."""
    return row._replace(removed_at=max(row.removed_at, stamp))


def record_id(chat: bytes, user: bytes, member: Member) -> bytes:
    """The same on every machine; another one as soon as anything differs."""
    return blake3(
        keys.member_key(chat, user) + bytes((member.role,)) + keys.u64(member.added_at) + keys.u64(member.removed_at)
    ).digest()


def xor(ids: bytes) -> bytes:
    """Of all user ids in a row of them, 32 bytes wide."""
    total = 0
    for at in range(0, len(ids), keys.USER):
        total ^= int.from_bytes(ids[at : at + keys.USER], "big")
    return total.to_bytes(32, "big")
