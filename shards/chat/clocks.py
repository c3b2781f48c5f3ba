"""The highest hybrid time in a store: where its clock goes on after a start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from topicd.shards.chat.digests import PIECE
from topicd.shards.chat.identity import Identity
from topicd.shards.chat.rows import ChatMeta, unpack_member
from topicd.shards.chat.store import CHATS_META, IDENTITY, MEMBERS, Store, Table


async def highest_stamp(store: Store) -> int:
    """By chat, member and identity; messages are not looked at one by one, their chats know the newest. Others have
    their turns meanwhile."""
    highest = 0
    stamps: tuple[tuple[Table, Callable[[bytes], int]], ...] = (
        (CHATS_META, lambda raw: ChatMeta.unpack(raw).last_ts),
        (MEMBERS, lambda raw: max(unpack_member(raw)[1:])),
        (IDENTITY, lambda raw: Identity.from_value(raw).stamp),
    )
    for table, stamp_of in stamps:
        for number, (_, raw) in enumerate(store.scan(table)):
            highest = max(highest, stamp_of(raw))
            if number % PIECE == PIECE - 1:
                await asyncio.sleep(0)
    return highest
