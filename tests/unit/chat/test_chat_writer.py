"""From a request to its outcome, with a log whose every answer the test gives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from chat_kit import START_MS, in_loop

from topicd.clock import SystemClock
from topicd.errors import ConnectionLost, FormatError, NotReady, StorageFailed, Throttled
from topicd.shards.chat import checking, keys, writer
from topicd.shards.chat.changes import Told
from topicd.shards.chat.log import OperationLog, Place
from topicd.shards.chat.operations import LogEntry, Operation, PutIdentity, unpacked
from topicd.shards.chat.service import Service
from topicd.shards.chat.shard import ChatShard
from topicd.shards.chat.store import IDENTITY, MemoryStore, RocksStore, Writes
from topicd.shards.chat.view import View
from topicd.shards.chat.writer import Writer

TOPIC = 7


class FakeLog:
    """Entries are stored when the test says so, in whatever way."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.asked: list[tuple[bytes, asyncio.Future[int]]] = []
        self.forgot = 0

    def append(self, raw: bytes) -> asyncio.Future[int]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.asked.append((raw, future))
        return future

    def store(self, number: int, *, answered: bool = True) -> None:
        raw, future = self.asked[number]
        self.entries.append(raw)
        if answered:
            future.set_result(len(self.entries))
        else:
            future.set_exception(ConnectionLost("no answer"))

    async def place(self) -> Place:
        return Place(TOPIC, self.forgot + 1, len(self.entries), 1_000_000)

    async def read(self, after: int, up_to: int) -> AsyncIterator[list[tuple[int, LogEntry]]]:
        if after < self.forgot:
            raise FormatError("forgotten")
        yield [(seq, unpacked(self.entries[seq - 1])) for seq in range(after + 1, up_to + 1)]

    async def forget(self, before: int) -> None:
        self.forgot = before - 1


class Desk:
    def __init__(self) -> None:
        self.log = FakeLog()
        self.store = MemoryStore()
        self.view = View(self.store, TOPIC)
        self.told: list[Told] = []
        self.writer = Writer(cast(OperationLog, self.log), self.view, SystemClock(), self.told.append)
        self.writer.start()

    def put(self, user: str, number: int) -> asyncio.Future[list[Any]]:
        return self.writer.submit([identity(user, number)])

    def blob(self, user: str) -> bytes | None:
        raw = self.store.get(IDENTITY, keys.user_id(user))
        return raw[8:] if raw else None


def identity(user: str, number: int) -> Operation:
    return PutIdentity(keys.user_id(user), (START_MS << 16) + number, str(number).encode(), user)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@in_loop
async def test_an_operation_is_answered_when_it_is_in_the_log_and_in_the_store() -> None:
    desk = Desk()
    outcome = desk.put("ann", 1)
    seen: list[bytes | None] = []
    outcome.add_done_callback(lambda _: seen.append(desk.blob("ann")))
    await settled()
    assert not outcome.done()
    assert desk.blob("ann") is None
    desk.log.store(0)
    assert await outcome == [True]
    await settled()
    assert seen == [b"1"]
    assert desk.view.applied == 1
    assert [len(told.records["identities"]) for told in desk.told] == [1]


@in_loop
async def test_who_is_told_sees_what_is_written() -> None:
    desk = Desk()
    seen: list[bytes | None] = []
    desk.writer._told = lambda told: seen.append(desk.blob("ann"))
    desk.put("ann", 1)
    desk.log.store(0)
    await settled()
    assert seen == [b"1"]


@in_loop
async def test_entries_are_applied_in_the_order_of_the_log_and_none_is_passed_over() -> None:
    """The answer to the first is lost, though it is stored: it is read back before the second is applied."""
    desk = Desk()
    first, second = desk.put("ann", 1), desk.put("bob", 2)
    desk.log.store(0, answered=False)
    desk.log.store(1)
    with pytest.raises(ConnectionLost):
        await first
    assert await second == [True]
    assert (desk.blob("ann"), desk.blob("bob")) == (b"1", b"2")
    assert desk.view.applied == 2


@in_loop
async def test_an_entry_without_an_answer_is_applied_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_LOOK_AGAIN_S", 0.0)
    desk = Desk()
    first = desk.put("ann", 1)
    desk.log.store(0, answered=False)
    with pytest.raises(ConnectionLost):
        await first
    async with asyncio.timeout(10):
        while desk.view.applied < 1:
            await asyncio.sleep(0)
    assert desk.blob("ann") == b"1"


@in_loop
async def test_an_entry_of_somebody_else_in_between_is_applied_and_hurts_nobody() -> None:
    desk = Desk()
    first, second = desk.put("ann", 1), desk.put("bob", 2)
    desk.log.store(0)
    desk.log.entries.append(b"garbage")
    desk.log.store(1)
    assert (await first, await second) == ([True], [True])
    assert desk.view.applied == 3
    assert desk.writer.failure is None


@pytest.mark.parametrize("asked", [True, False])
@in_loop
async def test_behind_a_batch_that_was_not_written_nothing_is_applied(asked: bool) -> None:
    """Also where somebody who looks at the log, for example verify, brings it about: the process begins anew."""
    desk = Desk()
    write = desk.store.write

    def refused(writes: Writes) -> None:
        desk.store.write = write  # type: ignore[method-assign]
        raise StorageFailed("no room")

    first = desk.put("ann", 1)
    desk.store.write = refused  # type: ignore[method-assign]
    desk.log.store(0, answered=asked)
    if not asked:
        with pytest.raises(ConnectionLost):
            await first
        with pytest.raises(StorageFailed):
            await desk.writer.catch_up()
    desk.put("bob", 2)
    desk.log.store(1)
    await settled()
    assert isinstance(desk.writer.failure, StorageFailed | NotReady)
    assert (desk.blob("ann"), desk.blob("bob")) == (None, None)
    assert View(desk.store).applied == 0


@in_loop
async def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "WAITING_MAX", 3)
    desk = Desk()
    waiting = [desk.put("ann", number) for number in range(1, 4)]
    with pytest.raises(Throttled):
        desk.put("ann", 4)
    assert desk.writer.throttled == 1
    for number in range(3):
        desk.log.store(number)
    await asyncio.gather(*waiting)
    desk.put("ann", 5)


@in_loop
async def test_the_log_forgets_only_what_a_base_holds(tmp_path: Path) -> None:
    """In this order: a crash in between leaves both, never neither."""
    log = FakeLog()
    store = RocksStore(tmp_path / "rocks").open()
    view = View(store, TOPIC)
    made = Writer(cast(OperationLog, log), view, SystemClock(), lambda told: None)
    made.start()
    outcome = made.submit([identity("ann", 1)])
    log.store(0)
    await outcome
    service = SimpleNamespace(
        settings=SimpleNamespace(chat_log_bytes=1_000),
        log=log,
        view=view,
        store=store,
        writer=made,
        checking=asyncio.Lock(),
    )
    shard = ChatShard.__new__(ChatShard)
    shard._where = tmp_path
    real, bases = log.forget, []

    async def forget(before: int) -> None:
        """What a power loss at this very moment would leave."""
        found = RocksStore(checking.base_of(tmp_path)[1] or tmp_path / "none").open()
        bases.append((before, View(found).applied, found.get(IDENTITY, keys.user_id("ann")) is not None))
        found.close()
        await real(before)

    log.forget = forget  # type: ignore[method-assign]
    await shard._keep_short(cast(Service, service))
    assert bases == [(2, 1, True)]
    await made.close()
    store.close()
