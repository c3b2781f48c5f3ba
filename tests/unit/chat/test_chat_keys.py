"""Ids, keys, hybrid time and cursors of the chat store."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from topicd.errors import InvalidRequest
from topicd.shards.chat import cursors, hlc, keys
from topicd.shards.chat.hlc import HybridClock

ids32 = st.binary(min_size=32, max_size=32)
ids20 = st.binary(min_size=20, max_size=20)
stamps = st.integers(0, hlc.MAX_STAMP)
seqs = st.integers(0, keys.MAX_U32)


@given(ids32, st.lists(st.tuples(stamps, seqs), min_size=2, max_size=8))
def test_S02_message_keys_have_44_bytes_and_rise_inside_a_chat(chat: bytes, places: list[tuple[int, int]]) -> None:
    made = [keys.message_key(chat, stamp, seq) for stamp, seq in places]
    assert {len(key) for key in made} == {44}
    assert [keys.parse_message_key(key)[1:] for key in sorted(made)] == sorted(places)


@given(st.lists(st.tuples(st.integers(0, hlc.MAX_MS), st.integers(0, hlc.MAX_LOGICAL)), min_size=2, max_size=10))
def test_S03_byte_order_is_the_order_of_time(times: list[tuple[int, int]]) -> None:
    packed = [hlc.pack(ms, logical).to_bytes(8, "big") for ms, logical in times]
    assert [(hlc.physical_ms(s), hlc.logical(s)) for s in (int.from_bytes(p, "big") for p in sorted(packed))] == sorted(
        times
    )


def test_S03_65536_messages_of_one_millisecond_roll_over_safely() -> None:
    clock = HybridClock(lambda: 1_000)
    made = [clock.stamp() for _ in range(65_536 + 10)]
    assert made == sorted(set(made))
    assert hlc.physical_ms(made[65_535]) == 1_000
    assert hlc.logical(made[65_535]) == hlc.MAX_LOGICAL
    assert (hlc.physical_ms(made[65_536]), hlc.logical(made[65_536])) == (1_001, 0)


@given(st.lists(st.one_of(st.integers(0, 1 << 41), st.tuples(stamps)), max_size=30))
def test_S03_a_clock_never_goes_back_whatever_the_wall_does(turns: list[int | tuple[int]]) -> None:
    now = [0]
    clock = HybridClock(lambda: now[0])
    highest = 0
    for turn in turns:
        if isinstance(turn, tuple):
            if turn[0] < hlc.MAX_STAMP - 100:
                clock.saw(turn[0])
                highest = max(highest, turn[0])
            continue
        now[0] = turn
        stamp = clock.stamp()
        assert stamp > highest
        highest = stamp


@pytest.mark.parametrize("width", [0, 19, 21, 31, 33, 64])
def test_S04_ids_of_another_width_are_refused_everywhere(width: int) -> None:
    wrong, chat, user = bytes(width), bytes(32), bytes(20)
    for make in (
        lambda: keys.message_key(wrong, 1, 1),
        lambda: keys.inbox_key(wrong, 1, chat),
        lambda: keys.inbox_key(user, 1, wrong),
        lambda: keys.member_key(wrong, user),
        lambda: keys.member_key(chat, wrong),
        lambda: keys.progress_key(wrong, chat),
        lambda: keys.progress_key(user, wrong),
        lambda: keys.dm_id(wrong, user),
        lambda: keys.parse_message_key(wrong),
        lambda: keys.parse_inbox_key(wrong),
    ):
        with pytest.raises(InvalidRequest):
            make()


@given(st.lists(st.tuples(ids20, stamps, ids32), min_size=2, max_size=8))
def test_S09_an_inbox_key_puts_the_newest_first(rows: list[tuple[bytes, int, bytes]]) -> None:
    made = sorted(keys.inbox_key(*row) for row in rows)
    found = [keys.parse_inbox_key(key) for key in made]
    assert found == sorted(rows, key=lambda row: (row[0], -row[1], row[2]))
    assert all(len(key) == 60 for key in made)


@given(ids32, stamps, seqs)
def test_S13_nothing_lies_between_a_key_and_the_one_after_it(chat: bytes, stamp: int, seq: int) -> None:
    assume((stamp, seq) != (keys.MAX_U64, keys.MAX_U32))  # nothing is behind the last key: the test below
    key = keys.message_key(chat, stamp, seq)
    behind = keys.after(key)
    assert behind is not None
    assert behind > key
    assert int.from_bytes(behind, "big") == int.from_bytes(key, "big") + 1


def test_S13_the_last_seq_is_followed_by_the_next_time_and_the_last_key_by_nothing() -> None:
    chat = bytes(32)
    assert keys.after(keys.message_key(chat, 5, keys.MAX_U32)) == keys.message_key(chat, 6, 0)
    assert keys.after(keys.message_key(chat, keys.MAX_U64, keys.MAX_U32)) is None


@given(ids32, stamps, seqs)
def test_S13_a_cursor_leads_back_to_its_key(chat: bytes, stamp: int, seq: int) -> None:
    key = keys.message_key(chat, stamp, seq)
    assert cursors.message_cursor(cursors.to_text(key), chat) == key


@pytest.mark.parametrize("cursor", ["", "x", "ü", "AAAA", "A" * 58, "A" * 60, "=" * 59])
def test_S13_a_cursor_of_somebody_s_own_making_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="none that this store has given"):
        cursors.message_cursor(cursor, bytes(32))


def test_S13_a_cursor_of_another_chat_is_refused() -> None:
    text = cursors.to_text(keys.message_key(bytes(32), 1, 1))
    with pytest.raises(InvalidRequest, match="another chat"):
        cursors.message_cursor(text, b"\1" * 32)


@given(ids20, ids20)
def test_a_chat_of_two_users_has_one_id_whoever_asks(one: bytes, other: bytes) -> None:
    assert keys.dm_id(one, other) == keys.dm_id(other, one)


def test_names_stand_for_ids_and_hex_digits_are_ids() -> None:
    assert len(keys.chat_id("kitchen")) == 32
    assert len(keys.user_id("ann")) == 20
    assert keys.chat_id("ab" * 32) == bytes.fromhex("ab" * 32)
    assert keys.user_id("cd" * 20) == keys.user_id("CD" * 20) == bytes.fromhex("cd" * 20)
    assert keys.chat_id("aB" * 32) == keys.chat_id("AB" * 32) == keys.chat_id("ab" * 32)
    assert not keys.is_chat_name("AB" * 32, keys.chat_id("AB" * 32))
    assert keys.is_chat_name("kitchen", keys.chat_id("kitchen"))
    assert not keys.is_chat_name("kitchen", keys.chat_id("cellar"))


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", "\x1b[2J"])
def test_names_that_cannot_be_shown_are_refused(name: str) -> None:
    for make in (keys.chat_id, keys.user_id):
        with pytest.raises(InvalidRequest):
            make(name)
