"""Row F22: the edges of waiting and closing, by one thread, by several, and cut off."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.unit.filechannel.kit import SMALL, WAIT_S, Background, names, numbered
from topicd.filechannel import ChannelClosed, FileChannel, NotEnough, Receiver
from topicd.filechannel.writer import Writer


def test_F22_nothing_is_not_enough_messages(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        receiver = channel.receiver()
        with pytest.raises(NotEnough, match="not enough messages"):
            receiver.try_recv()
        channel.sender().send(b"there")
        assert receiver.try_recv() == b"there"


def test_F22_the_iterator_ends_with_the_channel_and_hands_out_what_is_there(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        channel.sender().send_many(numbered(0, 100))
        receiver = channel.receiver()
        found = []
        for message in receiver:
            found.append(message)
            receiver.ack()
            if len(found) == 100:
                channel.close()
        assert found == numbered(0, 100)


def test_F22_closing_wakes_a_sender_that_waits_for_room(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path, max_bytes=16 * SMALL)
    channel.receiver("never reads".replace(" ", "-"))

    def send() -> None:
        while True:
            channel.sender().send(bytes(1000))

    sending = Background(send)
    while channel.stats().disk_bytes < 14 * SMALL:
        time.sleep(0.001)
    channel.close()
    with pytest.raises(ChannelClosed):
        sending.result()


def test_F22_whoever_closes_second_finds_everything_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads close: neither returns before the directory can be opened again."""
    go_on, entered = threading.Event(), threading.Event()
    real = Writer.close

    def slowly(writer: Writer) -> None:
        entered.set()
        assert go_on.wait(WAIT_S)
        real(writer)

    channel = FileChannel(tmp_path)
    channel.sender().send(b"x")
    with monkeypatch.context() as patched:
        patched.setattr(Writer, "close", slowly)
        first = Background(channel.close)
        assert entered.wait(WAIT_S)
    channel.close()
    FileChannel(tmp_path).close()
    go_on.set()
    first.result()


def test_F22_a_close_that_was_interrupted_is_ended_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(receiver: object) -> None:
        raise KeyboardInterrupt

    channel = FileChannel(tmp_path)
    channel.receiver("r")
    with monkeypatch.context() as patched:
        patched.setattr(Receiver, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            channel.close()
    channel.close()
    with FileChannel(tmp_path) as again:
        again.receiver("r").close()


def test_a_close_of_a_receiver_that_was_interrupted_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    with FileChannel(tmp_path) as channel:
        receiver = channel.receiver("r")
        with monkeypatch.context() as patched:
            patched.setattr(receiver, "_on_close", interrupted)
            with pytest.raises(KeyboardInterrupt):
                receiver.close()
        receiver.close()
        channel.receiver("r").close()


def test_a_name_is_free_when_its_receiver_is_closed_whoever_closed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, entered = threading.Event(), threading.Event()
    real = FileChannel._receiver_closed

    def slowly(channel: FileChannel[bytes], name: str) -> None:
        if not entered.is_set():
            entered.set()
            assert go_on.wait(WAIT_S)
        real(channel, name)

    with FileChannel(tmp_path) as channel:
        monkeypatch.setattr(FileChannel, "_receiver_closed", slowly)
        receiver = channel.receiver("r", temporary=True)
        first = Background(receiver.close)
        assert entered.wait(WAIT_S)

        def close_and_open() -> bool:
            receiver.close()
            with channel.receiver("r", temporary=True) as again:
                first.result()
                return "offset.r" in names(tmp_path) and again.unacked == 0

        second = Background(close_and_open)
        go_on.set()
        assert second.result()
