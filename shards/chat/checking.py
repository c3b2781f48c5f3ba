"""The store against its log. Promise: a store that is made anew from base and log has the same rows, byte by byte;
verify says of each row that differs what it is and what it should be; rebuild puts the new store in the place of the
old one only when it is whole.

The base is a checkpoint of the store at the seq from which the log begins; without one the log begins at 1.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from topicd.disk.fs import RealFs
from topicd.errors import FormatError, StorageCorrupt
from topicd.shards.chat.log import OperationLog, Place
from topicd.shards.chat.store import TABLES, RocksStore, Row, Store, Table, Tuning
from topicd.shards.chat.view import View

SHOWN = 20  # differences
_SMALL = Tuning(cache_bytes=16 << 20, memtable_bytes=32 << 20)
_BASE = re.compile(r"base-(\d+)")
_PIECE = 2_000


class Difference(NamedTuple):
    table: str
    key: bytes
    stored: bytes | None
    log: bytes | None


def base_of(where: Path) -> tuple[int, Path | None]:
    """(seq, directory) of the newest base."""
    found = [(int(match[1]), path) for path in where.glob("base-*") if (match := _BASE.fullmatch(path.name))]
    return max(found, default=(0, None))


async def replayed(oplog: OperationLog, where: Path, work: Path, up_to: int, *, over_holes: bool = False) -> RocksStore:
    """A store of its own in `work`, made of base and log. The caller closes and removes it."""
    shutil.rmtree(work, ignore_errors=True)
    seq = begin_from_base(where, work)
    store = RocksStore(work, _SMALL).open()
    try:
        if seq != View(store).applied:
            raise FormatError(f"the base of seq {seq} holds seq {View(store).applied}")
        await go_on(oplog, store, up_to, over_holes=over_holes)
    except BaseException:
        store.close()
        shutil.rmtree(work, ignore_errors=True)
        raise
    return store


def begin_from_base(where: Path, work: Path) -> int:
    """Puts a copy of the base there, if there is one; its seq."""
    seq, base = base_of(where)
    if base is not None:
        source = RocksStore(base, _SMALL).open()
        try:
            source.checkpoint(work)
        finally:
            source.close()
    return seq


def check_owner(view: View, place: Place) -> None:
    if view.applied and view.topic_id != place.topic_id:
        raise FormatError(
            f"the chat store was made by another log, topic {view.topic_id}, not {place.topic_id}: "
            "move it away, or bring that topic back"
        )


async def go_on(oplog: OperationLog, store: RocksStore, up_to: int, *, over_holes: bool = False) -> None:
    """Applies what the log has more than the store."""
    place = await oplog.place()
    view = View(store, place.topic_id)
    check_owner(view, place)
    async for entries in oplog.read(view.applied, up_to, over_holes=over_holes):
        view.apply(entries)
        await asyncio.sleep(0)


async def differences(one: Store, other: Store) -> tuple[int, list[Difference]]:
    """(rows that were compared, the first differences) of all tables."""
    rows = 0
    found: list[Difference] = []
    for table in TABLES:
        for key, left, right in _side_by_side(table, one.scan(table), other.scan(table)):
            rows += 1
            if left != right and len(found) < SHOWN:
                found.append(Difference(table.name, key, left, right))
            if rows % _PIECE == 0:
                await asyncio.sleep(0)
    return rows, found


def _side_by_side(
    table: Table, one: Iterator[Row], other: Iterator[Row]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    """(key, value here, value there), in the order of keys."""
    left, right = next(one, None), next(other, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            yield left[0], left[1], None
            left = next(one, None)
        elif left is None or right[0] < left[0]:
            yield right[0], None, right[1]
            right = next(other, None)
        else:
            yield left[0], left[1], right[1]
            left, right = next(one, None), next(other, None)


async def verify(oplog: OperationLog, store: RocksStore, applied: int, where: Path, taken: Path) -> dict[str, Any]:
    """`taken`: a checkpoint of the store at `applied`; it is removed."""
    mine = RocksStore(taken, _SMALL).open()
    try:
        made = await replayed(oplog, where, where / "verify", applied)
        try:
            rows, found = await differences(mine, made)
        finally:
            made.close()
            shutil.rmtree(where / "verify", ignore_errors=True)
    finally:
        mine.close()
        shutil.rmtree(taken, ignore_errors=True)
    shown = [
        {
            "table": one.table,
            "key": one.key.hex(),
            "stored": None if one.stored is None else one.stored.hex(),
            "log": None if one.log is None else one.log.hex(),
        }
        for one in found
    ]
    return {"seq": applied, "rows": rows, "differences": shown}


async def is_whole(oplog: OperationLog, where: Path, up_to: int) -> bool:
    """Can the log be read from the base on?"""
    try:
        async for _ in oplog.read(base_of(where)[0], up_to):
            await asyncio.sleep(0)
    except (FormatError, StorageCorrupt):
        return False
    return True


async def rebase(oplog: OperationLog, store: RocksStore, view: View, still: asyncio.Lock, where: Path) -> int:
    """What is stored becomes the base, and the log forgets what is before it; the seq of that."""
    await store.settle()
    async with still:
        seq = view.applied
        put_base(store, where, seq)
    await oplog.forget(seq + 1)
    return seq


def put_base(store: RocksStore, where: Path, seq: int) -> None:
    """What is stored now becomes the base; the log may forget what is before it. The caller sees to it that nothing is
    applied meanwhile."""
    if (where / f"base-{seq}").exists():
        return  # what is stored follows from the log up to seq: it is the same
    fresh = where / "base.new"
    store.checkpoint(fresh)
    fs = RealFs()
    fs.rename(fresh, where / f"base-{seq}")
    fs.sync_dir(where)
    for path in where.glob("base-*"):
        if path.name != f"base-{seq}":
            shutil.rmtree(path, ignore_errors=True)
