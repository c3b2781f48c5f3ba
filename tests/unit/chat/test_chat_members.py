"""Members that merge: the laws."""

from __future__ import annotations

import pytest
from chat_kit import Shop, member_of, record_id
from hypothesis import given
from hypothesis import strategies as st

from topicd.errors import Conflict, Forbidden, InvalidRequest
from topicd.shards.chat import identity, keys, members, membership
from topicd.shards.chat.identity import Identity
from topicd.shards.chat.members import Member, merge
from topicd.shards.chat.messages import is_member
from topicd.shards.chat.rows import Kind
from topicd.shards.chat.store import IDENTITY, MEMBERS, SEEN_IDENTITY, SEEN_MEMBER, USER_INBOX

GOLDEN = "a7241a7b16f62e1dcaf85cba6530a4a2e3169f537da5804f8cd6d2c791fd6c46"

few = st.integers(0, 6)
rows = st.builds(Member, st.integers(0, 1), few, few)


@given(rows, rows)
def test_S16_merging_is_commutative(one: Member, other: Member) -> None:
    assert merge(one, other) == merge(other, one)


@given(rows, rows, rows)
def test_S16_merging_is_associative(one: Member, two: Member, three: Member) -> None:
    assert merge(merge(one, two), three) == merge(one, merge(two, three))


@given(rows)
def test_S16_merging_is_idempotent(row: Member) -> None:
    assert merge(row, row) == row


@given(rows, st.integers(0, 1), few, few)
def test_S16_an_old_addition_never_revives_a_later_removal(row: Member, role: int, added: int, later: int) -> None:
    removed = members.removed(row, max(added, row.added_at, later))
    assert not removed.active
    assert not merge(removed, Member(role, added)).active
    assert not merge(Member(role, added), removed).active


@given(st.lists(rows, min_size=1, max_size=5), st.randoms())
def test_S16_any_order_and_any_repetition_give_the_same(seen: list[Member], random: object) -> None:
    def all_of(order: list[Member]) -> Member:
        found = order[0]
        for one in order[1:]:
            found = merge(found, one)
        return found

    mixed = seen + seen
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert all_of(seen) == all_of(mixed)


def test_S15_a_chat_of_two_has_no_rows_yet_both_are_members() -> None:
    shop = Shop()
    shop.send("@bob", "hi", "ann")
    chat = keys.dm_id(keys.user_id("ann"), keys.user_id("bob"))
    assert shop.rows(MEMBERS) == []
    for user, expected in (("ann", True), ("bob", True), ("cid", False)):
        assert is_member(shop.view.metas, chat, keys.user_id(user)) is expected


def test_S15_members_of_a_chat_of_two_cannot_change() -> None:
    shop = Shop()
    shop.send("@bob", "hi", "ann")
    chat = keys.dm_id(keys.user_id("ann"), keys.user_id("bob")).hex()
    with pytest.raises(InvalidRequest, match="two users"):
        shop.add(chat, "cid")
    with pytest.raises(InvalidRequest, match="two users"):
        shop.remove(chat, "bob")


def test_S15_a_chat_of_two_is_theirs_whatever_came_first() -> None:
    """A room under its id: made before they spoke, or by another store that did not know of them."""
    chat = keys.dm_id(keys.user_id("ann"), keys.user_id("bob"))
    room = chat.hex()
    before, after = Shop(), Shop()
    before.send(room, "a room", "eve")
    before.add(room, "cid", by="eve")
    other = Shop()
    other.send(room, "a room", "eve")
    after.send("@bob", "hi", "ann")
    before.send("@bob", "hi", "ann")
    for domain in ("messages", "members"):
        other.give(after, domain, list(other.ids()[domain]))
    for shop in (before, after):
        meta = shop.view.metas.get(chat)
        assert (meta.kind, meta.users) == (Kind.DM, sorted((keys.user_id("ann"), keys.user_id("bob"))))
        assert {key[:20] for key, _ in shop.rows(USER_INBOX)} == set(meta.users)
        with pytest.raises(Forbidden):
            shop.send(room, "still mine", "eve")
        with pytest.raises(InvalidRequest, match="as @name"):
            shop.send(room, "as a room", "ann")


def test_S16_removing_somebody_unknown_leaves_a_tombstone_that_reads_do_not_show() -> None:
    shop = Shop()
    shop.add("room", "ann")
    shop.remove("room", "stranger")
    row = member_of(shop, "room", "stranger")
    assert row is not None
    assert row.added_at == 0
    assert row.removed_at > 0
    assert [user for user, _ in membership.active(shop.store, keys.chat_id("room"))] == [keys.user_id("ann")]


def test_S16_a_partitioned_old_addition_does_not_bring_a_removed_member_back() -> None:
    here, there = Shop(), Shop()
    here.add("room", "ann", role=1)
    old = here.add("room", "bob")
    there.now_ms += 5
    here.give(there, "members", list(here.ids()["members"]))
    here.now_ms += 60_000
    here.remove("room", "bob")
    there.add("room", "cid")  # the other side goes on with what it knows
    assert member_of(there, "room", "bob") == old
    for one, other in ((here, there), (there, here)) * 2:
        one.give(other, "members", list(one.ids()["members"] - other.ids()["members"]))
    assert here.ids() == there.ids()
    for shop in (here, there):
        assert not shop.view.metas.get(keys.chat_id("room")).has(keys.user_id("bob"))


def test_S17_the_same_row_has_the_same_id_and_each_field_changes_it() -> None:
    base = Member(0, 5, 3)
    assert record_id("room", "ann", base) == record_id("room", "ann", Member(0, 5, 3))
    others = {
        record_id("cellar", "ann", base),
        record_id("room", "bob", base),
        record_id("room", "ann", base._replace(role=1)),
        record_id("room", "ann", base._replace(added_at=6)),
        record_id("room", "ann", base._replace(removed_at=0)),
    }
    assert len(others) == 5
    assert record_id("room", "ann", base).hex() == GOLDEN  # on every machine
    assert record_id("room", "ann", base) not in others


@given(
    st.lists(st.tuples(st.sampled_from("ar"), st.sampled_from(["ann", "bob", "cid"]), st.integers(0, 1)), max_size=20)
)
def test_S18_every_row_has_exactly_one_index_row(steps: list[tuple[str, str, int]]) -> None:
    shop = Shop()
    for what, user, role in steps:
        if what == "a":
            shop.add("room", user, role)
        else:
            shop.remove("room", user)
    index = dict(shop.rows(SEEN_MEMBER))
    from topicd.shards.chat.rows import unpack_member

    expected = {}
    for key, value in shop.rows(MEMBERS):
        expected[members.record_id(key[:32], key[32:], unpack_member(value))] = key
    assert index == expected


@given(st.lists(st.tuples(st.sampled_from(["ann", "bob"]), st.integers(1, 5), st.binary(min_size=1, max_size=2))))
def test_S18_every_identity_has_exactly_one_index_row(steps: list[tuple[str, int, bytes]]) -> None:
    shop = Shop()
    for user, stamp, blob in steps:
        shop.identity(user, blob, stamp)
    expected = {identity.record_id(user, Identity.from_value(value)): user for user, value in shop.rows(IDENTITY)}
    assert dict(shop.rows(SEEN_IDENTITY)) == expected
    assert len(expected) == len({user for user, _, _ in steps})


def test_only_admins_change_members_and_anybody_may_leave() -> None:
    shop = Shop()
    shop.send("room", "mine", "ann")
    shop.add("room", "bob", by="ann")
    with pytest.raises(Forbidden, match="only admins"):
        shop.add("room", "cid", by="bob")
    with pytest.raises(Forbidden, match="only admins"):
        shop.remove("room", "ann", by="bob")
    shop.remove("room", "bob", by="bob")
    with pytest.raises(Forbidden, match="not a member"):
        shop.send("room", "again", "bob")


def test_a_chat_takes_no_more_members_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "MEMBERS_MAX", 3)
    shop = Shop()
    for user in ("a", "b", "c"):
        shop.add("room", user)
    with pytest.raises(Conflict, match="at most 3"):
        shop.add("room", "d")
    shop.add("room", "c", role=1)
