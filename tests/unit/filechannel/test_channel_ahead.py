"""Room ahead of the end: sends that are stores, what a death, a cut file and a disk without room make of them, and
zeros behind the last message.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.filechannel.kit import WAIT_S, child, numbered, python, segment_names
from topicd import _native
from topicd._native.channel import core
from topicd.errors import TopicdError
from topicd.filechannel import ChannelFailed, FileChannel
from topicd.filechannel.ahead import Ahead
from topicd.filechannel.inspect import overview, walk
from topicd.filechannel.layout import HEADER_BYTES, SHARED

pytestmark = pytest.mark.skipif(not _native.is_native, reason="the twin writes")

SEGMENT = 1 << 20  # windows of 128 KiB
SIZE = 92  # with its head a hundred bytes


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory whose filesystem can reserve: pytest's, else one in memory."""
    path = tmp_path
    with open(tmp_path / "probe", "wb") as probe:
        if not core.reserve(probe.fileno(), 0, 4096):
            path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    (tmp_path / "probe").unlink()
    yield path / "channel"
    if path is not tmp_path:
        shutil.rmtree(path)


def send_until_stores(channel: FileChannel[bytes], first: int = 0) -> int:
    """The number behind the last that was sent."""
    sender, number, writer = channel.sender(), first, channel._writer
    assert writer is not None
    while writer._window is None:
        sender.send(numbered(number, number + 1, SIZE - 8)[0])
        number += 1
        assert number - first < 100_000, "no window came"
    return number


def messages_of(directory: Path) -> list[bytes]:
    found = overview(directory)
    assert found.survey.damage == []
    items = list(walk(directory, found.survey.begin, found.end))
    assert all(isinstance(item, tuple) for item in items)
    return [item[1] for item in items if isinstance(item, tuple)]


def test_F10_sealed_and_closed_files_end_where_their_messages_end(place: Path) -> None:
    with FileChannel(place, segment_bytes=SEGMENT) as channel:
        receiver, sender = channel.receiver(), channel.sender()
        last = send_until_stores(channel)
        size = os.stat(place / "segment.0").st_size
        assert size > HEADER_BYTES + 100 * last, "nothing was reserved"
        assert channel.stats().disk_bytes == HEADER_BYTES + 100 * last
        for number in range(last, 35_000):
            sender.send(numbered(number, number + 1, SIZE - 8)[0])
        assert receiver.recv_many(35_000, 0) == numbered(0, 35_000, SIZE - 8)
        assert channel.stats().disk_bytes == 35_000 * 100 + 4 * HEADER_BYTES
    names = segment_names(place)
    sizes = [os.stat(place / name).st_size for name in names]
    assert len(names) == 4 and sum(sizes) == 35_000 * 100 + 4 * HEADER_BYTES
    assert overview(place).survey.torn is None
    assert messages_of(place) == numbered(0, 35_000, SIZE - 8)


def test_batches_are_written_and_reserve_nothing(place: Path) -> None:
    with FileChannel(place, segment_bytes=SEGMENT) as channel:
        for start in range(0, 8_000, 1_000):
            channel.sender().send_many(numbered(start, start + 1_000, SIZE - 8))
        assert os.stat(place / "segment.0").st_size == HEADER_BYTES + 8_000 * 100
        last = send_until_stores(channel, 8_000)
        # Among stores, too.
        channel.sender().send_many(numbered(last, last + 500, SIZE - 8))
        channel.sender().send(numbered(last + 500, last + 501, SIZE - 8)[0])
        assert channel.receiver().recv_many(last + 501, 0) == numbered(0, last + 501, SIZE - 8)


def test_F13_another_process_reads_what_is_stored(place: Path) -> None:
    code = """
import sys
from topicd.filechannel import FileChannel
with FileChannel(sys.argv[1], writer=False) as channel:
    receiver = channel.receiver("reader", auto_ack=True)
    print("ready", flush=True)
    for number in range(30_000):
        assert int(receiver.recv(20)[:8]) == number
print("all", flush=True)
"""
    with FileChannel(place, segment_bytes=SEGMENT) as channel, child(code, place) as reader:
        assert reader.stdout is not None and reader.stdout.readline() == "ready\n"
        sender = channel.sender()
        for message in numbered(send_until_stores(channel), 30_000, SIZE - 8):
            sender.send(message)
        assert reader.stdout.readline() == "all\n"


KILLED = """
import os, signal, sys
from topicd.filechannel import FileChannel
channel = FileChannel(sys.argv[1], segment_bytes=1 << 20)
sender, number = channel.sender(), 0
while channel._writer._window is None or number < 3000:
    sender.send(b"%08d" % number + b"." * 84)
    number += 1
print(number, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("page", ["believed", "gone"])
def test_F04_a_kill_loses_nothing_that_was_stored(place: Path, page: str) -> None:
    process = python(KILLED, place)
    sent = int(process.communicate(timeout=WAIT_S)[0])
    if page == "gone":
        (place / SHARED).unlink()
    assert os.stat(place / "segment.0").st_size > HEADER_BYTES + 100 * sent
    assert messages_of(place) == numbered(0, sent, SIZE - 8)
    with FileChannel(place, segment_bytes=SEGMENT) as channel:
        assert channel.damage == []
        assert channel.receiver().recv_many(sent, 0) == numbered(0, sent, SIZE - 8)
    assert os.stat(place / "segment.0").st_size == HEADER_BYTES + 100 * sent
    assert not list(place.glob("cut.*"))


CUT_OFF = """
import os, sys
from topicd import _native
from topicd._native.channel_interface import CLEARED_AT
from topicd.filechannel import ChannelFailed, FileChannel
channel = FileChannel(sys.argv[1], segment_bytes=1 << 20)
sender, writer = channel.sender(), channel._writer
# Until the next message is a store into pages that are there, which are gone with the file.
while writer._window is None or _native.core.load(writer._state, CLEARED_AT) < writer.written + 1000:
    sender.send(bytes(100))
ahead = channel._writer._ahead
with ahead._shape:
    ahead._refused = True  # the next window would make it long again
    os.truncate(sys.argv[1] + "/segment.0", 64)
try:
    while True:
        sender.send(bytes(100))
except ChannelFailed:
    print("refused", flush=True)
"""


def test_F22_a_file_that_is_cut_off_under_the_map_is_an_error_and_no_death(place: Path) -> None:
    process = python(CUT_OFF, place)
    out, errors = process.communicate(timeout=WAIT_S)
    assert (out, process.returncode) == ("refused\n", 0), errors


@pytest.mark.parametrize("code", [errno.ENOSPC, None])
def test_without_room_ahead_sends_write(place: Path, code: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def reserve(fd: int, offset: int, length: int) -> bool:
        asked.append(offset)
        if code is not None:
            raise OSError(code, os.strerror(code))
        return False

    monkeypatch.setattr(core, "reserve", reserve)
    monkeypatch.setattr(Ahead, "_work", lambda self, active: self.turn())
    with FileChannel(place, segment_bytes=SEGMENT) as channel:
        for message in numbered(0, 30_000, SIZE - 8):
            channel.sender().send(message)
        assert channel.receiver().recv_many(30_000, 0) == numbered(0, 30_000, SIZE - 8)
    assert len(asked) == len(segment_names(place)) == 3, "asked again and again"


def test_a_bounded_channel_reserves_nothing_beyond_its_bound(place: Path) -> None:
    with FileChannel(place, max_bytes=SEGMENT, full="refuse") as channel:
        sender = channel.sender()
        with pytest.raises(TopicdError):
            while True:
                sender.send(bytes(SIZE))
                files = sum(path.stat().st_size for path in place.glob("segment.*"))
                assert files <= SEGMENT
        assert files > SEGMENT - 1000


def killed_channel(place: Path) -> int:
    """As a power loss leaves it: nobody knows what was published."""
    sent = int(python(KILLED, place).communicate(timeout=WAIT_S)[0])
    (place / SHARED).unlink()
    return sent


def test_F19_a_change_of_the_last_message_is_damage_and_zeros_behind_it_are_not(place: Path) -> None:
    sent = killed_channel(place)
    with open(place / "segment.0", "r+b") as file:
        file.seek(HEADER_BYTES + 100 * sent - 30)
        file.write(b"!")
    with FileChannel(place, segment_bytes=SEGMENT) as channel:
        assert [(lost.begin, lost.end) for lost in channel.damage] == [(100 * (sent - 1), 100 * sent)]
        assert channel.stats().write_offset == 100 * sent
    assert os.stat(place / "segment.0").st_size == HEADER_BYTES + 100 * sent


def test_F19_a_last_message_of_which_a_part_was_never_written_is_cut_and_kept(place: Path) -> None:
    sent = killed_channel(place)
    with open(place / "segment.0", "r+b") as file:
        file.seek(HEADER_BYTES + 100 * sent - 30)
        file.write(bytes(30))
    with FileChannel(place, segment_bytes=SEGMENT) as channel:
        assert channel.damage == []
        assert channel.stats().write_offset == 100 * (sent - 1)
    assert (place / f"cut.{100 * (sent - 1)}").exists()


def test_F19_a_good_message_of_zeros_behind_a_hole_is_kept(place: Path) -> None:
    with FileChannel(place) as channel:
        sender = channel.sender()
        ends = [sender.send(payload) for payload in (b"a" * 50, b"b" * 2000, bytes(500))]
    (place / SHARED).unlink()
    with open(place / "segment.0", "r+b") as file:
        file.seek(HEADER_BYTES + ends[0] + 700)
        file.write(bytes(600))
        file.truncate(1 << 20)
    with FileChannel(place) as channel:
        assert [(lost.begin, lost.end) for lost in channel.damage] == [(ends[0], ends[1])]
        assert channel.stats().write_offset == ends[2]


def test_after_a_failed_store_nothing_more_is_sent(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FileChannel(place, segment_bytes=SEGMENT) as channel:
        sent = send_until_stores(channel)

        def failing(*args: object) -> int:
            raise OSError(errno.EIO, "the page cannot be had")

        monkeypatch.setattr(core, "send_message", failing)
        with pytest.raises(ChannelFailed):
            channel.sender().send(b"x")
        monkeypatch.undo()
        with pytest.raises(ChannelFailed):
            channel.sender().send(b"y")
    assert messages_of(place) == numbered(0, sent, SIZE - 8)
