"""What is too old to be kept. Promise: from the moment a cutoff is applied no message at or below it is shown, taken in
or given to another store; the rows themselves go step by step, and a crash between two steps loses nothing.

Steps are operations of the log like all others, so that applying it again leaves the same rows. First the messages of
each chat go by one range deletion, then their ids and places.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgpack

from topicd.shards.chat import hlc, keys
from topicd.shards.chat.changes import Changes
from topicd.shards.chat.rows import ChatMeta
from topicd.shards.chat.store import CHATS_META, DEFAULT, MESSAGES, SEEN_MSG, Store

STEP = 2_000  # rows of one step


class Cleaned(NamedTuple):
    chats: int
    messages: int
    done: bool


def cutoff_of(store: Store | Changes) -> int:
    raw = store.get(DEFAULT, keys.CUTOFF)
    return keys.parse_u64(raw) if raw else 0


def is_cleaning(store: Store) -> bool:
    return store.get(DEFAULT, keys.CLEANING) is not None


def retain(changes: Changes, cutoff_ms: int) -> int:
    """The cutoff that holds then; it never goes back."""
    now = cutoff_of(changes)
    if cutoff_ms > now:
        changes.put(DEFAULT, keys.CUTOFF, keys.u64(cutoff_ms))
        changes.put(DEFAULT, keys.CLEANING, msgpack.packb(["chats", b""]))
    return max(now, cutoff_ms)


def clean(changes: Changes, store: Store, limit: int) -> Cleaned:
    """One step behind the cutoff; nothing if there is nothing to do."""
    raw = store.get(DEFAULT, keys.CLEANING)
    if raw is None:
        return Cleaned(0, 0, True)
    phase, start = msgpack.unpackb(raw)
    cutoff_ms = cutoff_of(store)
    if phase == "chats":
        count, last = _clean_chats(changes, store, start, limit, cutoff_ms)
        following = ["chats", last + b"\0"] if last else ["ids", b""]
        changes.put(DEFAULT, keys.CLEANING, msgpack.packb(following))
        return Cleaned(count, 0, False)
    count, last = _clean_ids(changes, store, start, limit, cutoff_ms)
    if last:
        changes.put(DEFAULT, keys.CLEANING, msgpack.packb(["ids", last + b"\0"]))
    else:
        changes.delete(DEFAULT, keys.CLEANING)
    return Cleaned(0, count, not last)


def _clean_chats(changes: Changes, store: Store, start: bytes, limit: int, cutoff_ms: int) -> tuple[int, bytes]:
    """(how many, the last one if there may be more)."""
    count = 0
    for chat, raw in store.scan(CHATS_META, start):
        meta = ChatMeta.unpack(raw)
        delete_messages(changes, chat, cutoff_ms)
        if meta.last_ts and meta.last_msg_ts <= cutoff_ms and meta.preview:
            changes.set_meta(chat, meta._replace(preview=""))
        count += 1
        if count == limit:
            return count, chat
    return count, b""


def delete_messages(changes: Changes, chat: bytes, cutoff_ms: int) -> None:
    """Every message of a chat whose milliseconds are at or below the cutoff, whatever is behind them."""
    end = keys.message_key(chat, hlc.pack(cutoff_ms + 1, 0), 0)
    changes.writes.delete_range(MESSAGES, keys.message_key(chat, 0, 0), end)


def _clean_ids(changes: Changes, store: Store, start: bytes, limit: int, cutoff_ms: int) -> tuple[int, bytes]:
    count = 0
    for looked, (msg_id, value) in enumerate(store.scan(SEEN_MSG, start), 1):
        if hlc.physical_ms(keys.stamp_of_seen(value)) <= cutoff_ms:
            changes.delete(SEEN_MSG, msg_id)
            if len(value) == keys.MESSAGE_KEY:
                place = keys.parse_message_key(value)
                changes.delete(DEFAULT, keys.arrival_key(place.chat, place.seq))
            count += 1
        if looked == limit:
            return count, msg_id
    return count, b""


def aged(store: Store, cutoff_ms: int, limit: int) -> list[bytes]:
    """Ids of messages at or below a cutoff."""
    found: list[bytes] = []
    for msg_id, value in store.scan(SEEN_MSG):
        if hlc.physical_ms(keys.stamp_of_seen(value)) <= cutoff_ms:
            found.append(msg_id)
            if len(found) == limit:
                break
    return found


class Plan(NamedTuple):
    """What a cutoff would remove."""

    chats: int
    messages: int
    bytes: int


async def plan(store: Store, cutoff_ms: int) -> Plan:
    """Looks at every message, and lets others have their turns."""
    chats: set[bytes] = set()
    messages = size = 0
    for number, (key, value) in enumerate(store.scan(MESSAGES)):
        if number % STEP == STEP - 1:
            await asyncio.sleep(0)
        place = keys.parse_message_key(key)
        if hlc.physical_ms(place.stamp) <= cutoff_ms:
            chats.add(place.chat)
            messages += 1
            size += len(value)
    return Plan(len(chats), messages, size)
