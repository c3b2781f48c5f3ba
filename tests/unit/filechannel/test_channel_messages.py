"""Rows F1 to F8 of the features: messages, offsets, restart, fan-out, acknowledgement."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import pytest

from tests.unit.filechannel.kit import SMALL, Background, child, names, numbered, segment_names
from topicd.errors import InvalidRequest, RecordTooLarge
from topicd.filechannel import ChannelClosed, Codec, Damaged, DecodeFailed, FileChannel, NotEnough, NotUnacked
from topicd.filechannel import OffsetDamaged as Unreadable
from topicd.filechannel.layout import HEADER_BYTES, MAX_MESSAGE
from topicd.filechannel.offsets import SLOTS_AT


@pytest.mark.parametrize("durability", ["buffered", "os"])
def test_F01_messages_arrive_in_the_order_they_were_sent(tmp_path: Path, durability: str) -> None:
    with FileChannel(tmp_path, durability=durability) as channel:  # type: ignore[misc]
        sender, receiver = channel.sender(), channel.receiver(auto_ack=True)
        for message in numbered(0, 100_000):
            sender.send(message)
        channel.flush()
        assert [receiver.recv(0) for _ in range(100_000)] == numbered(0, 100_000)
        with pytest.raises(NotEnough):
            receiver.try_recv()


def test_F02_a_message_is_length_checksum_payload(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        channel.sender().send(b"hello")
        channel.sender().send(b"")
    found = (tmp_path / "segment.0").read_bytes()[HEADER_BYTES:]
    assert found == bytes.fromhex("00000005 46f6d486") + b"hello" + bytes.fromhex("00000000 2144df1c")
    length = struct.pack(">I", 5)
    assert found[:8] == length + struct.pack(">I", zlib.crc32(length + b"hello"))


def test_F02_a_flipped_byte_is_a_checksum_error(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        channel.sender().send_many([b"first", b"second"])
        path = tmp_path / "segment.0"
        raw = bytearray(path.read_bytes())
        raw[HEADER_BYTES + 8] ^= 1
        path.write_bytes(raw)
        receiver = channel.receiver()
        with pytest.raises(Damaged, match="checksum") as caught:
            receiver.recv(0)
        assert (caught.value.begin, caught.value.end) == (0, 13)


def test_F03_a_reader_at_the_end_waits_and_the_offset_rises_by_eight_and_the_length(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        sender, receiver = channel.sender(), channel.receiver()
        waiting = Background(receiver.recv)
        assert sender.send(b"12345") == 13
        assert waiting.result() == b"12345"
        receiver.ack()
        assert receiver.offset == 13
        assert sender.send(b"") == 21
        assert receiver.recv(0) == b""
        with pytest.raises(NotEnough):
            receiver.recv(0.01)


KILLED_AFTER_RECV = """
import os, signal, sys
from topicd.filechannel import FileChannel
channel = FileChannel(sys.argv[1])
channel.sender().send_many([b"%d" % i for i in range(10)])
receiver = channel.receiver("worker", auto_ack=True)
print([receiver.recv() for _ in range(4)], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_F04_after_a_kill_the_next_message_is_next(tmp_path: Path) -> None:
    with child(KILLED_AFTER_RECV, tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{[b'%d' % i for i in range(4)]}\n"
        process.wait()
    with FileChannel(tmp_path) as channel:
        receiver = channel.receiver("worker")
        assert receiver.recv_many(100, 0) == [b"%d" % i for i in range(4, 10)]


def damage_slot(path: Path, number: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[SLOTS_AT[number] + 16] ^= 0xFF
    path.write_bytes(raw)


def test_F05_a_damaged_slot_gives_way_to_the_other(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        channel.sender().send_many(numbered(0, 5))
        receiver = channel.receiver("worker", auto_ack=True)
        for _ in range(3):
            receiver.recv(0)
    path = tmp_path / "offset.worker"
    newest = max((0, 1), key=lambda n: int.from_bytes(path.read_bytes()[SLOTS_AT[n] + 8 :][:8], "big"))
    damage_slot(path, newest)
    with FileChannel(tmp_path) as channel:
        receiver = channel.receiver("worker")
        # One step back: repeated, not skipped.
        assert receiver.recv_many(10, 0) == numbered(2, 5)
        receiver.ack()
    with FileChannel(tmp_path) as channel:
        assert channel.receiver("worker").recv_many(10, 0) == numbered(3, 5)


def test_F05_two_damaged_slots_are_refused_until_the_owner_says_where(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 600))
        channel.receiver("worker", auto_ack=True).recv_many(5, 0)
        channel.compact()
    for number in (0, 1):
        damage_slot(tmp_path / "offset.worker", number)
    before = segment_names(tmp_path)
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        with pytest.raises(Unreadable):
            channel.receiver("worker")
        # Nobody knows what it needs: nothing goes.
        channel.receiver("other", auto_ack=True).recv_many(10_000, 0)
        channel.compact()
        assert segment_names(tmp_path) == before
        assert channel.stats().receivers["worker"].offset is None
        channel.reset_receiver("worker", 16 * 595)
        assert channel.receiver("worker").recv_many(10, 0) == numbered(595, 600)
        for wrong in (16 * 595 + 1, 10**9, "middle"):
            with pytest.raises(InvalidRequest):
                channel.reset_receiver("again", wrong)  # type: ignore[arg-type]


def test_F07_what_the_slowest_needs_is_kept_and_goes_when_it_is_removed(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        slow, quick = channel.receiver("slow", temporary=True), channel.receiver("quick", auto_ack=True)
        assert slow.name == "slow"
        channel.sender().send_many(numbered(0, 1000))
        assert quick.recv_many(1000, 0) == numbered(0, 1000)
        channel.compact()
        assert slow.recv_many(1000, 0) == numbered(0, 1000)
        assert segment_names(tmp_path)[0] == "segment.0"
        with pytest.raises(ValueError):
            slow._position.move(slow.offset - 1)
        slow.close()
        channel.compact()
        assert len(segment_names(tmp_path)) == 1
        assert "offset.slow" not in names(tmp_path)


def test_F07_a_named_receiver_holds_its_messages_while_it_is_closed(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.receiver("slow").close()
        channel.sender().send_many(numbered(0, 1000))
        channel.receiver("quick", auto_ack=True).recv_many(1000, 0)
        channel.compact()
        assert channel.receiver("slow").recv(0) == numbered(0, 1)[0]
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        assert channel.remove_receiver("slow")
        assert not channel.remove_receiver("slow")
        channel.compact()
        assert len(segment_names(tmp_path)) == 1


def test_F08_acknowledging_moves_past_the_oldest(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        channel.sender().send_many(numbered(0, 10))
        receiver = channel.receiver("worker")
        assert [receiver.recv(0) for _ in range(10)] == numbered(0, 10)
        assert receiver.unacked == 10
        receiver.ack(4)
        assert receiver.unacked == 6
        with pytest.raises(NotUnacked):
            receiver.ack(7)
        assert receiver.unacked == 6
    with FileChannel(tmp_path) as channel:
        receiver = channel.receiver("worker")
        assert receiver.recv(0) == b"00000004"
        receiver.ack_all()
        assert receiver.recv_many(100, 0) == numbered(5, 10)


def test_codecs(tmp_path: Path) -> None:
    with FileChannel(tmp_path / "str", codec="str") as texts:
        texts.sender().send("grüße")
        assert texts.receiver().recv(0) == "grüße"
    for codec in ("json", "msgpack"):
        with FileChannel(tmp_path / codec, codec=codec) as values:  # type: ignore[call-overload]
            values.sender().send_many([{"a": [1, None]}, "x"])
            assert values.receiver().recv_many(2, 0) == [{"a": [1, None]}, "x"]
    own: Codec[int] = Codec(lambda number: b"%d" % number, int)
    with FileChannel(tmp_path / "own", codec=own) as numbers:
        numbers.sender().send(7)
        assert numbers.receiver().recv(0) == 7
    with FileChannel(tmp_path / "pair", codec=(lambda n: b"%d" % n, int)) as pair:
        pair.sender().send(8)
        assert pair.receiver().recv(0) == 8


def test_a_message_that_cannot_be_decoded_is_stepped_over_by_an_ack(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as raw:
        raw.sender().send_many([b"{", json.dumps(1).encode()])
    with FileChannel(tmp_path, codec="json") as channel:
        receiver = channel.receiver()
        with pytest.raises(DecodeFailed):
            receiver.recv(0)
        receiver.ack()
        assert receiver.recv(0) == 1


def test_bad_input_is_refused_and_nothing_is_sent(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        sender = channel.sender()
        for wrong in ("text", 7, None):
            with pytest.raises(InvalidRequest):
                sender.send(wrong)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequest):
                sender.send_many([b"good", wrong])  # type: ignore[list-item]
        with pytest.raises(RecordTooLarge):
            sender.send(bytes(MAX_MESSAGE + 1))
        assert channel.stats().write_offset == 0
        for name in (5, "", "a/b", "../x", "x" * 101, "x.tmp", ".hidden"):
            with pytest.raises(InvalidRequest):
                channel.receiver(name)
        sender.send(memoryview(b"abcd").cast("H"))  # type: ignore[arg-type]
        sender.send_many([bytearray(b"x"), memoryview(b"abcd").cast("H")])  # type: ignore[list-item]
        assert channel.receiver().recv_many(9, 0) == [b"abcd", b"x", b"abcd"]
        sender.close()
        with pytest.raises(ChannelClosed):
            sender.send(b"")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="not a directory"):
        FileChannel(tmp_path / "file")


WRONG = [
    {"durability": "never"},
    {"full": "explode"},
    {"segment_bytes": 1},
    {"segment_bytes": 1e6},
    {"max_bytes": 5},
    {"max_bytes": float("nan")},
    {"depth": 1},
    {"compress": "yes"},
    {"writer": "no"},
    {"codec": "pickle"},
    {"codec": (bytes,)},
    {"codec": (1, 2)},
    # Without effect:
    {"full": "refuse"},
    {"flush_interval": 1.0},
    {"writer": False, "max_bytes": 1 << 20},
    {"writer": False, "compress": True},
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_options_that_are_wrong_or_say_nothing_are_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        FileChannel(tmp_path / "new", **options)  # type: ignore[call-overload]
    assert not (tmp_path / "new").exists()


def test_a_directory_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        FileChannel("")


def test_a_closed_channel_says_so(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path)
    channel.close()
    for call in (channel.receiver, channel.sender, channel.stats, channel.compact):
        with pytest.raises(ChannelClosed):
            call()
    for name in ("remove_receiver", "reset_receiver"):
        with pytest.raises(ChannelClosed):
            getattr(channel, name)("r", *["oldest"][: name.startswith("reset")])


def test_what_is_not_text_is_refused_by_its_kind(tmp_path: Path) -> None:
    with FileChannel(tmp_path, codec="str") as channel, pytest.raises(InvalidRequest, match="text, not bytes"):
        channel.sender().send(b"x")  # type: ignore[arg-type]


def test_json_that_json_does_not_know_is_refused(tmp_path: Path) -> None:
    with FileChannel(tmp_path, codec="json") as channel:
        with pytest.raises(InvalidRequest, match="JSON"):
            channel.sender().send(float("nan"))
        assert channel.stats().write_offset == 0


@pytest.mark.parametrize("durability", ["buffered", "os", "fsync"])
def test_large_messages_go_through(tmp_path: Path, durability: str) -> None:
    messages = [bytes([size % 251]) * size for size in (1, 2**20 - 8, 2**20, 3 * 2**20, 0, 5)]
    with FileChannel(tmp_path, durability=durability) as channel:  # type: ignore[misc]
        sender, receiver = channel.sender(), channel.receiver()
        sender.send_many(messages)
        for message in messages:
            sender.send(message)
        channel.flush()
        assert [receiver.recv(0) for _ in range(12)] == messages * 2
