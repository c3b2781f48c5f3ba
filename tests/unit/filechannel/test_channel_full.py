"""A bounded channel: block, refuse, or drop the oldest and say so to each receiver. And damage, which is never skipped
unasked.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.support.faultfs import FaultFs
from tests.unit.filechannel.kit import SMALL, WAIT_S, Background, numbered, segment_names
from topicd.disk.fs import RealFs
from topicd.errors import RecordTooLarge, StorageFailed
from topicd.filechannel import ChannelClosed, ChannelFull, Damaged, FileChannel, Gap, NotEnough
from topicd.filechannel.layout import HEADER_BYTES
from topicd.filechannel.survey import look

MAX = 16 * SMALL


def disk_bytes(directory: Path) -> int:
    return sum((directory / name).stat().st_size for name in segment_names(directory))


def fill(channel: FileChannel[bytes]) -> int:
    """How many fit."""
    for number in range(100_000):
        try:
            channel.sender().send(numbered(number, number + 1)[0], timeout=0)
        except ChannelFull:
            return number
    raise AssertionError("it is never full")


@pytest.mark.parametrize("durability", ["os", "buffered", "fsync"])
def test_a_full_channel_refuses_and_loses_nothing(tmp_path: Path, durability: str) -> None:
    with FileChannel(tmp_path, max_bytes=MAX, full="refuse", durability=durability) as channel:  # type: ignore[misc]
        receiver = channel.receiver("r")
        if durability == "fsync":
            with pytest.raises(ChannelFull):
                while True:
                    channel.sender().send_many(numbered(0, 100))
            return
        count = fill(channel)
        channel.flush()
        assert MAX * 0.7 < disk_bytes(tmp_path) <= MAX
        with pytest.raises(ChannelFull):
            channel.sender().send_many([b"x" * 100])
        assert receiver.recv_many(count, 0) == numbered(0, count)
        # Read is not acknowledged: there is no room yet.
        with pytest.raises(ChannelFull):
            channel.sender().send(b"more")
        receiver.ack_all()
        channel.sender().send(b"more")
        channel.flush()
        assert receiver.recv_many(9, 0) == [b"more"]
        assert disk_bytes(tmp_path) <= MAX // 4 + 200


def test_a_full_channel_blocks_until_a_receiver_makes_room(tmp_path: Path) -> None:
    with FileChannel(tmp_path, max_bytes=MAX) as channel:
        receiver = channel.receiver("r", auto_ack=True)
        messages = numbered(0, 20_000)
        sending = Background(lambda: [channel.sender().send(message) for message in messages])
        assert [receiver.recv(WAIT_S) for _ in messages] == messages
        sending.result()
        assert disk_bytes(tmp_path) <= MAX


def test_a_blocked_sender_is_woken_by_a_reader_in_another_channel_object_and_by_close(tmp_path: Path) -> None:
    channel = FileChannel(tmp_path, max_bytes=MAX)
    with FileChannel(tmp_path, writer=False) as other:
        receiver = other.receiver("r", auto_ack=True)
        count = fill(channel)
        sending = Background(lambda: channel.sender().send(b"waits"))
        assert receiver.recv_many(count, 0) == numbered(0, count)
        sending.result()
        assert receiver.recv(WAIT_S) == b"waits"
        fill(channel)
        sending = Background(lambda: channel.sender().send_many([b"waits for ever"]))
        threading.Event().wait(0.05)
        channel.close()
        with pytest.raises(ChannelClosed):
            sending.result()


def test_the_oldest_is_dropped_and_each_receiver_is_told(tmp_path: Path) -> None:
    with FileChannel(tmp_path, max_bytes=MAX, full="drop_oldest") as channel:
        slow, reading = channel.receiver("slow"), channel.receiver("reading", auto_ack=True)
        channel.sender().send_many(numbered(0, 100))
        assert reading.recv(0) == numbered(0, 1)[0]
        channel.sender().send_many(numbered(100, 30_000))
        assert disk_bytes(tmp_path) <= MAX
        for receiver in (slow, reading):
            found = receiver.recv_many(30_000, 0)
            gaps = [item for item in found if isinstance(item, Gap)]
            assert len(gaps) == 1
            at = found.index(gaps[0])
            first = gaps[0].end // 16
            # What was in its hands is handed out, then the gap, then everything.
            assert found[:at] == numbered(receiver is reading, gaps[0].begin // 16)
            assert found[at + 1 :] == numbered(first, 30_000)
        newcomer = channel.receiver("newcomer")
        assert newcomer.recv(0) == numbered(first, first + 1)[0]
        slow.ack(1)
        assert slow.offset == gaps[0].end or slow.offset > 0
    with FileChannel(tmp_path) as channel:
        assert not isinstance(channel.receiver("slow").recv(0), Gap)


def test_a_message_larger_than_the_channel_is_refused(tmp_path: Path) -> None:
    for full in ("block", "refuse", "drop_oldest"):
        with FileChannel(tmp_path / full, max_bytes=MAX, full=full) as channel:  # type: ignore[misc]
            channel.sender().send(b"before")
            with pytest.raises(RecordTooLarge):
                channel.sender().send(bytes(MAX))
            assert channel.receiver().recv(0) == b"before"


# ---- damage ----


def flip(path: Path, at: int, bits: int = 0xFF) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= bits
    path.write_bytes(raw)


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("known", [True, False], ids=["same boot", "after a start"])
@pytest.mark.parametrize("part", ["length", "checksum", "payload"])
def test_damage_in_the_last_segment_is_kept_and_reported(
    tmp_path: Path, durability: str, known: bool, part: str
) -> None:
    with FileChannel(tmp_path, durability=durability) as channel:  # type: ignore[misc]
        channel.sender().send_many(numbered(0, 10, size=50))
        channel.receiver("r").close()
    flip(tmp_path / "segment.0", HEADER_BYTES + 66 * 4 + {"length": 1, "checksum": 5, "payload": 20}[part])
    if not known:
        (tmp_path / "shared").unlink()
    with FileChannel(tmp_path, durability=durability) as channel:  # type: ignore[misc]
        if not known:
            assert [(lost.begin, lost.end) for lost in channel.damage] == [(66 * 4, 66 * 5)]
        channel.sender().send(b"after")
        receiver = channel.receiver("r")
        assert [receiver.recv(0) for _ in range(4)] == numbered(0, 4, size=50)
        for _ in range(2):
            with pytest.raises(Damaged) as caught:
                receiver.recv(0)
            assert (caught.value.begin, caught.value.end) == (66 * 4, 66 * 5)
        receiver.ack_all()
        assert receiver.skip_damage() == (66 * 4, 66 * 5)
        assert receiver.skip_damage() is None
        assert receiver.offset == 66 * 5
        assert receiver.recv_many(99, 0) == [*numbered(5, 10, size=50), b"after"]


def test_F19_a_missing_middle_segment_is_damage(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 2000))
        waiting = channel.receiver("r")
        waiting.recv_many(10, 0)
    (tmp_path / "segment.2").unlink()
    (tmp_path / "segment.3").unlink()
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        (lost,) = channel.damage
        assert "2 segment files are missing" in lost.reason
        receiver = channel.receiver("r")
        found = receiver.recv_many(2000, 0)
        assert found == numbered(0, lost.begin // 16)
        with pytest.raises(Damaged) as caught:
            receiver.recv(0)
        assert (caught.value.begin, caught.value.end) == (lost.begin, lost.end)
        receiver.skip_damage()
        assert receiver.recv_many(2000, 0) == numbered(lost.end // 16, 2000)


@pytest.mark.parametrize("which", ["first", "middle", "last"])
def test_a_damaged_header_is_damage(tmp_path: Path, which: str) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 2000))
    found = segment_names(tmp_path)
    flip(tmp_path / {"first": found[0], "middle": found[3], "last": found[-1]}[which], 5)
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        (lost,) = channel.damage
        channel.sender().send(b"after")
        receiver = channel.receiver("r", auto_ack=True)
        got: list[object] = []
        while len(got) < 3000:
            try:
                got.append(receiver.recv(0))
            except Damaged as damage:
                assert (damage.begin, damage.end) == (lost.begin, lost.end)
                receiver.skip_damage()
            except NotEnough:
                break
        assert got == [*numbered(0, lost.begin // 16), *numbered(lost.end // 16, 2000), b"after"]


def test_bytes_added_to_a_sealed_segment_hide_no_message(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.sender().send_many(numbered(0, 1000))
        for added in (b"garbage", bytes(3), b"\0\0\0\5abcdhello", b"x" * 5000):
            with open(tmp_path / "segment.1", "ab") as file:
                file.write(added)
            with channel.receiver("r", temporary=True) as receiver:
                assert receiver.recv_many(1000, 0) == numbered(0, 1000)


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        channel.sender().send(b"x")
        receiver = channel.receiver()
        (tmp_path / "segment.77").symlink_to("/nonexistent")
        with pytest.raises(StorageFailed, match="leads nowhere"):
            receiver.recv(0)
        (tmp_path / "segment.77").unlink()
        assert receiver.recv(0) == b"x"


def test_files_shorter_than_what_was_published_leave_a_hole_that_is_reported(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        channel.sender().send_many(numbered(0, 10))
    path = tmp_path / "segment.0"
    path.write_bytes(path.read_bytes()[: HEADER_BYTES + 16 * 6])
    with FileChannel(tmp_path) as channel:
        assert channel.sender().send(numbered(10, 11)[0]) == 16 * 11
        receiver = channel.receiver()
        assert receiver.recv_many(99, 0) == numbered(0, 6)
        with pytest.raises(Damaged) as caught:
            receiver.recv(0)
        assert (caught.value.begin, caught.value.end) == (16 * 6, 16 * 10)
        receiver.skip_damage()
        assert receiver.recv_many(99, 0) == numbered(10, 11)


def test_a_copy_of_the_directory_is_a_channel_of_its_own(tmp_path: Path) -> None:
    """The shared page of a copy is not believed: its inode is another."""
    import shutil

    with FileChannel(tmp_path / "a") as channel:
        channel.sender().send_many(numbered(0, 5))
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        channel.sender().send_many(numbered(5, 10))
        (tmp_path / "b" / "shared").write_bytes((tmp_path / "a" / "shared").read_bytes())
        with FileChannel(tmp_path / "b", writer=False) as copy:
            receiver = copy.receiver()
            assert receiver.recv_many(99, 0) == numbered(0, 5)
            # Believed, it would promise messages that are not there.
            with pytest.raises(NotEnough):
                receiver.recv(0)


def test_a_tail_that_the_disk_does_not_give_is_damage_and_never_cut(tmp_path: Path) -> None:
    """Acknowledged messages may lie there: what cannot be read is not taken for what was never written."""
    with FileChannel(tmp_path) as channel:
        channel.sender().send_many(numbered(0, 50, size=400))
    [name] = segment_names(tmp_path)
    before = (tmp_path / name).read_bytes()
    broken = FaultFs(RealFs(), fail_at=1, always=True, reads=True, only=lambda call, path: call == "read_into")
    found = look(broken, tmp_path)
    assert found.torn is None and not found.appendable
    [damage] = found.damage
    assert "cannot be read" in damage.reason
    assert (found.begin, found.end) == (0, len(before) - HEADER_BYTES)
    assert (tmp_path / name).read_bytes() == before
