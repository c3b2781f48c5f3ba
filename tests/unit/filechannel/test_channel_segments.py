"""Rows F9 to F16: segments, cut, collection, separate descriptors, compression."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
import threading
from pathlib import Path

import pytest

from tests.unit.filechannel.kit import FULL, SMALL, names, numbered, python, segment_names
from topicd.disk.fs import RealFile, RealFs
from topicd.filechannel import Damaged, FileChannel, Receiver
from topicd.filechannel.collector import Collector
from topicd.filechannel.compressing import candidates, compress
from topicd.filechannel.layout import (
    HEADER_BYTES,
    METHOD_ZSTD,
    Header,
    SegmentName,
    parse_offset,
    parse_segment,
    unpack_header,
)
from topicd.filechannel.packed import zstd
from topicd.filechannel.place import Place
from topicd.filechannel.segment import open_segment
from topicd.filechannel.settings import Settings
from topicd.limits import MIB

RACE_ROUNDS = 10_000 if FULL else 1_000


def test_F09_a_reader_crosses_segments(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        messages = numbered(0, 3000)
        for message in messages:
            channel.sender().send(message)
        assert len(segment_names(tmp_path)) >= 10
        receiver = channel.receiver()
        assert [receiver.recv(0) for _ in messages] == messages
        assert channel.receiver("batch").recv_many(3000, 0) == messages


def test_F10_headers_chain(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 3000))
    paths = [tmp_path / name for name in segment_names(tmp_path)]
    expected = 0
    for number, path in enumerate(paths):
        segment_id, begin = struct.unpack(">IQ", path.read_bytes()[:12])
        assert segment_id == number
        header = unpack_header(path.read_bytes()[:HEADER_BYTES], packed=False)
        assert header is not None and header.begin == begin and header.end is None
        assert begin == expected
        expected = begin + path.stat().st_size - HEADER_BYTES


def test_F10_the_header_as_bytes() -> None:
    raw = Header(3, 4000, None, True, b"channel!").pack()
    assert len(raw) == 64
    assert raw[:12] == bytes.fromhex("00000003 0000000000000fa0")
    assert raw[12:60] == bytes(20) + b"TFCS\x01\x01channel!" + bytes(14)
    assert unpack_header(raw, packed=False) == Header(3, 4000, None, True, b"channel!")
    for at in range(64):
        broken = bytearray(raw)
        broken[at] ^= 4
        assert unpack_header(bytes(broken), packed=False) is None
    assert unpack_header(raw[:63], packed=False) is None


def test_names_of_files() -> None:
    assert parse_segment("segment.0") == SegmentName(0, "")
    assert parse_segment("segment.12.z") == SegmentName(12, ".z")
    assert parse_segment("segment.12.z.ing") == SegmentName(12, ".z.ing")
    for wrong in (
        "segment.",
        "segment.01",
        "segment.x",
        "segment.1.y",
        "segment.4294967296",
        "xsegment.1",
        "segment.1 ",
    ):
        assert parse_segment(wrong) is None
    assert parse_offset("offset.a-b.c_1") == "a-b.c_1"
    for wrong in ("offset.", "offset.a.tmp", "offset.-", "offsets.a"):
        assert parse_offset(wrong) is None


def test_F11_a_segment_is_cut_before_the_first_message_behind_its_size(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=1 * MIB) as channel:
        for _ in range(10 * 1024):
            channel.sender().send(bytes(1016))
        sizes = [(tmp_path / name).stat().st_size for name in segment_names(tmp_path)]
    assert 10 <= len(sizes) <= 11
    assert all(MIB <= size < MIB + 1024 for size in sizes[:-1])


def test_F11_a_new_segment_is_cut_to_nothing_only_if_something_lay_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ext4 writes a file out when it is closed if it was ever cut to nothing, and a send would wait for all of it."""
    cut: list[int] = []
    real = RealFile.truncate

    def truncate(file: RealFile, size: int) -> None:
        cut.append(size)
        real(file, size)

    monkeypatch.setattr(RealFile, "truncate", truncate)
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 1000))
        for message in numbered(1000, 2000):
            channel.sender().send(message)
        assert 0 not in cut
        (tmp_path / f"segment.{len(segment_names(tmp_path))}").write_bytes(b"left by an attempt" * 1000)
        channel.sender().send_many(numbered(2000, 2400))
        assert cut.count(0) == 1
        assert channel.receiver().recv_many(2400, 0) == numbered(0, 2400)


def test_F12_what_everybody_has_read_goes(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        receiver = channel.receiver("worker")
        channel.sender().send_many(numbered(0, 2000))
        receiver.recv_many(2000, 0)
        channel.compact()
        assert segment_names(tmp_path)[0] == "segment.0"
        receiver.ack_all()
        channel.compact()
        assert len(segment_names(tmp_path)) == 1
        assert names(tmp_path) == {"lock", "shared", "offset.worker", *segment_names(tmp_path)}
        assert channel.stats().begin_offset > 0


def test_F12_a_receiver_that_comes_while_segments_go_finds_what_it_begins_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 1000))
        receiver = channel.receiver("quick")
        receiver.recv_many(1000, 0)
        late: list[Receiver[bytes]] = []

        def come(collector: Collector) -> None:
            if not late:
                with FileChannel(tmp_path, writer=False) as other:
                    other.receiver("elsewhere").close()
                late.append(channel.receiver("late"))

        monkeypatch.setattr(Collector, "_sync_positions", come)
        receiver.ack_all()
        channel.compact()
        assert late[0].recv_many(1000, 0) == numbered(0, 1000)
        assert channel.receiver("elsewhere").recv_many(1000, 0) == numbered(0, 1000)


def test_F12_the_thread_collects_by_itself(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        receiver = channel.receiver("worker", auto_ack=True)
        channel.sender().send_many(numbered(0, 2000))
        receiver.recv_many(2000, 0)
        gone = threading.Event()
        for _ in range(2000):
            if len(segment_names(tmp_path)) == 1:
                break
            gone.wait(0.01)
        assert len(segment_names(tmp_path)) == 1


def test_F12_without_a_receiver_everything_is_kept(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 2000))
        channel.compact()
        assert channel.receiver("late").recv_many(2000, 0) == numbered(0, 2000)
        assert channel.receiver("later", start="newest").unacked == 0


def test_F13_a_reader_in_the_middle_of_a_file_does_not_notice_the_cut(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        sender, receiver = channel.sender(), channel.receiver(auto_ack=True)
        sender.send_many(numbered(0, 100))
        assert receiver.recv(0) == numbered(0, 1)[0]
        sender.send_many(numbered(100, 2000))
        assert [receiver.recv(0) for _ in range(1999)] == numbered(1, 2000)


def compressed_channel(directory: Path, messages: list[bytes]) -> FileChannel[bytes]:
    channel = FileChannel(directory, segment_bytes=SMALL, compress=True)
    channel.sender().send_many(messages)
    return channel


def test_F14_readers_from_before_and_after_a_compression_finish(tmp_path: Path) -> None:
    messages = numbered(0, 3000)
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(messages)
        before = channel.receiver("before")
        assert before.recv(0) == messages[0]
    with compressed_channel(tmp_path, []) as channel:
        before = channel.receiver("before")
        assert before.recv(0) == messages[0]
        open_before = open_segment(RealFs(), tmp_path, 0)
        channel.compact()
        found = segment_names(tmp_path)
        assert found[0] == "segment.0.z" and "segment.0" not in found
        assert all(not name.endswith(".z") for name in found[-2:])
        assert open_before.read_exactly(0, 16)[8:] == messages[0]
        assert before.recv_many(3000, 0) == messages[1:]
        assert channel.receiver("after").recv_many(3000, 0) == messages
        stats = channel.stats()
        assert stats.compressed == len(found) - 2
        assert stats.disk_bytes == sum((tmp_path / name).stat().st_size for name in found)
        before.ack_all()
        channel._receivers["after"].ack_all()
        channel.compact()
        assert len(segment_names(tmp_path)) == 1


def test_F14_a_segment_that_is_not_needed_any_more_is_not_compressed(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 3000))
        assert channel._writer is not None
        collector = channel._writer.collector
        segment = candidates(collector)[0]

        def removed_meanwhile(size: int) -> None:
            collector.drop_oldest()

        assert not compress(RealFs(), tmp_path, collector, segment, removed_meanwhile)
        assert not any(name.startswith("segment.0") for name in names(tmp_path))


def test_F15_the_compressed_header_and_stream(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 3000))
    plain = (tmp_path / "segment.1").read_bytes()
    with compressed_channel(tmp_path, []) as channel:
        channel.compact()
    raw = (tmp_path / "segment.1.z").read_bytes()
    segment_id, begin, end, method = struct.unpack(">IQQB", raw[:21])
    assert (segment_id, method) == (1, METHOD_ZSTD)
    assert begin == struct.unpack(">IQ", plain[:12])[1]
    assert end - begin == len(plain) - HEADER_BYTES
    assert zstd().decompress(raw[HEADER_BYTES:]) == plain[HEADER_BYTES:]
    if shutil.which("zstd"):
        done = subprocess.run(["zstd", "-dc"], input=raw[HEADER_BYTES:], capture_output=True, check=True)
        assert done.stdout == plain[HEADER_BYTES:]


def test_F15_a_compressed_segment_can_be_entered_anywhere(tmp_path: Path) -> None:
    messages = numbered(0, 40_000, size=100)
    with FileChannel(tmp_path, segment_bytes=1 * MIB) as channel:
        sender = channel.sender()
        ends = [sender.send(message) for message in messages]
    with FileChannel(tmp_path, segment_bytes=1 * MIB, compress=True) as channel:
        channel.compact()
        assert sum(name.endswith(".z") for name in names(tmp_path)) >= 2
        for number in (1, 1000, 5001, 9_999, 20_000):
            channel.reset_receiver("jump", ends[number - 1])
            with channel.receiver("jump") as receiver:
                assert receiver.recv_many(50, 0) == messages[number : number + 50]


OPENS_ALL_THE_TIME = """
import mmap, os, sys
from pathlib import Path
from topicd.disk.fs import RealFile, RealFs
from topicd.filechannel.segment import open_segment
root, fs, counts = Path(sys.argv[1]), RealFs(), [0, 0]
fd = os.open(root / "now", os.O_RDWR)
now = memoryview(mmap.mmap(fd, 4096)).cast("Q")
expected = open_segment(fs, root, 0).read_exactly(0, 1 << 20)
print("ready", flush=True)
while (number := now[0]) != 2**64 - 1:
    reader = open_segment(fs, root / str(number), 0)
    counts[reader.is_packed] += 1
    assert reader.read_exactly(0, reader.end()) == expected
    reader.close()
print(*counts)
"""


def test_F16_an_opener_always_finds_the_segment(tmp_path: Path) -> None:
    """A compressor against processes that open: each time a segment of its own."""
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 800))
        assert channel._writer is not None
        segment = candidates(channel._writer.collector)[0]
    (tmp_path / "now").write_bytes(bytes(4096))
    with open(tmp_path / "now", "r+b") as file:
        now = memoryview(mmap.mmap(file.fileno(), 4096)).cast("Q")
    os.makedirs(tmp_path / "0")
    os.link(tmp_path / "segment.0", tmp_path / "0" / "segment.0")
    openers = [python(OPENS_ALL_THE_TIME, tmp_path) for _ in range(2)]
    try:
        for opener in openers:
            assert opener.stdout is not None and opener.stdout.readline() == "ready\n"
        for number in range(1, RACE_ROUNDS + 1):
            folder = tmp_path / str(number)
            folder.mkdir()
            os.link(tmp_path / "segment.0", folder / "segment.0")
            now[0] = number
            collector = Collector(Place(folder, NoSync()), Settings())
            collector.sealed = [segment]
            assert compress(NoSync(), folder, collector, segment)
            assert os.listdir(folder) == ["segment.0.z"]
    finally:
        now[0] = 2**64 - 1
        ends = [opener.communicate(timeout=60) for opener in openers]
        for number in range(RACE_ROUNDS + 1):
            shutil.rmtree(tmp_path / str(number), ignore_errors=True)
    for out, err in ends:
        assert out, err
        assert min(map(int, out.split())) > 10


class NoSync(RealFs):
    """Ten thousand compressions without waiting for the disk: the race is one of names."""

    def sync_dir(self, path: Path) -> None:
        pass

    def open(self, path: Path | str, *, write: bool = False, create: bool = False, exclusive: bool = False):  # type: ignore[no-untyped-def]
        file = super().open(path, write=write, create=create, exclusive=exclusive)
        return Unsynced(file)


class Unsynced:
    def __init__(self, file: object) -> None:
        self._file = file

    def sync(self) -> None:
        pass

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)


def test_F16_receivers_read_through_while_segments_are_compressed(tmp_path: Path) -> None:
    messages = numbered(0, 20_000)
    with FileChannel(tmp_path, segment_bytes=SMALL, compress=True) as channel:
        readers = [channel.receiver(f"r{number}") for number in range(3)]
        found: dict[str, list[object]] = {}

        def read(name: str) -> None:
            receiver = channel._receivers[name]
            found[name] = [receiver.recv(20) for _ in messages]

        threads = [threading.Thread(target=read, args=(reader.name,)) for reader in readers]
        for thread in threads:
            thread.start()
        for at in range(0, len(messages), 50):
            channel.sender().send_many(messages[at : at + 50])
        for thread in threads:
            thread.join()
        assert all(found[reader.name] == messages for reader in readers)


@pytest.mark.parametrize("block", ["head", "body"])
def test_a_damaged_compressed_block_is_reported(tmp_path: Path, block: str) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 1000))
    with compressed_channel(tmp_path, []) as channel:
        channel.compact()
    path = tmp_path / "segment.0.z"
    raw = bytearray(path.read_bytes())
    raw[HEADER_BYTES + (0 if block == "head" else 40)] ^= 0xFF
    path.write_bytes(raw)
    with FileChannel(tmp_path, writer=False) as reading:
        receiver = reading.receiver("late")
        with pytest.raises(Damaged) as caught:
            receiver.recv(0)
        skipped = receiver.skip_damage()
        assert skipped is not None and tuple(skipped) == (caught.value.begin, caught.value.end)
        assert receiver.recv_many(1000, 0) == numbered(skipped.end // 16, 1000)
