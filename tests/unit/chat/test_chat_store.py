"""Messages, inboxes, identities and chats in a store; every engine."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from unittest import mock

import pytest
from chat_kit import START_MS, Shop, everything, numbered
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topicd.errors import Conflict, InvalidRequest
from topicd.shards.chat import changes, hlc, identity, inbox, keys, messages, retention
from topicd.shards.chat.members import xor
from topicd.shards.chat.names import Names
from topicd.shards.chat.operations import Clean, Entry, PutIdentity, Retain, Send
from topicd.shards.chat.rows import InboxEntry, Message
from topicd.shards.chat.store import (
    CHATS_META,
    DEFAULT,
    IDENTITY,
    MESSAGES,
    SEEN_IDENTITY,
    SEEN_MSG,
    TABLES,
    USER_INBOX,
    MemoryStore,
    RocksStore,
    Store,
    Writes,
)
from topicd.shards.chat.view import View


@pytest.fixture(params=["rocks", "memory"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    store: Store = RocksStore(tmp_path / "rocks").open() if request.param == "rocks" else MemoryStore()
    yield Shop(store)
    store.close()


def texts(shop: Shop, chat: str, after: str = "", limit: int = 50) -> tuple[list[str], str]:
    page = messages.page(shop.store, keys.chat_id(chat), after, limit, shop.view.cutoff_ms)
    return [message.body for _, message in page.items], page.next


def test_S01_all_tables_are_there_and_every_one_can_be_counted(shop: Shop) -> None:
    shop.send("room", "hello", "ann")
    shop.identity("ann", b"key")
    shop.send("@bob", "hi", "ann")
    counts = {table.name: len(shop.rows(table)) for table in TABLES}
    assert counts == {
        "default": 7,  # applied, two places, the names of room, ann and bob, and of no more
        "messages": 2,
        "seen_msg": 2,
        "chats_meta": 2,
        "user_inbox": 3,
        "members": 1,
        "user_read_progress": 2,
        "identity": 1,
        "seen_member": 1,
        "seen_identity": 1,
    } | {"default": counts["default"]}
    assert counts["default"] == 6


def test_S02_keys_of_two_chats_are_grouped_and_rise_inside(shop: Shop) -> None:
    for number in range(10):
        shop.send("one" if number % 3 else "two", str(number), "ann")
    found = [keys.parse_message_key(key) for key, _ in shop.rows(MESSAGES)]
    assert found == sorted(found)
    chats = [key.chat for key in found]
    assert chats == sorted(chats)
    assert sum(a != b for a, b in pairwise(chats)) == 1


def test_S05_a_message_is_three_writes_of_one_batch(shop: Shop) -> None:
    batches: list[Writes] = []
    write = shop.store.write
    shop.store.write = lambda writes: (batches.append(writes), write(writes))[1]  # type: ignore[method-assign, func-returns-value]
    shop.send("room", "hello", "ann")
    (batch,) = batches
    assert all(len(batch.rows[table]) == 1 for table in (MESSAGES, SEEN_MSG, CHATS_META))
    assert keys.APPLIED in batch.rows[DEFAULT]
    assert shop.view.metas.get(keys.chat_id("room")).last_seq == 1


def test_S06_one_id_is_found_three_ways(shop: Shop) -> None:
    from topicd.shards.chat.domains import BY_NAME

    sent = shop.send("room", "hello", "ann")
    value = shop.store.get(SEEN_MSG, sent.msg_id)
    assert value is not None
    assert shop.store.get(MESSAGES, value) is not None
    assert BY_NAME["messages"].bucket(shop.store, keys.bucket_of(sent.msg_id)) == [sent.msg_id]
    assert hlc.physical_ms(keys.stamp_of_seen(value)) == START_MS


def test_S07_a_known_id_writes_nothing(shop: Shop) -> None:
    first = shop.send("room", "hello", "ann", msg_id=b"\1" * 32)
    before = {name: rows for name, rows in everything(shop).items() if name != "default"}
    again = shop.send("room", "hello", "ann", msg_id=b"\1" * 32)
    assert first.seq == 1
    assert again == (b"\1" * 32, 0, "")
    assert {name: rows for name, rows in everything(shop).items() if name != "default"} == before


def test_S07_an_id_is_known_whether_it_is_in_the_store_the_batch_or_the_entry(shop: Shop) -> None:
    def message(number: int) -> Send:
        fields = (bytes([number]) * 32, keys.chat_id("room"), keys.user_id("ann"), shop.clock.stamp(), 1, "x")
        return Send(Message(*fields, b"", b"", "room", "ann"))

    shop.do(message(1), message(2))
    entries = [
        (2, Entry(START_MS, [message(2), message(3), message(3), message(4)])),
        (3, Entry(START_MS, [message(4), message(1), message(5)])),
    ]
    found = [one.seq for outcomes in shop.view.apply(entries).outcomes for one in outcomes]
    assert found == [0, 3, 0, 4, 0, 0, 5]
    assert len(shop.rows(MESSAGES)) == len(shop.rows(SEEN_MSG)) == 5


def test_S08_the_blob_of_the_newest_time_wins_whatever_the_order(shop: Shop) -> None:
    chat = keys.dm_id(keys.user_id("ann"), keys.user_id("bob"))
    shop.send("@bob", "new", "ann", stamp=hlc.pack(START_MS + 9, 0), blob=b"new")
    shop.send("@bob", "old", "ann", stamp=hlc.pack(START_MS, 0), blob=b"old")
    meta = shop.view.metas.get(chat)
    assert (meta.identity, meta.preview, meta.last_seq, meta.last_msg_ts) == (b"new", "new", 2, START_MS + 9)


def test_S08_a_blob_of_more_than_128_bytes_is_refused() -> None:
    from topicd.shards.chat.rows import Kind, Message

    one, other = keys.user_id("ann"), keys.user_id("bob")
    made = Message(bytes(32), keys.dm_id(one, other), one, 1, int(Kind.DM), "x", other, bytes(129), "", "")
    with pytest.raises(InvalidRequest, match="128"):
        messages.checked(made)


def test_S08_the_hash_is_the_xor_of_the_active_members(shop: Shop) -> None:
    for user in ("ann", "bob", "cid"):
        shop.add("room", user)
    shop.remove("room", "bob")
    expected = int.from_bytes(keys.user_id("ann"), "big") ^ int.from_bytes(keys.user_id("cid"), "big")
    meta = shop.view.metas.get(keys.chat_id("room"))
    assert int.from_bytes(meta.membership_hash, "big") == expected
    assert meta.membership_hash == xor(meta.members)


def test_S09_an_inbox_is_ordered_by_the_last_message_and_previews_have_80_characters(shop: Shop) -> None:
    for chat in ("one", "two", "three"):
        shop.send(chat, "x" * 79 + "äöü", "ann")
        shop.now_ms += 1
    shop.send("one", "again", "ann")
    rows = inbox.page(shop.store, keys.user_id("ann"), "", 50).rows
    assert [row.entry.chat for row in rows] == [keys.chat_id(name) for name in ("one", "three", "two")]
    assert rows[1].entry.preview == "x" * 79 + "ä"
    assert rows[0].entry.preview == "again"


def test_S10_a_hundred_messages_leave_one_row_per_member(shop: Shop) -> None:
    for user in ("ann", "bob", "cid"):
        shop.add("room", user)
    for number in range(100):
        shop.send("room", str(number), "ann")
    rows = shop.rows(USER_INBOX)
    assert sorted(key[:20] for key, _ in rows) == sorted(keys.user_id(user) for user in ("ann", "bob", "cid"))
    assert {InboxEntry.unpack(value).preview for _, value in rows} == {"99"}


def test_S11_a_thousand_chats_are_paged_without_repetition_and_unread_counts(shop: Shop) -> None:
    for number in range(1_000):
        shop.add(f"room {number}", "bob")
        shop.now_ms += 1
        shop.send(f"room {number}", "x", "bob")
    shop.add("room 5", "ann")
    for _ in range(3):
        shop.send("room 5", "y", "ann")
    shop.mark("room 5", 2, "bob")
    found, after = [], ""
    while True:
        page = inbox.page(shop.store, keys.user_id("bob"), after, 70)
        found += page.rows
        after = page.next
        if not after:
            break
    assert len({row.entry.chat for row in found}) == len(found) == 1_000
    assert [row.entry.last_ts for row in found] == sorted((row.entry.last_ts for row in found), reverse=True)
    assert (found[0].entry.last_seq, found[0].read_seq, found[0].unread) == (4, 2, 2)


def test_S12_the_row_of_a_removed_member_goes_and_the_tombstone_stays(shop: Shop) -> None:
    from chat_kit import member_of

    shop.send("room", "hello", "ann")
    shop.add("room", "bob")
    assert len(inbox.page(shop.store, keys.user_id("bob"), "", 9).rows) == 1
    shop.remove("room", "bob")
    assert inbox.page(shop.store, keys.user_id("bob"), "", 9).rows == []
    row = member_of(shop, "room", "bob")
    assert row is not None
    assert not row.active


def test_S13_pages_of_seven_give_all_hundred_once(shop: Shop) -> None:
    for number in range(100):
        shop.send("room", str(number), "ann")
    found, after, pages = [], "", 0
    while True:
        part, after = texts(shop, "room", after, 7)
        found += part
        pages += 1
        if not after:
            break
    assert found == [str(number) for number in range(100)]
    assert pages == 15


def test_S13_a_page_stays_in_its_chat_and_begins_behind_the_last_seq(shop: Shop) -> None:
    from topicd.shards.chat import cursors

    shop.send("room", "first", "ann", stamp=hlc.pack(START_MS, 0))
    shop.send("room", "second", "ann", stamp=hlc.pack(START_MS, 1))
    shop.send("other", "not this one", "ann")
    last_of_first = keys.message_key(keys.chat_id("room"), hlc.pack(START_MS, 0), keys.MAX_U32)
    assert texts(shop, "room", cursors.to_text(last_of_first)) == (["second"], "")


def test_pages_also_lead_back_from_the_newest(shop: Shop) -> None:
    for number in range(10):
        shop.send("room", str(number), "ann")
    chat, before, found = keys.chat_id("room"), "", []
    while True:
        page = messages.page_back(shop.store, chat, before, 4, 0)
        found = [message.body for _, message in page.items] + found
        before = page.next
        if not before:
            break
    assert found == [str(number) for number in range(10)]


def test_S14_progress_never_goes_back(shop: Shop) -> None:
    shop.add("room", "bob")
    for _ in range(10):
        shop.send("room", "x", "bob")
    shop.add("room", "ann")
    assert shop.mark("room", 10, "ann") == 10
    assert shop.mark("room", 5, "ann") == 10
    with pytest.raises(Conflict, match="10 messages"):
        shop.mark("room", 11, "ann")


def test_S14_what_was_read_is_known_to_whoever_sends_next(shop: Shop) -> None:
    """Who had read everything has read everything with the own message, too; nobody else has."""
    shop.send("room", "1", "ann")
    shop.add("room", "bob")
    shop.send("room", "2", "bob")
    unread = lambda user: inbox.page(shop.store, keys.user_id(user), "", 10).rows[0].unread  # noqa: E731
    assert (unread("ann"), unread("bob")) == (1, 2)
    shop.mark("room", 2, "bob")
    shop.send("room", "3", "bob")
    assert (unread("ann"), unread("bob")) == (2, 0)


def test_S19_the_later_identity_stays_and_is_read_without_its_time(shop: Shop) -> None:
    assert shop.identity("ann", b"new", stamp=hlc.pack(START_MS, 5))
    assert not shop.identity("ann", b"old", stamp=hlc.pack(START_MS, 4))
    assert not shop.identity("ann", b"new", stamp=hlc.pack(START_MS, 5))
    ((user, value),) = shop.rows(IDENTITY)
    assert (user, value[identity.STAMP :]) == (keys.user_id("ann"), b"new")
    assert [user for _, user in shop.rows(SEEN_IDENTITY)] == [keys.user_id("ann")]


def test_S19_1025_bytes_are_refused_and_1024_are_not(shop: Shop) -> None:
    assert shop.identity("ann", bytes(1_024))
    with pytest.raises(InvalidRequest, match="1024"):
        shop.do(PutIdentity(keys.user_id("bob"), shop.clock.stamp(), bytes(1_025), ""))


def test_S23_only_what_is_behind_the_cutoff_remains(shop: Shop) -> None:
    cutoff = START_MS + 100
    for ms in (cutoff - 1, cutoff, cutoff + 1):
        for logical in (0, hlc.MAX_LOGICAL):
            shop.send("room", str(ms - cutoff), "ann", stamp=hlc.pack(ms, logical))
    shop.now_ms = cutoff + 50
    assert shop.do(Retain(cutoff)) == [cutoff]
    assert texts(shop, "room") == (["1", "1"], "")  # hidden before anything is deleted
    steps = 0
    while retention.is_cleaning(shop.store):
        shop.do(Clean(2))
        steps += 1
    assert steps > 3
    assert len(shop.rows(MESSAGES)) == len(shop.rows(SEEN_MSG)) == 2
    assert texts(shop, "room") == (["1", "1"], "")
    with pytest.raises(Conflict, match="older than"):
        shop.send("room", "late", "ann", stamp=hlc.pack(cutoff, 7))


def test_S23_nobody_is_shown_the_words_of_a_message_behind_the_cutoff(shop: Shop) -> None:
    """Also before its row is cleaned: the inbox keeps the beginning of the last message."""
    shop.send("room", "secret", "ann")
    ann, names = keys.user_id("ann"), Names(shop.view)
    (row,) = inbox.page(shop.store, ann, "", 9).rows
    assert names.row(ann, row)["preview"] == "secret"
    shop.do(Retain(START_MS))
    assert names.row(ann, row)["preview"] == ""


def test_a_chat_that_was_made_by_its_id_has_a_name_once_somebody_says_it(shop: Shop) -> None:
    shop.send(keys.chat_id("room").hex(), "x", "ann")
    assert Names(shop.view).chat_name(keys.chat_id("room")) == ""
    shop.send("room", "y", "ann")
    assert Names(shop.view).chat_name(keys.chat_id("room")) == "room"


def test_S23_cleaning_goes_on_where_a_crash_stopped_it(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "rocks").open()
    shop = Shop(store)
    for number in range(50):
        shop.send(f"room {number % 5}", str(number), "ann")
    shop.now_ms += 10
    shop.do(Retain(shop.now_ms - 5))
    shop.do(Clean(3))
    store.close()
    shop = Shop(RocksStore(tmp_path / "rocks").open(), shop.now_ms)
    assert retention.is_cleaning(shop.store)
    while retention.is_cleaning(shop.store):
        shop.do(Clean(3))
    assert shop.rows(MESSAGES) == shop.rows(SEEN_MSG) == []
    assert [entry.preview for entry in (InboxEntry.unpack(v) for _, v in shop.rows(USER_INBOX))] == [""] * 5
    shop.store.close()


def test_S22_an_index_row_without_a_value_counts_as_the_oldest(shop: Shop) -> None:
    legacy = Writes()
    legacy.put(SEEN_MSG, b"\7" * 32, b"")
    shop.store.write(legacy)
    assert retention.aged(shop.store, 0, 10) == [b"\7" * 32]
    shop.do(Retain(1))
    while retention.is_cleaning(shop.store):
        shop.do(Clean(10))
    assert shop.rows(SEEN_MSG) == []


def test_S24_operations_of_one_entry_are_applied_in_their_order(shop: Shop) -> None:
    from topicd.shards.chat.operations import Add, Remove, Send
    from topicd.shards.chat.rows import Kind, Message

    chat, ann, bob = keys.chat_id("room"), keys.user_id("ann"), keys.user_id("bob")

    def said(user: bytes, number: int) -> Send:
        made = Message(bytes([number]) * 32, chat, user, shop.clock.stamp(), int(Kind.GROUP), "x", b"", b"", "", "")
        return Send(made)

    outcomes = shop.do(
        said(ann, 1),
        said(bob, 2),
        Add(chat, bob, 0, shop.clock.stamp(), ann, 1, "room", "bob"),
        said(bob, 3),
        Remove(chat, bob, shop.clock.stamp(), ann, "room", "bob"),
        said(bob, 4),
    )
    assert [getattr(one, "code", "ok") for one in outcomes] == ["ok", "forbidden", "ok", "ok", "ok", "forbidden"]
    assert inbox.page(shop.store, bob, "", 9).rows == []


commands = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("dm"), st.integers(0, 3), st.integers(0, 3)),
        st.tuples(st.just("add"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("identity"), st.integers(0, 3), st.integers(0, 9)),
        st.tuples(st.just("mark"), st.integers(0, 2), st.integers(0, 3)),
        st.tuples(st.just("retain"), st.integers(0, 5), st.just(0)),
        st.tuples(st.just("clean"), st.integers(1, 4), st.just(0)),
    ),
    max_size=40,
)


def run(shop: Shop, what: tuple[str, int, int]) -> None:
    from topicd.errors import TopicdError

    kind, one, two = what
    users = numbered(4)
    shop.now_ms += 1
    try:
        if kind == "send":
            shop.send(f"room {one}", f"text {two}", users[two])
        elif kind == "dm":
            shop.send(f"@{users[one]}", "psst", users[two])
        elif kind == "add":
            shop.add(f"room {one}", users[two], role=one % 2)
        elif kind == "remove":
            shop.remove(f"room {one}", users[two])
        elif kind == "identity":
            shop.identity(users[one], bytes([two + 1]))
        elif kind == "mark":
            shop.mark(f"room {one}", 1, users[two])
        elif kind == "retain":
            shop.do(Retain(shop.now_ms - one * 3))
        else:
            shop.do(Clean(one))
    except TopicdError:
        pass


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(commands, st.integers(1, 7), st.sampled_from([1, 2, 50_000]))
def test_the_same_log_gives_the_same_bytes_however_it_is_cut_and_whatever_is_kept_in_memory(
    steps: list[tuple[str, int, int]], cut: int, kept: int
) -> None:
    shop = Shop()
    for step in steps:
        run(shop, step)
    again = View(MemoryStore(), topic_id=7)
    entries = [(seq, Entry.unpack(raw)) for seq, raw in shop.log]
    with mock.patch.object(changes, "_METAS_KEPT", kept):
        for at in range(0, len(entries), cut):
            again.apply(entries[at : at + cut])
    copied = {table.name: list(again.store.scan(table)) for table in TABLES}
    assert copied == everything(shop)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(commands)
def test_each_active_member_has_exactly_one_inbox_row(steps: list[tuple[str, int, int]]) -> None:
    from topicd.shards.chat.rows import ChatMeta

    shop = Shop()
    for step in steps:
        run(shop, step)
    expected = set()
    for chat, raw in shop.rows(CHATS_META):
        meta = ChatMeta.unpack(raw)
        expected |= {(user, meta.last_ts, chat) for user in meta.users}
    assert {keys.parse_inbox_key(key) for key, _ in shop.rows(USER_INBOX)} == expected


@pytest.mark.fault("CHT-06")
def test_S05_after_a_crash_all_rows_of_a_batch_are_there_or_none(tmp_path: Path) -> None:
    """The process dies with what is in memory; the rows that are left are those of one moment."""
    import subprocess
    import sys

    code = f"""
import os, sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from pathlib import Path
from unittest import mock
from chat_kit import Shop
from topicd.shards.chat.store import RocksStore
shop = Shop(RocksStore(Path({str(tmp_path / "rocks")!r})).open())
for number in range(30):
    shop.send(f"room {{number % 3}}", str(number), "ann")
shop.store.flush()
for number in range(30):
    shop.send(f"room {{number % 3}}", str(number), "ann")
os.kill(os.getpid(), 9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    store = RocksStore(tmp_path / "rocks").open()
    view = View(store)
    assert view.applied == 30
    assert [len(list(store.scan(table))) for table in (MESSAGES, SEEN_MSG)] == [30, 30]
    assert sum(view.metas.get(keys.chat_id(f"room {number}")).last_seq for number in range(3)) == 30
    store.close()


def test_settling_makes_everything_durable_while_others_have_their_turns(tmp_path: Path) -> None:
    """What a kill behind it leaves is the files as they are: all tables at one moment, nothing missing."""

    async def scene() -> None:
        shop = Shop(RocksStore(tmp_path / "rocks").open())
        for number in range(300):
            shop.send(f"room {number % 5}", "x" * 3_000, "ann")
        store = shop.store
        assert isinstance(store, RocksStore)
        assert store.figures()["memtable_bytes"] > 500_000
        turns = 0
        settling = asyncio.ensure_future(store.settle())
        while not settling.done():
            turns += 1
            await asyncio.sleep(0)
        await settling
        assert turns > 1
        shutil.copytree(tmp_path / "rocks", tmp_path / "killed")
        found = RocksStore(tmp_path / "killed").open()
        for table in TABLES:
            assert list(found.scan(table)) == list(store.scan(table))
        found.close()
        # It takes as much as before: the bound was lifted again.
        shop.send("room 1", "more", "ann")
        await store.settle()
        store.close()

    asyncio.run(scene())
