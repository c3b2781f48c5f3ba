"""Stores that exchange what they lack, in whatever order, hold the same and show the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from itertools import permutations
from typing import Any

from chat_kit import Shop, numbered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topicd.errors import TopicdError
from topicd.shards.chat import hlc, identity, inbox, keys, membership, messages, retention
from topicd.shards.chat.domains import BY_NAME, DOMAINS
from topicd.shards.chat.identity import Identity
from topicd.shards.chat.members import xor
from topicd.shards.chat.operations import Clean, Retain
from topicd.shards.chat.rows import Kind
from topicd.shards.chat.store import CHATS_META, MESSAGES

USERS = numbered(4)
ROOMS = ["room", "cellar"]
# The chat of two, under its bare id: whoever knows both can name it so.
BETWEEN = keys.dm_id(keys.user_id(USERS[0]), keys.user_id(USERS[1])).hex()
PLACES = st.sampled_from([*ROOMS, BETWEEN])
SHOPS = st.integers(0, 2)

one_step = [
    st.tuples(st.just("send"), SHOPS, PLACES, st.sampled_from(USERS), st.sampled_from([Kind.GROUP, Kind.CHANNEL])),
    st.tuples(st.just("dm"), SHOPS, st.sampled_from(USERS[:2]), st.booleans()),
    st.tuples(st.just("add"), SHOPS, PLACES, st.sampled_from(USERS), st.integers(0, 1)),
    st.tuples(st.just("remove"), SHOPS, PLACES, st.sampled_from(USERS)),
    st.tuples(st.just("identity"), SHOPS, st.sampled_from(USERS), st.binary(min_size=1, max_size=2)),
    st.tuples(st.just("give"), SHOPS, SHOPS),
    st.tuples(st.just("time"), SHOPS, st.integers(0, 600_000)),
]
steps = st.lists(st.one_of(*one_step), max_size=30)
forgetting = [
    st.tuples(st.just("retain"), SHOPS, st.integers(0, 700_000)),
    st.tuples(st.just("clean"), SHOPS, st.integers(1, 3)),
]


def take_step(shops: list[Shop], what: tuple[Any, ...]) -> None:
    name, which, *rest = what
    shop = shops[which]
    msg_id = hashlib.sha256(f"{which} {len(shop.log)}".encode()).digest()
    try:
        if name == "send":
            shop.send(rest[0], "x", rest[1], kind=rest[2], msg_id=msg_id)
        elif name == "dm":
            sender, peer = USERS[:2] if rest[1] else USERS[1::-1]
            shop.send(f"@{peer}", "psst", sender, blob=rest[0].encode(), msg_id=msg_id)
        elif name == "add":
            shop.add(rest[0], rest[1], rest[2])
        elif name == "remove":
            shop.remove(rest[0], rest[1])
        elif name == "identity":
            shop.identity(rest[0], rest[1])
        elif name == "give":
            exchange(shop, shops[rest[0]])
        elif name == "retain":
            shop.do(Retain(max(0, shop.now_ms - rest[0])))
        elif name == "clean":
            shop.do(Clean(rest[0]))
        else:
            shop.now_ms += rest[0]
    except TopicdError:
        pass


def exchange(one: Shop, other: Shop) -> None:
    """As the two would do it: a domain after the other, in both directions, and nothing that one of them keeps no
    more."""
    cutoff_ms = max(one.view.cutoff_ms, other.view.cutoff_ms)
    for domain in DOMAINS:
        mine, theirs = one.ids(cutoff_ms)[domain], other.ids(cutoff_ms)[domain]
        other.give(one, domain, sorted(theirs - mine))
        one.give(other, domain, sorted(mine - theirs))


def shown(shop: Shop) -> dict[str, Any]:
    """What two stores must agree on: not seqs, which are each store's own."""
    found: dict[str, Any] = {}
    for user in USERS:
        rows = [row.entry for row in inbox.page(shop.store, keys.user_id(user), "", 100).rows]
        found[user] = [row._replace(last_seq=0) for row in rows]
    for place in (*ROOMS, BETWEEN):
        chat = keys.chat_id(place)
        meta = shop.view.metas.get(chat)
        users = meta.users if meta.kind == Kind.DM else [user for user, _ in membership.active(shop.store, chat)]
        assert users == meta.users
        assert meta.membership_hash == xor(meta.members)
        found[place] = (users, meta.kind, meta.identity, meta.last_seq, meta.last_msg_id)
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.permutations([(0, 1), (1, 2), (0, 2)]))
def test_S16_S20_three_stores_agree_whatever_happened_and_in_whatever_order_they_meet(
    what: list[tuple[Any, ...]], meetings: list[tuple[int, int]]
) -> None:
    shops = [Shop() for _ in range(3)]
    for step in what:
        take_step(shops, step)
    for one, other in meetings * 2:
        exchange(shops[one], shops[other])
    assert shops[0].ids() == shops[1].ids() == shops[2].ids()
    assert shown(shops[0]) == shown(shops[1]) == shown(shops[2])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.one_of(*one_step, *forgetting), max_size=40), st.permutations([(0, 1), (1, 2), (0, 2)]))
def test_S22_S23_stores_that_forget_agree_on_what_all_keep_and_get_nothing_back(
    what: list[tuple[Any, ...]], meetings: list[tuple[int, int]]
) -> None:
    shops = [Shop() for _ in range(3)]
    for step in what:
        take_step(shops, step)
        for shop in shops:
            assert all(ms > shop.view.cutoff_ms for ms in times(shop))
    for one, other in meetings * 2:
        exchange(shops[one], shops[other])
    cutoff_ms = max(shop.view.cutoff_ms for shop in shops)
    kept = [shop.ids(cutoff_ms) for shop in shops]
    assert kept[0] == kept[1] == kept[2]
    for shop in shops:
        while retention.is_cleaning(shop.store):
            shop.do(Clean(2))
        seen = {record for record, _ in BY_NAME["messages"].ids(shop.store)}
        assert seen == shop.ids(shop.view.cutoff_ms)["messages"]
        assert len(shop.rows(MESSAGES)) == len(seen) == len(times(shop))


def times(shop: Shop) -> list[int]:
    """Of all messages that somebody can read."""
    chats = {key for key, _ in shop.rows(CHATS_META)}
    pages = [messages.page(shop.store, chat, "", 10_000, shop.view.cutoff_ms) for chat in chats]
    return [hlc.physical_ms(message.stamp) for page in pages for _, message in page.items]


identities = st.lists(st.builds(Identity, st.integers(0, 3), st.binary(max_size=1)), min_size=1, max_size=4)


def last_of(order: Iterable[Identity]) -> Identity | None:
    stored: Identity | None = None
    for one in order:
        if identity.wins(one, stored):
            stored = one
    return stored


@given(identities)
def test_S19_the_same_identity_stays_in_whatever_order_and_however_often_they_come(seen: list[Identity]) -> None:
    assert {last_of(order) for order in permutations(seen)} == {last_of(seen + seen)} == {max(seen)}
