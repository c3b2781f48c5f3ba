"""The process of a delivery shard, in this one: recover, listen, serve, and on stop drain and leave."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.faults.machine import Machine
from tests.unit.delivery.desk import append_body
from tests.unit.delivery.kit import make_disk
from topicd.clock import ManualClock, SystemClock
from topicd.config import Settings
from topicd.ipc.control import ControlChannel
from topicd.ipc.protocol import unixsock
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import ANSWER, PROTOCOL_VERSION, Message, MessageReader, map_message, message, unpack_map
from topicd.ipc.shardboot import DELIVERY
from topicd.paths import RunDir
from topicd.shards.delivery.shard import DeliveryShard, make_clock
from topicd.shards.storage.snapshot import SnapshotStore


class House:
    """One WAL shard, one delivery shard and the supervisor's end of its channel."""

    def __init__(self, run_dir: Path) -> None:
        self.machine = Machine(make_disk())
        self.machine._memory.create()
        self.machine.start_wal(0)
        self.shard = self.machine._shard(DELIVERY, 0)
        self.supervisor = ControlChannel(self.machine._channels[-1][1])
        self.shard.run = RunDir(run_dir)
        self.socket = run_dir / "delivery.sock"
        listener = unixsock.listen(self.socket, 0o600, 8)
        self.shard.boot = self.shard.boot._replace(listen_fd=os.dup(listener.fileno()), first_id=1, end_id=1000)
        listener.close()
        self.told: list[dict[str, Any]] = []

    def live(self, scene: Callable[[House, DeliveryShard], Awaitable[None]]) -> None:
        """The shard runs while the scene does, and has left when this returns."""

        async def run() -> None:
            delivery = DeliveryShard(self.shard)
            running = asyncio.create_task(delivery.run())
            wal = asyncio.create_task(self._turn_wal())
            try:
                await asyncio.wait_for(scene(self, delivery), 30)
                await asyncio.wait_for(running, 30)
            finally:
                for task in (wal, running):
                    task.cancel()

        uvloop.run(run())  # as the process does

    async def _turn_wal(self) -> None:
        while True:
            self.machine.turn_wals()
            self.told += self.supervisor.receive()
            await asyncio.sleep(0.001)

    async def until(self, event: str) -> None:
        while not any(one["event"] == event for one in self.told):
            await asyncio.sleep(0.001)

    async def serving(self) -> None:
        self.supervisor.send({"event": "start"})
        await self.until("serving")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    thresholds, level = gc.get_threshold(), logging.getLogger().level
    made = House(tmp_path)
    yield made
    made.machine.close()
    gc.set_threshold(*thresholds)
    logging.getLogger().setLevel(level)


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._messages = MessageReader()

    @classmethod
    async def connect(cls, house: House) -> Client:
        client = cls(*await asyncio.open_unix_connection(str(house.socket)))
        await client.ask(map_message(Op.HELLO, 1, {"version": PROTOCOL_VERSION}))
        return client

    async def ask(self, sent: bytes) -> Message:
        self.writer.write(sent)
        while data := await self._reader.read(65536):
            for found in list(self._messages.feed(data)):
                return found._replace(body=memoryview(bytes(found.body)))
        raise EOFError("the shard has closed the connection")


async def write_one(house: House) -> Client:
    client = await Client.connect(house)
    opened = await client.ask(map_message(Op.OPEN, 2, {"topic": "orders"}))
    topic_id = unpack_map(opened.body)["topic_id"]
    appended = await client.ask(message(Op.APPEND, 3, append_body(topic_id, [b"x"])))
    assert appended.op == Op.APPEND | ANSWER
    return client


def test_it_serves_and_on_stop_stores_everything_and_leaves(house: House) -> None:
    async def scene(house: House, delivery: DeliveryShard) -> None:
        await house.serving()
        client = await write_one(house)
        assert house.shard.run.history_socket(0).exists()
        house.supervisor.send({"event": "stop"})
        assert await client._reader.read() == b""  # its connections are closed

    house.live(scene)
    events = [one["event"] for one in house.told]
    assert events.index("progress") < events.index("serving")
    assert not house.shard.run.history_socket(0).exists()
    assert house.socket.exists()  # the supervisor's, for a successor
    found = SnapshotStore(house.machine.fs, house.machine.data.snapshots(0)).load_newest()
    assert found is not None
    assert [(entry["name"], entry["head"]) for entry in found[1]["topics"]] == [("orders", 1)]
    assert house.machine.fs.listdir(house.machine.data.topic(1)) != []


def test_one_that_is_stopped_before_the_wal_is_ready_leaves_at_once(house: House) -> None:
    async def scene(house: House, delivery: DeliveryShard) -> None:
        house.supervisor.send({"event": "stop"})

    house.live(scene)
    assert house.told == []


def test_nothing_is_taken_while_it_drains(house: House) -> None:
    async def scene(house: House, delivery: DeliveryShard) -> None:
        await house.serving()
        client = await write_one(house)
        delivery._parts.admission.draining = True
        refused = await client.ask(message(Op.APPEND, 4, append_body(1, [b"y"])))
        assert unpack_map(refused.body)["code"] == "not_ready"
        delivery._parts.admission.draining = False
        house.supervisor.send({"event": "stop"})
        await asyncio.sleep(0)
        while not delivery._parts.admission.draining:
            await asyncio.sleep(0.001)

    house.live(scene)


def test_settings_are_reloaded_as_a_whole_and_ids_are_added(house: House) -> None:
    async def scene(house: House, delivery: DeliveryShard) -> None:
        await house.serving()
        place, ids = delivery._parts.place, delivery._parts.ids
        changed = Settings(max_topics=7, log_level="error")
        house.supervisor.send({"event": "reload", "settings": changed.to_wire()})
        house.supervisor.send({"event": "ids", "start": 5000, "end": 5001})
        while place.settings.max_topics != 7:
            await asyncio.sleep(0.001)
        assert house.shard.settings is place.settings
        assert logging.getLogger().level == logging.ERROR
        while (5000, 5001) not in ids._blocks:
            await asyncio.sleep(0.001)
        house.supervisor.send({"event": "stop"})

    house.live(scene)


def test_tokens_that_cannot_be_read_leave_the_old_ones(house: House, caplog: pytest.LogCaptureFixture) -> None:
    async def scene(house: House, delivery: DeliveryShard) -> None:
        await house.serving()
        old = delivery._parts.connections.tokens = object()  # type: ignore[assignment]
        delivery._doors.append(object())  # type: ignore[arg-type]
        changed = Settings(listen_tcp="127.0.0.1:9999", tokens_file="/no/such/file")
        delivery._reload(changed.to_wire())
        assert delivery._parts.connections.tokens is old
        delivery._doors.clear()
        house.supervisor.send({"event": "stop"})

    house.live(scene)
    assert any("tokens not reloaded" in record.message for record in caplog.records)


def test_progress_is_told_seldom_and_the_end_always(house: House) -> None:
    async def scene(house: House, delivery: DeliveryShard) -> None:
        for percent in range(100):
            delivery._progress(percent, "replay")
        delivery._progress(100, "recovered")
        house.supervisor.send({"event": "stop"})

    house.live(scene)
    house.told += house.supervisor.receive()
    told = [one["percent"] for one in house.told if one["event"] == "progress"]
    assert told[0] == 0
    assert told[-1] == 100
    assert len(told) < 10


def test_only_tests_get_a_clock_that_they_can_move() -> None:
    assert isinstance(make_clock(Settings(test_clock=True)), ManualClock)
    assert isinstance(make_clock(Settings()), SystemClock)
