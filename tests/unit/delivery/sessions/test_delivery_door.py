"""The door for other machines: who is one too many is closed at once, and a lack of descriptors ends nothing."""

from __future__ import annotations

import asyncio
import errno
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.ports import free_ports
from topicd.shards.delivery.sessions import door as module
from topicd.shards.delivery.sessions.door import Door, listen
from topicd.shards.delivery.sessions.strangers import Guest, Strangers


class Silent(asyncio.Protocol):
    def __init__(self, guest: Guest) -> None:
        self.guest = guest


class Open:
    def __init__(self, limit: int) -> None:
        place: Any = SimpleNamespace(settings=SimpleNamespace(max_unauthenticated=limit))
        self.strangers = Strangers(place)
        self.port = free_ports(1)
        [self.listener] = listen("127.0.0.1", self.port, 16)
        self.sessions: list[Silent] = []

    def door(self) -> Door:
        def session(guest: Guest) -> Any:
            self.sessions.append(Silent(guest))
            return self.sessions[-1]

        return Door(asyncio.get_running_loop(), self.listener, self.strangers, session, None)

    async def come(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)


def test_one_too_many_is_closed_and_the_others_are_counted() -> None:
    async def scene() -> None:
        opened = Open(limit=4)
        door = opened.door()
        door.open()
        arrived = [await opened.come() for _ in range(3)]
        assert await arrived[2][0].read() == b""
        while len(opened.sessions) < 2:
            await asyncio.sleep(0)
        assert opened.strangers.count == 2
        opened.strangers.leave(opened.sessions[0].guest)
        arrived.append(await opened.come())
        while len(opened.sessions) < 3:
            await asyncio.sleep(0)
        door.close()
        door.close()
        for _, writer in arrived:
            writer.close()

    asyncio.run(scene())


@pytest.mark.fault("NET-06")
def test_without_descriptors_it_looks_away_and_comes_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_PAUSE_S", 0.01)

    class Poor:
        """A listener that has none left, twice."""

        def __init__(self, listener: socket.socket) -> None:
            self.left = 2
            self.fileno, self.setblocking, self.close = listener.fileno, listener.setblocking, listener.close
            self._accept = listener.accept

        def accept(self) -> Any:
            if self.left:
                self.left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return self._accept()

    async def scene() -> None:
        opened = Open(limit=4)
        opened.listener = Poor(opened.listener)  # type: ignore[assignment]
        door = opened.door()
        door.open()
        _, writer = await opened.come()
        while not opened.sessions:
            await asyncio.sleep(0.001)
        writer.close()
        door.close()

    asyncio.run(scene())
    assert [vars(record)["reason"] for record in caplog.records] == [
        "cannot be accepted: [Errno 24] Too many open files"
    ] * 2


def test_an_address_that_is_taken_is_refused() -> None:
    port = free_ports(1)
    [first] = listen("127.0.0.1", port, 1)
    with first, pytest.raises(OSError, match="Address already in use"):
        listen("127.0.0.1", port, 1)
