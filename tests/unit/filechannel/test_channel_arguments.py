"""What callers say: wrong numbers, values that a codec refuses, offsets that are none. Each is refused by name, and
nothing is sent, handed out or acknowledged by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.filechannel.kit import SMALL, Background, names, numbered
from topicd.errors import InvalidRequest
from topicd.filechannel import Damaged, DecodeFailed, FileChannel, NotEnough
from topicd.filechannel.layout import HEADER_BYTES

WRONG_NUMBERS = ["x", float("nan"), 2.5, True, None]


def test_numbers_that_are_none_are_refused(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        channel.sender().send_many(numbered(0, 10))
        receiver: Any = channel.receiver("r")
        receiver.recv_many(5)
        for wrong in WRONG_NUMBERS:
            for call in (receiver.ack, receiver.recv_many, lambda most: channel.receiver("new", max_unacked=most)):
                with pytest.raises(InvalidRequest):
                    call(wrong)
        for options in ({"auto_ack": 1}, {"temporary": "no"}, {"start": 5}):
            with pytest.raises(InvalidRequest):
                channel.receiver("new", **options)
        assert "offset.new" not in names(tmp_path)
        assert receiver.unacked == 5
        assert receiver.recv(0) == numbered(5, 6)[0]


def test_F22_a_timeout_is_a_number_and_any_number_will_do(tmp_path: Path) -> None:
    with FileChannel(tmp_path) as channel:
        sender, receiver = channel.sender(), channel.receiver("r", auto_ack=True)
        sent: Any = sender
        for wrong in ("x", float("nan"), True, b"1", -1, -0.5):
            for call in (
                receiver.recv,
                lambda timeout: receiver.recv_many(1, timeout),
                lambda timeout: sent.send(b"", timeout),
                lambda timeout: sent.send_many([b""], timeout),
            ):
                with pytest.raises(InvalidRequest):
                    call(wrong)  # type: ignore[arg-type]
        assert channel.stats().write_offset == 0
        with pytest.raises(NotEnough):
            receiver.recv(0)
        for endless in (float("inf"), 1e300, 10**12):
            waiting = Background(lambda endless=endless: receiver.recv(endless))
            sender.send(b"there", endless)
            assert waiting.result() == b"there"


def test_values_that_a_codec_cannot_encode_are_refused_and_nothing_is_sent(tmp_path: Path) -> None:
    own: Any = (lambda value: 1 / value, lambda raw: raw)
    wrong: dict[Any, list[object]] = {
        "str": ["\ud800", b"x", 5],
        "json": [{1, 2}, float("nan"), b"x", "\ud800"],
        "msgpack": [{1, 2}, 2**70, object()],
        own: [0, 2],  # an error of its own; a number, which is no buffer
    }
    for number, (codec, values) in enumerate(wrong.items()):
        with FileChannel(tmp_path / str(number), codec=codec) as channel:
            sender: Any = channel.sender()
            for value in values:
                with pytest.raises(InvalidRequest):
                    sender.send(value)
                with pytest.raises(InvalidRequest):
                    sender.send_many(["good", value])
            assert channel.stats().write_offset == 0


@pytest.mark.parametrize("auto_ack", [True, False])
def test_a_message_that_cannot_be_decoded_takes_no_other_with_it(tmp_path: Path, auto_ack: bool) -> None:
    with FileChannel(tmp_path, codec=(lambda text: text.encode(), lambda raw: str(int(raw)))) as channel:
        channel.sender().send_many(["1", "2", "x", "3", "y", "z", "4"])
        receiver = channel.receiver("r", auto_ack=auto_ack)
        found: list[object] = []
        for _ in range(6):
            try:
                found.append(receiver.recv_many(100, 0))
            except DecodeFailed:
                found.append("refused")
        assert found == [["1", "2"], "refused", ["3"], "refused", "refused", ["4"]]
        assert receiver.unacked == (0 if auto_ack else 7)


def test_F03_an_offset_is_zero_or_lies_between_two_messages(tmp_path: Path) -> None:
    with FileChannel(tmp_path, segment_bytes=SMALL) as channel:
        channel.receiver("keeps").close()
        channel.sender().send_many(numbered(0, 1000))
        end = channel.stats().write_offset
        for right in (0, 16, 4096 - 64, end - 16, end):
            assert channel.reset_receiver("r", right) == right
        for wrong in (1, 15, 17, end - 1, end + 1, -16, "middle", None, 1.0, True):
            with pytest.raises(InvalidRequest):
                channel.reset_receiver("r", wrong)  # type: ignore[arg-type]
        # Damage before it in the same file does not hide where messages begin.
        path = tmp_path / "segment.0"
        raw = bytearray(path.read_bytes())
        raw[HEADER_BYTES + 16 * 3 + 10] ^= 1
        path.write_bytes(raw)
        assert channel.reset_receiver("r", 16 * 20) == 16 * 20
        assert channel.receiver("r").recv(0) == numbered(20, 21)[0]
        for wrong in (16 * 3 + 1, 16 * 20 + 1):
            with pytest.raises(InvalidRequest):
                channel.reset_receiver("other", wrong)
        # Where files are missing nobody can say: what is read from there begins with the report.
        (tmp_path / "segment.1").unlink()
        channel.reset_receiver("other", 4096)
        with pytest.raises(Damaged):
            channel.receiver("other").recv(0)
