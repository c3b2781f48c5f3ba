"""The asyncio face: the same channel, waiting in tasks."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from tests.unit.filechannel.kit import SMALL, WAIT_S, numbered
from topicd.filechannel import ChannelClosed, ChannelFull, NotEnough, Receiver, aio
from topicd.filechannel import FileChannel as Blocking


@pytest.mark.parametrize("durability", ["buffered", "os", "fsync"])
def test_messages_go_through(tmp_path: Path, durability: str) -> None:
    async def run() -> None:
        async with aio.FileChannel[str](tmp_path, codec="str", durability=durability) as channel:
            sender, receiver = channel.sender(), channel.receiver("r")
            waiting = asyncio.create_task(receiver.recv())
            await asyncio.sleep(0.01)
            await sender.send("one")
            assert await asyncio.wait_for(waiting, WAIT_S) == "one"
            await sender.send_many(["two", "three"])
            await channel.flush()
            assert await receiver.recv(WAIT_S) == "two"
            assert await receiver.recv_many(9, WAIT_S) == ["three"]
            assert receiver.unacked == 3
            await receiver.ack(2)
            with pytest.raises(NotEnough):
                await receiver.recv(0.01)
            with pytest.raises(NotEnough):
                receiver.try_recv()
            assert channel.stats().receivers["r"].unacked == 1
        with Blocking(tmp_path) as again:
            assert again.receiver("r").recv(0) == b"three"

    asyncio.run(run())


def test_F22_many_tasks_wait_and_closing_wakes_them(tmp_path: Path) -> None:
    async def run() -> None:
        channel = await aio.FileChannel[bytes](tmp_path).open()
        receivers = [channel.receiver(f"r{number}", auto_ack=True) for number in range(20)]

        async def read(receiver: aio.AsyncReceiver[bytes]) -> list[object]:
            return [message async for message in receiver]

        tasks = [asyncio.create_task(read(receiver)) for receiver in receivers]
        messages = numbered(0, 500)
        for message in messages:
            await channel.sender().send(message)
            if message.endswith(b"7"):
                await asyncio.sleep(0)
        while any(receiver.offset < 500 * 16 for receiver in receivers):
            await asyncio.sleep(0.001)
        await channel.close()
        for found in await asyncio.wait_for(asyncio.gather(*tasks), WAIT_S):
            assert found == messages
        with pytest.raises(ChannelClosed):
            channel.sender()

    asyncio.run(run())


def test_F22_a_cancelled_wait_takes_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with aio.FileChannel[bytes](tmp_path) as channel:
            receiver = channel.receiver()
            waiting = asyncio.create_task(receiver.recv())
            await asyncio.sleep(0.01)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await channel.sender().send(b"mine")
            assert await receiver.recv(WAIT_S) == b"mine"

    asyncio.run(run())


def test_a_send_that_waits_for_room_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    async def run() -> None:
        async with aio.FileChannel[bytes](tmp_path, max_bytes=8 * SMALL) as channel:
            sender, receiver = channel.sender(), channel.receiver(auto_ack=True)
            with pytest.raises(ChannelFull):
                while True:
                    await sender.send_many(numbered(0, 100), timeout=0)
            sending = asyncio.create_task(sender.send(b"last"))
            found: object = None
            while found != b"last":
                found = await receiver.recv(WAIT_S)
            await sending

    asyncio.run(run())


def test_F22_what_a_cancelled_receive_took_is_for_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, entered = threading.Event(), threading.Event()
    real = Receiver.recv

    def slowly(receiver: Receiver[bytes], timeout: float | None = None) -> object:
        entered.set()
        assert go_on.wait(WAIT_S)
        return real(receiver, timeout)

    async def run() -> None:
        async with aio.FileChannel[bytes](tmp_path, durability="fsync") as channel:
            await channel.sender().send_many([b"one", b"two", b"three"])
            receiver = channel.receiver(auto_ack=True)
            monkeypatch.setattr(Receiver, "recv", slowly)
            waiting = asyncio.create_task(receiver.recv())
            assert await asyncio.to_thread(entered.wait, WAIT_S)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            go_on.set()
            assert await receiver.recv(WAIT_S) == b"one"
            assert await asyncio.gather(receiver.recv(WAIT_S), receiver.recv(WAIT_S)) == [b"two", b"three"]

    asyncio.run(run())


@pytest.mark.parametrize("durability", ["os", "fsync"])
def test_messages_end_after_a_silence_and_are_acknowledged_at_once(tmp_path: Path, durability: str) -> None:
    async def run() -> None:
        async with aio.FileChannel[bytes](tmp_path, durability=durability) as channel:
            await channel.sender().send_many([b"one", b"two"])
            receiver = channel.receiver()
            assert [message async for message in receiver.messages(timeout=0.02)] == [b"one", b"two"]
            assert receiver.unacked == 2
            await receiver.ack_all()
            assert receiver.unacked == 0

    asyncio.run(run())


def test_a_receiver_and_a_sender_can_be_closed_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with aio.FileChannel[bytes](tmp_path) as channel:
            sender = channel.sender()
            await sender.send(b"one")
            async with channel.receiver("r", auto_ack=True) as receiver:
                assert (receiver.name, await receiver.recv(0)) == ("r", b"one")
                waiting = asyncio.create_task(receiver.recv())
                await asyncio.sleep(0.01)
            with pytest.raises(ChannelClosed):
                await asyncio.wait_for(waiting, WAIT_S)
            sender.close()
            with pytest.raises(ChannelClosed):
                await sender.send(b"two")
            channel.receiver("r").close()

    asyncio.run(run())
