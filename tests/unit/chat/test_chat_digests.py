"""Digests, the questions of sync, and range-based reconciliation."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from pathlib import Path

import pytest
from chat_kit import START_MS, Shop, numbered
from hypothesis import given, settings
from hypothesis import strategies as st

from topicd.errors import Conflict, InvalidRequest
from topicd.shards.chat import digests as digests_module
from topicd.shards.chat import hlc, keys
from topicd.shards.chat.digest import LEVELS, Digest
from topicd.shards.chat.digests import Digests, made
from topicd.shards.chat.domains import BY_NAME, DOMAINS, incoming
from topicd.shards.chat.negentropy import INFINITY, Bound, Reconciliation, Vector, varint
from topicd.shards.chat.operations import Retain
from topicd.shards.chat.store import MemoryStore

VECTORS = Path(__file__).with_name("negentropy_vectors.json")
ids = st.binary(min_size=32, max_size=32)


def filled(shop: Shop, count: int = 60) -> Shop:
    for number in range(count):
        shop.now_ms += 1
        shop.send(f"room {number % 7}", f"text {number}" * (number % 4 + 1), "ann")
        shop.add(f"room {number % 7}", numbered(9)[number % 9])
        shop.identity(numbered(9)[number % 9], bytes([number + 1]))
    return shop


@given(st.sets(ids, max_size=20), st.sets(ids, max_size=5), st.randoms())
def test_S21_a_digest_depends_on_the_set_only(kept: set[bytes], gone: set[bytes], shuffled: random.Random) -> None:
    one, other = Digest(), Digest()
    for record in sorted(kept - gone):
        one.insert(record)
    order = sorted(kept | gone)
    shuffled.shuffle(order)
    for record in order:
        other.insert(record)
        assert other.root is not None  # what is known of the tree is forgotten again where it has to be
    for record in gone:
        other.remove(record)
    assert one == other
    assert one.root == other.root


@given(st.sets(ids, min_size=1, max_size=20), ids)
def test_S21_every_difference_shows_on_the_way_to_its_bucket(common: set[bytes], extra: bytes) -> None:
    one, other = Digest(), Digest()
    for record in common - {extra}:
        one.insert(record)
        other.insert(record)
    other.insert(extra)
    at = keys.bucket_of(extra)
    for level in range(LEVELS, -1, -1):
        assert one.node(level, at) != other.node(level, at)
        at //= 16
    assert one.node(LEVELS, keys.bucket_of(extra) ^ 1) == other.node(LEVELS, keys.bucket_of(extra) ^ 1)


def test_S20_buckets_partition_all_ids_and_batches_give_each_record_once() -> None:
    shop = filled(Shop())
    for domain in (BY_NAME[name] for name in DOMAINS):
        everything = [record for record, _ in domain.ids(shop.store)]
        by_bucket: list[bytes] = []
        for bucket in sorted({keys.bucket_of(record) for record in everything}):
            by_bucket += domain.bucket(shop.store, bucket)
        assert by_bucket == everything == sorted(everything)
        left, found, chains = everything, [], 0
        while left:
            batch = domain.batch(shop.store, left, 60)
            assert batch.has_more == (batch.taken < len(left))
            found += [domain.record_id(domain.operation(record)) for record in batch.records]
            left, chains = left[batch.taken :], chains + 1
        assert found == everything
        assert chains > 1 or len(everything) < 3


def test_S20_a_record_larger_than_the_batch_comes_alone_and_unknown_ids_are_passed_over() -> None:
    shop = Shop()
    sent = shop.send("room", "x" * 5_000, "ann")
    domain = BY_NAME["messages"]
    assert len(domain.batch(shop.store, [b"\0" * 32, sent.msg_id], 10).records) == 1
    assert domain.batch(shop.store, [b"\0" * 32], 10) == ([], 1, False)


def test_S20_messages_are_listed_with_their_milliseconds() -> None:
    shop = filled(Shop(), 5)
    assert sorted(ms for _, ms in BY_NAME["messages"].ids(shop.store)) == [START_MS + number for number in range(1, 6)]


def test_S21_the_digest_that_is_kept_equals_the_one_made_anew() -> None:
    async def scene() -> None:
        shop = filled(Shop())
        digests = Digests(shop.store)
        told = []
        apply = shop.view.apply

        def applied(entries: object) -> object:
            done = apply(entries)  # type: ignore[arg-type]
            told.extend(done.told)
            return done

        shop.view.apply = applied  # type: ignore[method-assign, assignment]
        await digests.get("messages", 0)
        filled(shop, 30)
        shop.remove("room 1", "u1")
        for one in told:
            digests.written(one)
        for domain in DOMAINS:
            assert await digests.get(domain, 0) == await made(shop.store, domain, 0)

    asyncio.run(scene())


def test_S21_what_is_written_while_a_digest_is_made_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests_module, "PIECE", 3)

    async def scene() -> None:
        shop = filled(Shop(), 30)
        digests = Digests(shop.store)
        apply = shop.view.apply

        def applied(entries: object) -> object:
            done = apply(entries)  # type: ignore[arg-type]
            for told in done.told:
                digests.written(told)
            return done

        shop.view.apply = applied  # type: ignore[method-assign, assignment]
        making = asyncio.ensure_future(digests.get("members", 0))
        turns = 0
        while not making.done():
            turns += 1
            shop.identity(f"new {turns}", b"x")
            shop.send(f"new room {turns}", "first", "u1")
            shop.remove("room 1", f"u{turns}")
            await asyncio.sleep(0)
        assert turns > 10
        for domain in DOMAINS:
            assert await digests.get(domain, 0) == await made(shop.store, domain, 0)

    asyncio.run(scene())


def told_to(digests: Digests, shop: Shop) -> None:
    apply = shop.view.apply

    def applied(entries: object) -> object:
        done = apply(entries)  # type: ignore[arg-type]
        for told in done.told:
            digests.written(told)
            digests.cut(shop.view.cutoff_ms)
        return done

    shop.view.apply = applied  # type: ignore[method-assign, assignment]


def test_S22_the_digest_of_another_store_s_cutoff_is_made_once_and_kept_up_to_date(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two stores that forget at different times compare what both have: many questions, and one look at all rows."""
    looks = 0
    real = digests_module.made

    async def counted(*args: object) -> Digest:
        nonlocal looks
        looks += 1
        return await real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(digests_module, "PIECE", 3)
    monkeypatch.setattr(digests_module, "made", counted)

    async def scene() -> None:
        shop = filled(Shop(), 30)
        digests = Digests(shop.store)
        told_to(digests, shop)
        cutoff = START_MS + 10
        making = asyncio.ensure_future(digests.get("messages", cutoff))
        turns = 0
        while not making.done():
            turns += 1
            shop.send("room 1", f"new {turns}", "ann", stamp=hlc.pack(cutoff + turns % 2, turns))
            await asyncio.sleep(0)
        assert turns > 5
        assert looks == 1
        for _ in range(20):
            shop.send("room 2", "x", "ann", stamp=hlc.pack(START_MS + 5, 7 + turns))
            shop.send("room 2", "y", "ann")
            turns += 1
            kept = await digests.get("messages", cutoff)
            assert kept == await real(shop.store, "messages", cutoff)
        assert looks == 1
        # The own cutoff moves, behind it and then beyond it.
        for own in (cutoff - 3, cutoff + 3):
            shop.do(Retain(own))
            expected = max(own, cutoff)
            assert await digests.get("messages", cutoff) == await real(shop.store, "messages", expected)

    asyncio.run(scene())


def test_S22_the_digest_of_another_cutoff_is_forgotten_when_nobody_asks_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(digests_module, "_OTHERS", 3)

    async def scene() -> None:
        shop = filled(Shop(), 10)
        digests = Digests(shop.store)
        told_to(digests, shop)
        await digests.get("messages", START_MS + 5)
        for _ in range(4):
            assert digests._other is not None
            shop.send("room 1", "x", "ann")
        assert digests._other is None
        assert await digests.get("messages", START_MS + 5) == await made(shop.store, "messages", START_MS + 5)

    asyncio.run(scene())


def test_S22_peers_on_both_sides_of_a_cutoff_agree_on_the_filtered_digest() -> None:
    here, there = filled(Shop()), Shop()
    for domain in DOMAINS:
        here.give(there, domain, list(here.ids()[domain]))
    cutoff = START_MS + 30
    here.do(Retain(cutoff))

    async def roots(shop: Shop) -> list[bytes]:
        return [(await made(shop.store, domain, cutoff)).root for domain in DOMAINS]

    assert asyncio.run(roots(here)) == asyncio.run(roots(there))
    hidden = [record for record, ms in BY_NAME["messages"].ids(there.store) if ms <= cutoff]
    assert hidden
    assert BY_NAME["messages"].batch(there.store, hidden, 1 << 20, cutoff).records == []
    assert all(not BY_NAME["messages"].bucket(there.store, keys.bucket_of(one), cutoff).count(one) for one in hidden)


def test_S22_nothing_comes_back_through_sync() -> None:
    here, there = filled(Shop()), Shop()
    for domain in DOMAINS:
        here.give(there, domain, list(here.ids()[domain]))
    before = len(here.ids()["messages"])
    here.do(Retain(START_MS + 30))
    from topicd.shards.chat import retention
    from topicd.shards.chat.operations import Clean

    while retention.is_cleaning(here.store):
        here.do(Clean(1_000))
    lacking = list(there.ids()["messages"] - here.ids()["messages"])
    assert lacking
    for record in BY_NAME["messages"].batch(there.store, lacking, 1 << 20).records:
        (outcome,) = here.view.apply(
            [(here.view.applied + 1, _entry(incoming(BY_NAME["messages"], record, here.clock)))]
        ).outcomes[0]
        assert outcome.code == "conflict"
    assert len(here.ids()["messages"]) == before - len(lacking)


def _entry(op: object) -> object:
    from topicd.shards.chat.operations import Entry

    return Entry(0, [op])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("domain", "record"),
    [
        ("messages", None),
        ("messages", []),
        ("messages", [bytes(31), bytes(32), bytes(20), 1, 1, "x", b"", b"", "", ""]),
        ("messages", [bytes(32), bytes(32), bytes(20), 0, 1, "x", b"", b"", "", ""]),
        ("messages", [bytes(32), bytes(32), bytes(20), 1, 9, "x", b"", b"", "", ""]),
        ("messages", [bytes(32), bytes(32), bytes(20), 1, 0, "x", bytes(20), b"", "", ""]),
        ("members", [bytes(32), bytes(20), 2, 1, 0, "", ""]),
        ("members", [bytes(32), bytes(19), 0, 1, 0, "", ""]),
        ("members", [bytes(32), bytes(20), 0, -1, 0, "", ""]),
        ("identities", [bytes(20), 1, bytes(1_025), ""]),
        ("identities", [bytes(20), 1, "text", ""]),
        ("identities", [bytes(20), 1, b"x", 7]),
    ],
)
@pytest.mark.fault("CHT-05")
def test_a_record_that_is_none_is_refused(domain: str, record: object) -> None:
    with pytest.raises(InvalidRequest):
        incoming(BY_NAME[domain], record, Shop().clock)


def test_a_record_from_the_day_after_tomorrow_is_refused_and_the_clock_stays() -> None:
    shop = Shop()
    stamp = hlc.pack(START_MS + 2 * hlc.AHEAD_MS, 0)
    with pytest.raises(Conflict, match="ahead"):
        incoming(BY_NAME["identities"], [bytes(20), stamp, b"x", ""], shop.clock)
    assert shop.clock.stamp() < stamp


# ---- negentropy ----


Items = set[tuple[int, bytes]]


def reconciled(one: Items, other: Items, frame: int = 0) -> tuple[list[bytes], list[bytes], int]:
    side, answering = Reconciliation(Vector(one), frame), Reconciliation(Vector(other), frame)
    message: bytes | None = side.begin()
    size = 0
    while message is not None:
        answer = answering.answer(message)
        assert not frame or len(answer) <= frame
        size += len(message) + len(answer)
        message = side.take(answer)
    return side.have, side.need, size


items = st.integers(0, 300).map(lambda number: (number % 50, hashlib.sha256(b"%d" % number).digest()))


@settings(deadline=None)
@given(st.sets(items, max_size=120), st.sets(items, max_size=120))
def test_both_sides_differences_are_found(one: Items, other: Items) -> None:
    have, need, _ = reconciled(one, other)
    assert sorted(have) == sorted(record for _, record in one - other)
    assert sorted(need) == sorted(record for _, record in other - one)


@pytest.mark.parametrize("frame", [0, 4_096, 20_000])
def test_many_differences_are_found_with_short_messages_too(frame: int) -> None:
    rng = random.Random(5)
    common = {(rng.randrange(10_000), rng.randbytes(32)) for _ in range(4_000)}
    mine = {(rng.randrange(10_000), rng.randbytes(32)) for _ in range(700)}
    theirs = {(rng.randrange(10_000), rng.randbytes(32)) for _ in range(900)}
    have, need, _ = reconciled(common | mine, common | theirs, frame)
    assert set(have) == {record for _, record in mine}
    assert set(need) == {record for _, record in theirs}


def test_the_newest_hundred_cost_a_few_kilobytes() -> None:
    rng = random.Random(6)
    everything = [(at, rng.randbytes(32)) for at in range(20_000)]
    have, need, size = reconciled(set(everything), set(everything[:-100]))
    assert (len(have), len(need)) == (100, 0)
    assert size < 9_000


def test_numbers_are_those_of_the_protocol() -> None:
    assert [varint(value) for value in (0, 127, 128, 300, 1 << 20)] == [
        b"\x00",
        b"\x7f",
        b"\x81\x00",
        b"\x82\x2c",
        b"\xc0\x80\x00",
    ]


def test_the_first_message_of_an_empty_side_is_that_of_the_protocol() -> None:
    assert Reconciliation(Vector([])).begin().hex() == "6100000200"


def test_messages_are_those_of_another_implementation() -> None:
    """Each conversation was held by two sides of the crate `negentropy`, or begun by the one of nostr-tools (see the
    file); ours says the same, byte by byte, in either role. Where messages are cut short is left to each
    implementation: there the outcome is the same."""
    conversations = json.loads(VECTORS.read_text())["conversations"]
    assert sum(not talk["frame"] for talk in conversations) >= 5
    for talk in conversations:
        one = Vector([(at, bytes.fromhex(record)) for at, record in talk["client"]])
        other = Vector([(at, bytes.fromhex(record)) for at, record in talk["server"]])
        side, answering = Reconciliation(one, talk["frame"]), Reconciliation(other, talk["frame"])
        said: list[list[str]] = []
        message: bytes | None = side.begin()
        while message is not None:
            answer = answering.answer(message)
            said.append([message.hex(), answer.hex()])
            message = side.take(answer)
        if not talk["frame"]:
            assert said == talk["messages"]
        assert sorted({record.hex() for record in side.have}) == sorted(set(talk["have"]))
        assert sorted({record.hex() for record in side.need}) == sorted(set(talk["need"]))


@pytest.mark.parametrize(
    "message",
    ["", "61ff", "6100", "610001", "61000100", "61000203", "6100000200" + "00", "50", "6181818181818181818181818100"],
)
def test_messages_that_are_none_are_refused(message: str) -> None:
    vector = Vector([(1, bytes(32)), (2, b"\1" * 32)])
    raw = bytes.fromhex(message)
    if raw[:1] == b"\x61" and raw == bytes.fromhex("6100000200"):
        return
    with pytest.raises(InvalidRequest):
        Reconciliation(vector).answer(raw)


def test_another_version_is_told_which_one_is_spoken() -> None:
    assert Reconciliation(Vector([])).answer(b"\x62rest") == b"\x61"


def test_a_bound_is_as_short_as_it_can_be() -> None:
    vector = Vector([(1, b"\1" * 32), (2, b"\2" * 32), (2, b"\2" * 31 + b"\3")])
    assert vector.bound_between(1) == Bound(2)
    assert vector.bound_between(2) == Bound(2, b"\2" * 31 + b"\3")
    assert vector.lower(0, Bound(INFINITY)) == 3
    assert MemoryStore().figures() == {}
