"""Rows F17 to F22: many threads, buffering, repair, lock, figures, edges of the API."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from tests.unit.filechannel.kit import SMALL, WAIT_S, Background, child, names, numbered, python, segment_names
from topicd.errors import InvalidRequest
from topicd.filechannel import ChannelClosed, ChannelFailed, FileChannel, InUse, NotEnough, TooManyUnacked
from topicd.filechannel.layout import HEADER_BYTES, MESSAGE_HEAD


def forget_page(directory: Path) -> None:
    """As after a start of the machine: nothing is known but what the files say."""
    (directory / "shared").unlink()


@pytest.mark.parametrize("durability", ["os", "buffered"])
def test_F17_eight_senders_keep_their_order(tmp_path: Path, durability: str) -> None:
    senders, each = 8, 10_000
    with FileChannel(tmp_path, durability=durability, segment_bytes=256 * 1024) as channel:  # type: ignore[misc]

        def send(number: int) -> None:
            sender = channel.sender()
            for at in range(each):
                sender.send(b"%d %d" % (number, at))

        threads = [threading.Thread(target=send, args=(number,)) for number in range(senders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        channel.flush()
        by_sender: dict[int, list[int]] = {number: [] for number in range(senders)}
        for message in channel.receiver().recv_many(senders * each, 0):
            assert isinstance(message, bytes)
            number, at = message.split()
            by_sender[int(number)].append(int(at))
        assert all(found == list(range(each)) for found in by_sender.values())


def test_F17_consumers_share_one_receiver(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        receiver = channel.receiver(auto_ack=True)
        found: list[list[object]] = []

        def consume() -> None:
            mine = list(receiver.messages(timeout=WAIT_S))
            found.append(mine)

        threads = [threading.Thread(target=consume) for _ in range(4)]
        for thread in threads:
            thread.start()
        channel.sender().send_many(numbered(0, 5000))
        while receiver.offset < 5000 * 16:
            time.sleep(0.001)
        receiver.close()
        for thread in threads:
            thread.join()
        assert sorted(message for mine in found for message in mine) == numbered(0, 5000)  # type: ignore[type-var]
        assert all(mine == sorted(mine) for mine in found)  # type: ignore[type-var]


def test_F17_threads_share_syncs(tmp_path: Path) -> None:
    with FileChannel(tmp_path, durability="fsync") as channel:
        syncs = 0
        assert channel._writer is not None and channel._writer._active is not None
        file = channel._writer._active.file
        real = file.sync_data

        class Counting:
            raw_fd = None

            def sync_data(self) -> None:
                nonlocal syncs
                syncs += 1
                time.sleep(0.02)  # long enough for all others to come meanwhile
                real()

            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

        channel._writer._active.file = Counting()  # type: ignore[assignment]
        threads = [threading.Thread(target=lambda: [channel.sender().send(b"x") for _ in range(20)]) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert syncs < 150  # of 160 sends: how many share one is up to the scheduler
        assert len(channel.receiver().recv_many(1000, 0)) == 160


def test_F06_with_fsync_a_receiver_sees_a_message_only_after_its_sync(tmp_path: Path) -> None:
    with FileChannel(tmp_path, durability="fsync") as channel:
        assert channel._writer is not None and channel._writer._active is not None
        file, receiver = channel._writer._active.file, channel.receiver()
        seen: list[bool] = []

        class Looking:
            raw_fd = None

            def sync_data(self) -> None:
                with pytest.raises(NotEnough):
                    receiver.recv(0)
                seen.append(True)
                file.sync_data()

            def __getattr__(self, name: str) -> object:
                return getattr(file, name)

        channel._writer._active.file = Looking()  # type: ignore[assignment]
        channel.sender().send(b"one")
        assert receiver.recv(0) == b"one"
        channel.sender().send_many([b"two"])
        assert receiver.recv(0) == b"two"
        assert seen == [True, True]


def test_F18_nothing_is_visible_before_the_flush(tmp_path: Path) -> None:
    with FileChannel(tmp_path, durability="buffered", flush_interval=24 * 3600) as channel:
        receiver = channel.receiver()
        channel.sender().send(b"waits")
        channel.sender().send_many([b"too"])
        with pytest.raises(NotEnough):
            receiver.recv(0.05)
        stats = channel.stats()
        assert (stats.write_offset, stats.flush_offset, stats.disk_bytes) == (24, 0, 64)
        channel.flush()
        assert receiver.recv_many(9, 0) == [b"waits", b"too"]
        assert channel.stats().flush_offset == 24
        channel.sender().send(b"closing flushes")
    with FileChannel(tmp_path) as channel:
        assert channel.receiver("other").recv_many(9, 0)[-1] == b"closing flushes"
    for wrong in (0, -1, 1e-7):
        with pytest.raises(InvalidRequest):
            FileChannel(tmp_path, durability="buffered", flush_interval=wrong)


def test_F18_the_thread_flushes(tmp_path: Path) -> None:
    with FileChannel(tmp_path, durability="buffered") as channel:
        receiver = channel.receiver()
        for number in range(50):
            channel.sender().send(b"%d" % number)
            assert receiver.recv(WAIT_S) == b"%d" % number


def test_F19_a_torn_end_is_cut(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        channel.sender().send_many([b"one", b"two"])
    path = tmp_path / "segment.0"
    whole = path.read_bytes()
    for torn in (b"\0\0", b"\0\0\0\5abcd", b"\0\0\0\5abcdhel", bytes(4096), b"\0\0\x20\0" + b"x" * 4092):
        path.write_bytes(whole + torn)
        forget_page(tmp_path)
        with FileChannel(tmp_path) as channel:
            assert path.read_bytes() == whole
            assert channel.damage == []
            assert channel.receiver("r", temporary=True).recv_many(9, 0) == [b"one", b"two"]


def test_F19_a_hole_that_reaches_into_the_zeros_of_the_next_head_is_cut_and_kept(tmp_path: Path) -> None:
    """The last byte of its sector belongs to the next message, and is zero whether it was written or not."""
    sector = 512
    with FileChannel(tmp_path, durability="fsync") as channel:
        before = channel.sender().send(b"kept")
        first = 3 * sector - 1 - HEADER_BYTES - before - MESSAGE_HEAD
        channel.sender().send_many([b"x" * first, b"y" * 100])
    path = tmp_path / "segment.0"
    whole = bytearray(path.read_bytes())
    whole[3 * sector - 200 : 3 * sector] = bytes(200)
    path.write_bytes(whole)
    forget_page(tmp_path)
    with FileChannel(tmp_path, durability="fsync") as channel:
        assert channel.damage == []
        assert channel.stats().write_offset == before
    assert (tmp_path / f"cut.{before}").exists()


def test_F19_an_unflushed_write_of_4096_bytes_leaves_the_header_only(tmp_path: Path) -> None:
    FileChannel(tmp_path).close()
    path = tmp_path / "segment.0"
    path.write_bytes(path.read_bytes() + (b"\0\0\x40\0abcd" + b"x" * 5000)[:4096])
    forget_page(tmp_path)
    with FileChannel(tmp_path) as channel:
        assert path.stat().st_size == HEADER_BYTES
        assert channel.stats().disk_bytes == 64


def test_F19_what_a_cut_off_write_left_behind_the_published_end_is_nobodys(tmp_path: Path) -> None:
    """Of a process that died between a write and its publication: in the same boot the page says where messages end."""
    with FileChannel(tmp_path) as channel:
        channel.sender().send_many([b"one", b"two"])
    path = tmp_path / "segment.0"
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0\0\0\5abcdhello" + whole[HEADER_BYTES:])
    with FileChannel(tmp_path) as channel:
        assert path.read_bytes() == whole
        assert channel.damage == []
        channel.sender().send(b"three")
        assert channel.receiver().recv_many(9, 0) == [b"one", b"two", b"three"]


def test_F19_leftovers_are_removed(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 1000))
        channel.receiver("keep").close()
    plain = (tmp_path / "segment.0").read_bytes()
    with FileChannel(tmp_path, segment_bytes=SMALL, compress=True) as channel:
        channel.compact()
    (tmp_path / "segment.0").write_bytes(plain)
    (tmp_path / "segment.1.z.ing").write_bytes(b"half")
    (tmp_path / "offset.new.tmp").write_bytes(b"half")
    (tmp_path / "segment.99").write_bytes(b"")
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        assert not names(tmp_path) & {"segment.0", "segment.1.z.ing", "offset.new.tmp", "segment.99"}
        assert channel.receiver("keep").recv_many(1000, 0) == numbered(0, 1000)


def test_F19_a_packed_file_that_is_not_whole_gives_way_to_the_plain_one(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 1000))
    (tmp_path / "segment.0.z").write_bytes(b"no header")
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        assert "segment.0.z" not in names(tmp_path)
        assert channel.receiver().recv_many(1000, 0) == numbered(0, 1000)


def test_F19_older_plain_files_are_compressed_after_an_opening(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 2000))
        channel.receiver("keep").close()
    with FileChannel(tmp_path, segment_bytes=SMALL, compress=True):
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline and not segment_names(tmp_path)[-3].endswith(".z"):
            time.sleep(0.01)
    found = segment_names(tmp_path)
    assert [name.endswith(".z") for name in found] == [True] * (len(found) - 2) + [False] * 2


HOLDS_THE_LOCK = """
import sys
from topicd.filechannel import FileChannel
channel = FileChannel(sys.argv[1])
receiver = channel.receiver("mine")
print("ready", flush=True)
sys.stdin.read()
"""


def test_F20_a_second_writer_is_refused_and_told_which_process_is_first(tmp_path: Path) -> None:
    with child(HOLDS_THE_LOCK, tmp_path) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with pytest.raises(InUse, match=str(process.pid)) as caught:
            FileChannel(tmp_path)
        assert caught.value.detail["pid"] == process.pid
        with FileChannel(tmp_path, writer=False) as reading:
            with pytest.raises(InUse):
                reading.receiver("mine")
            with pytest.raises(InUse):
                reading.remove_receiver("mine")
            with pytest.raises(InvalidRequest):
                reading.sender()
        process.send_signal(signal.SIGKILL)
        process.wait()
        # The lock went with its process, whatever the file says.
        with FileChannel(tmp_path) as channel:
            channel.receiver("mine").close()


def test_F20_a_second_opening_in_this_process_is_refused_too(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        with pytest.raises(InUse, match=str(os.getpid())):
            FileChannel(tmp_path)
        receiver = channel.receiver()
        with pytest.raises(InUse):
            channel.receiver()
        receiver.close()
        channel.receiver().close()
    FileChannel(tmp_path).close()


def test_F20_a_failed_opening_releases_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import topicd.filechannel.writer as writer

    def fails(*args: object) -> None:
        raise OSError(5, "no")

    with monkeypatch.context() as patched:
        patched.setattr(writer, "repair", fails)
        with pytest.raises(OSError):
            FileChannel(tmp_path)
    FileChannel(tmp_path).close()


def test_F21_figures(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        stats = channel.stats()
        assert (stats.write_offset, stats.flush_offset, stats.disk_bytes, stats.segments) == (0, 0, 64, 1)
        assert stats.receivers == {}
        receiver = channel.receiver("worker")
        channel.sender().send(b"12345678")
        mine = channel.stats().receivers["worker"]
        assert (mine.offset, mine.read_offset, mine.unacked, mine.lag_bytes) == (0, 2**64 - 1, 0, 16)
        receiver.recv(0)
        mine = channel.stats().receivers["worker"]
        assert (mine.offset, mine.read_offset, mine.unacked) == (0, 16, 1)
        receiver.ack()
        mine = channel.stats().receivers["worker"]
        assert (mine.offset, mine.read_offset, mine.unacked, mine.lag_bytes) == (16, 16, 0, 0)
        assert channel.stats().disk_bytes == 80
        with FileChannel(tmp_path, writer=False) as other:
            found = other.stats()
            assert (found.write_offset, found.disk_bytes, found.receivers["worker"].offset) == (16, 80, 16)
            assert found.receivers["worker"].unacked is None


def test_F22_closing_wakes_those_who_wait(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path)
    receivers = [channel.receiver(f"r{number}") for number in range(3)]
    waiting = [Background(receiver.recv) for receiver in receivers]
    iterating = Background(lambda: list(channel.receiver("iterating")))
    time.sleep(0.05)  # so that most of them sleep; the result is the same if not
    channel.close()
    channel.close()
    for background in waiting:
        with pytest.raises(ChannelClosed):
            background.result()
    assert iterating.result() == []
    with pytest.raises(ChannelClosed):
        channel.sender()
    with pytest.raises(ChannelClosed):
        receivers[0].ack()


def test_F22_closing_waits_for_sends(tmp_path: Path) -> None:
    """Every send that returned is there, however it met the closing."""
    for attempt in range(20):
        channel = FileChannel(tmp_path / str(attempt))
        sent: list[int] = [0, 0]

        def send(number: int, channel: FileChannel[bytes] = channel, sent: list[int] = sent) -> None:
            sender = channel.sender()
            try:
                while True:
                    sender.send_many([b"%d" % number] * 3)
                    sent[number] += 3
            except ChannelClosed:
                pass

        threads = [threading.Thread(target=send, args=(number,)) for number in (0, 1)]
        for thread in threads:
            thread.start()
        time.sleep(0.005)
        channel.close()
        for thread in threads:
            thread.join()
        with FileChannel(tmp_path / str(attempt)) as again:
            found = again.receiver().recv_many(10**6, 0) if sum(sent) else []
        assert [found.count(b"0"), found.count(b"1")] == sent


def test_F22_the_first_failure_stays(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        sender, receiver = channel.sender(), channel.receiver()
        sender.send(b"before")
        assert channel._writer is not None and channel._writer._active is not None
        full = os.open("/dev/full", os.O_RDWR)
        os.dup2(full, channel._writer._fd)
        os.close(full)
        for _ in range(2):
            with pytest.raises(ChannelFailed, match="opened anew"):
                sender.send(b"fails")
            with pytest.raises(ChannelFailed):
                sender.send_many([b"fails"])
        assert receiver.recv(0) == b"before"
        receiver.ack()
    with FileChannel(tmp_path) as channel:
        channel.sender().send(b"after")
        assert channel.receiver().recv_many(9, 0) == [b"after"]


def test_F22_unacked_messages_are_bounded(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        channel.sender().send_many(numbered(0, 10))
        receiver = channel.receiver(max_unacked=3)
        assert len(receiver.recv_many(10, 0)) == 3
        for call in (lambda: receiver.recv(0), lambda: receiver.recv_many(1, 0)):
            with pytest.raises(TooManyUnacked):
                call()
        receiver.ack(2)
        assert receiver.recv_many(10, 0) == numbered(3, 5)


def test_F22_timeouts_end(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        receiver = channel.receiver()
        began = time.monotonic()
        for call in (receiver.recv, lambda timeout: receiver.recv_many(5, timeout)):
            with pytest.raises(NotEnough):
                call(0.05)
        assert list(receiver.messages(timeout=0.05)) == []
        assert 0.15 <= time.monotonic() - began < WAIT_S


def test_an_interrupt_does_not_lose_or_tear_anything(tmp_path: Path) -> None:
    """Ctrl-C all the time: every send that returned is there, once, and nothing is torn."""
    code = """
import signal, sys, threading, os, time
from topicd.filechannel import FileChannel
mode = sys.argv[2]
channel = FileChannel(sys.argv[1], durability=mode, segment_bytes=4096)
sender = channel.sender()
number, done, armed = 0, [], [False]
def interrupt(*_):
    if armed[0]:
        armed[0] = False
        raise KeyboardInterrupt
signal.signal(signal.SIGINT, interrupt)
def annoy():
    while True:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.0003)
threading.Thread(target=annoy, daemon=True).start()
end = time.monotonic() + 1.5
while time.monotonic() < end:
    number += 1
    try:
        armed[0] = True
        if number % 3:
            sender.send(b"%d" % number)
        else:
            sender.send_many([b"%d" % number])
        armed[0] = False
        done.append(number)
    except KeyboardInterrupt:
        pass
channel.close()
print(*done)
"""
    for mode in ("os", "buffered"):
        process = python(code, tmp_path / mode, mode)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        done = list(map(int, out.split()))
        assert len(done) > 100
        with FileChannel(tmp_path / mode) as channel:
            assert channel.damage == []
            raw = channel.receiver(auto_ack=True).recv_many(10**7, 0)
            found = [int(message) for message in raw if isinstance(message, bytes)]
        assert found == sorted(set(found))
        assert set(done) <= set(found)


def test_a_child_of_the_writer_cannot_use_the_channel(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        sender, receiver = channel.sender(), channel.receiver()
        pid = os.fork()
        if pid == 0:
            outcome = 1
            try:
                sender.send(b"from the child")
            except ChannelClosed:
                try:
                    receiver.recv(0)
                except ChannelClosed:
                    outcome = 0
            os._exit(outcome)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        sender.send(b"from the parent")
        assert receiver.recv_many(5, 0) == [b"from the parent"]
