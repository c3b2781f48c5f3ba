"""Entries of the log that nobody can understand: passed over, told, counted, and everything else as if they were not
there.
"""

from __future__ import annotations

import logging
from typing import Any

import msgpack
import pytest
from chat_kit import Shop, everything
from hypothesis import given
from hypothesis import strategies as st

from topicd.errors import Internal
from topicd.shards.chat import inbox, keys, messages
from topicd.shards.chat.operations import CODES, Add, Clean, Entry, Mark, Retain, Send, Unreadable, unpacked
from topicd.shards.chat.rows import Message
from topicd.shards.chat.store import DEFAULT, MemoryStore
from topicd.shards.chat.view import View, unreadable_of

ROOM, ANN = keys.chat_id("room"), keys.user_id("ann")
GOOD = (bytes(32), ROOM, ANN, 1 << 16, 1, "text", b"", b"", "room", "ann")


def message_with(**changed: Any) -> list[Any]:
    fields = dict(zip(Message._fields, GOOD, strict=True)) | changed
    return [CODES[Send], list(fields.values())]


NONSENSE = [
    b"",
    b"garbage",
    b"\xc1",
    msgpack.packb("text"),
    msgpack.packb([1, 2]),
    msgpack.packb([2, 0, []]),
    msgpack.packb([1, "now", []]),
    msgpack.packb([1, -1, []]),
    msgpack.packb([1, 0, 7]),
    msgpack.packb([1, 0, [[99, 1]]]),
    msgpack.packb([1, 0, [[[], 1]]]),
    msgpack.packb([1, 0, [[CODES[Mark], ANN, ROOM]]]),
    msgpack.packb([1, 0, [[CODES[Mark], ANN, b"short", 1]]]),
    msgpack.packb([1, 0, [[CODES[Mark], ANN, ROOM, 1 << 32]]]),
    msgpack.packb([1, 0, [[CODES[Mark], ANN, ROOM, True]]]),
    msgpack.packb([1, 0, [[CODES[Retain], 1 << 60]]]),
    msgpack.packb([1, 0, [[CODES[Clean], "all"]]]),
    msgpack.packb([1, 0, [[CODES[Send], 5]]]),
    msgpack.packb([1, 0, [[CODES[Send], []]]]),
    msgpack.packb([1, 0, [message_with(chat=b"x")]]),
    msgpack.packb([1, 0, [message_with(sender="ann")]]),
    msgpack.packb([1, 0, [message_with(stamp=-1)]]),
    msgpack.packb([1, 0, [message_with(kind=3)]]),
    msgpack.packb([1, 0, [message_with(body=b"bytes")]]),
    msgpack.packb([1, 0, [message_with(chat_name=7)]]),
    msgpack.packb([1, 0, [message_with(peer="")]]),
]


def filled() -> Shop:
    shop = Shop(MemoryStore())
    shop.send("room", "hello", "ann")
    shop.add("room", "bob")
    return shop


def without_note(shop: Shop) -> dict[str, list[tuple[bytes, bytes]]]:
    found = everything(shop)
    found["default"] = [row for row in found["default"] if row[0] not in (keys.UNREADABLE, keys.APPLIED)]
    return found


@pytest.mark.parametrize("raw", NONSENSE)
@pytest.mark.fault("CHT-04")
def test_what_is_no_entry_is_passed_over_told_and_noted(raw: bytes, caplog: pytest.LogCaptureFixture) -> None:
    shop = filled()
    before = without_note(shop)
    entry = unpacked(raw)
    assert isinstance(entry, Unreadable)
    with caplog.at_level(logging.ERROR):
        applied = shop.view.apply([(3, entry)])
    assert applied.outcomes == [[]]
    assert shop.view.applied == 3
    assert without_note(shop) == before
    assert unreadable_of(shop.store)[:2] == (1, 3)
    assert [record.seq for record in caplog.records] == [3]  # type: ignore[attr-defined]
    # It goes on as if nothing had been.
    assert shop.send("room", "again", "ann").seq == 2


def test_a_record_without_data_is_one_too() -> None:
    assert isinstance(unpacked(None), Unreadable)
    assert isinstance(unpacked("text"), Unreadable)


@given(st.binary(max_size=60))
def test_whatever_bytes_there_are_there_is_an_answer(raw: bytes) -> None:
    shop = filled()
    before = without_note(shop)
    entry = unpacked(raw)
    assert isinstance(entry, Unreadable) or entry.operations == []
    shop.view.apply([(3, entry)])
    assert without_note(shop) == before


def test_an_entry_that_was_put_into_the_log_can_be_read() -> None:
    shop = filled()
    shop.mark("room", 1, "bob")
    shop.identity("ann", b"key")
    shop.remove("room", "bob")
    shop.do(Retain(5))
    shop.do(Clean(10))
    assert all(isinstance(unpacked(raw), Entry) for _, raw in shop.log)


@pytest.mark.parametrize("packed", [True, False], ids=["packed already", "not yet"])
def test_an_entry_has_the_same_bytes_whether_or_not_its_messages_are_packed_already(packed: bool) -> None:
    message = Message(b"m" * 32, b"c" * 32, b"u" * 20, 77, 1, "hellö", b"", b"", "room", "ann")
    send, mark = Send(message, message.pack() if packed else b""), Mark(b"u" * 20, b"c" * 32, 1)
    raw = Entry(5, [send, mark]).pack()
    assert msgpack.unpackb(raw) == [1, 5, [[1, list(message)], [7, *mark]]]
    assert raw == msgpack.packb([1, 5, [[1, message], [7, *mark]]])
    assert unpacked(raw) == Entry(5, [Send(message), mark])


def test_the_bytes_are_the_same_however_the_log_is_cut() -> None:
    shop = filled()
    log = [(seq, unpacked(raw)) for seq, raw in shop.log]
    log += [(3, unpacked(b"garbage")), (4, Entry(9, [Mark(ANN, ROOM, 1)])), (5, unpacked(b"more"))]
    stores = []
    for size in (1, 2, 5):
        view = View(MemoryStore(), 7)
        for at in range(0, 5, size):
            view.apply(log[at : at + size])
        stores.append(view.store._rows)  # type: ignore[attr-defined]
    assert stores[0] == stores[1] == stores[2]
    assert unreadable_of(view.store)[:2] == (2, 5)


@pytest.mark.fault("CHT-04")
def test_an_entry_that_breaks_whoever_applies_it_is_passed_over_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others of its batch are applied; who asked for it hears of it."""
    shop = filled()
    real = inbox.mark

    def mark(changes: Any, op: Mark) -> int:
        if op.seq == 0:
            raise KeyError("a bug")
        return real(changes, op)

    monkeypatch.setattr(inbox, "mark", mark)

    def say(text: str) -> Send:
        fields = (text.encode().ljust(32), ROOM, ANN, shop.clock.stamp(), 1, text, b"", b"", "room", "ann")
        return Send(Message(*fields))

    eve = keys.user_id("eve")
    add_eve = Add(ROOM, eve, 0, shop.clock.stamp(), b"", 1, "room", "eve")
    entries = [
        (3, Entry(9, [say("before")])),
        (4, Entry(9, [say("with"), add_eve, Mark(ANN, ROOM, 0)])),
        (5, Entry(9, [say("behind"), Mark(ANN, ROOM, 3)])),
    ]
    applied = shop.view.apply(entries)
    first, broken, last = applied.outcomes
    assert first[0].seq == 2
    assert [type(one) for one in broken] == [Internal] * 3
    assert (last[0].seq, last[1]) == (3, 3)
    texts = [one.body for _, one in messages.page(shop.store, ROOM, "", 10, 0).items]
    assert texts == ["hello", "before", "behind"]
    assert unreadable_of(shop.store)[:2] == (1, 4)
    assert sum(len(told.records["messages"]) for told in applied.told) == 2
    # Nothing is taken for stored that was only in that entry.
    assert shop.store.get(DEFAULT, keys.user_name_key(eve)) is None
    shop.do(add_eve)
    assert shop.store.get(DEFAULT, keys.user_name_key(eve)) == b"eve"


def test_what_the_engine_reports_is_not_taken_for_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    shop = filled()

    def refuse(writes: object) -> None:
        raise OSError(5, "the disk")

    monkeypatch.setattr(shop.store, "write", refuse)
    with pytest.raises(OSError, match="the disk"):
        shop.send("room", "lost", "ann")
