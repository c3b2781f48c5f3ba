"""The bytes of a channel's files: row C4, and files that are not what was written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from topicd.channel import ChannelAcl, ChannelConfig, ChannelState, channel_hash
from topicd.disk import envelope
from topicd.errors import FormatError
from topicd.shards.storage import channel_file

STATE = ChannelState(
    "lobby", "ann", "pubsub", ChannelConfig(100, 1024, 50, True, 0), ChannelAcl((), ("bob",), ()), ("ann", "bob"), "ab"
)
PATH = Path("/data/channels") / channel_hash("lobby") / "metadata.bin"
GOLDEN = (
    "5443484e010000002e000000"  # TCHN, version 1, flags 0, 46 bytes of body
    "%s"
    "97a56c6f626279a3616e6ea67075627375629564cd040032c30093"
    "9091a3626f629092a3616e6ea3626f62a26162"
)


def test_c4_golden_bytes() -> None:
    raw = channel_file.encode(PATH, STATE)
    assert raw.hex() == GOLDEN % raw[12:20].hex()
    assert channel_file.decode(PATH, raw) == STATE


BODY = ["lobby", "ann", "pubsub", [100, 1024, 50, True, 0], [[], ["bob"], []], ["ann", "bob"], "ab"]


def test_the_body_above_is_whole() -> None:
    assert channel_file.decode(PATH, envelope.pack(PATH, channel_file.MAGIC, channel_file.VERSION, BODY)) == STATE


@pytest.mark.parametrize(
    "body",
    [
        [*BODY, "one field more"],
        BODY[:-1],
        [BODY[1], BODY[0], *BODY[2:]],
        ["lobby", "ann", "pubsub", [*BODY[3], 1], *BODY[4:]],
        ["lobby", "ann", "pubsub", BODY[3][:-1], *BODY[4:]],
        ["lobby", "ann", "other", *BODY[3:]],
        [*BODY[:4], [[], ["bob"]], *BODY[5:]],
        [*BODY[:5], ["bob", "ann"], "ab"],
        [*BODY[:5], ["ann", "ann"], "ab"],
        [*BODY[:5], ["no name"], "ab"],
        ["another handler", *BODY[1:]],
        {"handler": "lobby"},
        "lobby",
    ],
)
def test_c4_a_body_of_another_layout_is_refused(body: object) -> None:
    raw = envelope.pack(PATH, channel_file.MAGIC, channel_file.VERSION, body)
    with pytest.raises(FormatError, match=r"metadata\.bin"):
        channel_file.decode(PATH, raw)


def test_another_version_is_refused() -> None:
    with pytest.raises(FormatError, match="version"):
        channel_file.decode(PATH, envelope.pack(PATH, channel_file.MAGIC, 2, BODY))


def test_every_flipped_bit_is_noticed() -> None:
    raw = channel_file.encode(PATH, STATE)
    for at in range(len(raw)):
        for bit in range(8):
            bad = bytearray(raw)
            bad[at] ^= 1 << bit
            with pytest.raises(FormatError):
                channel_file.decode(PATH, bytes(bad))


def test_no_owner_and_no_members() -> None:
    empty = replace(STATE, owner=None, members=())
    assert channel_file.decode(PATH, channel_file.encode(PATH, empty)) == empty
    assert msgpack.unpackb(channel_file.encode(PATH, empty)[20:])[1] is None
