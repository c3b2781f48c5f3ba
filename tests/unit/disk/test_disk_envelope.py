from __future__ import annotations

import struct
from pathlib import Path

import msgpack
import pytest
import xxhash

from tests.support.fakedisk import FakeDisk
from topicd.disk import envelope
from topicd.disk.fs import replace_file
from topicd.errors import FormatError

HOME = Path("/meta")
PATH = HOME / "thing.bin"
BODY = {"names": ["a", "b"], 7: b"\x00\xff", "deep": {"x": [1, 2**63, None, True]}}


@pytest.fixture
def disk() -> FakeDisk:
    return FakeDisk(directories=[HOME])


def raw(disk: FakeDisk) -> bytes:
    return disk.files()[PATH]


def refused(disk: FakeDisk, data: bytes, message: str) -> None:
    replace_file(disk, PATH, [data])
    with pytest.raises(FormatError, match=message) as caught:
        envelope.load(disk, PATH, b"TEST", 3)
    assert str(PATH) in caught.value.message
    assert caught.value.detail["path"] == str(PATH)
    assert {"found", "expected"} <= set(caught.value.detail)


def test_the_body_comes_back(disk: FakeDisk) -> None:
    envelope.save(disk, PATH, b"TEST", 3, BODY)
    assert envelope.load(disk, PATH, b"TEST", 3) == BODY
    assert disk.listdir(HOME) == ["thing.bin"]


def test_the_layout_is_the_documented_one(disk: FakeDisk) -> None:
    envelope.save(disk, PATH, b"TEST", 3, [1])
    body = msgpack.packb([1])
    head = b"TEST" + struct.pack("<HHI", 3, 0, len(body))
    assert raw(disk) == head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head + body)) + body


def test_a_missing_file_is_not_a_format_error(disk: FakeDisk) -> None:
    with pytest.raises(FileNotFoundError):
        envelope.load(disk, PATH, b"TEST", 3)


def test_what_is_not_exactly_right_is_refused_with_found_and_expected(disk: FakeDisk) -> None:
    envelope.save(disk, PATH, b"TEST", 3, BODY)
    good = raw(disk)
    refused(disk, b"", "size is 0, expected at least 20")
    refused(disk, good[:19], "size is 19")
    refused(disk, b"ELSE" + good[4:], "magic is b'ELSE', expected b'TEST'")
    refused(disk, good[:4] + b"\x04\x00" + good[6:], "version is 4, expected 3")
    refused(disk, good[:6] + b"\x01\x00" + good[8:], "flags is 1, expected 0")
    refused(disk, good[:-1], f"size is {len(good) - 1}, expected {len(good)}")
    refused(disk, good + b"\0", f"size is {len(good) + 1}")
    refused(disk, good[:12] + b"\0" * 8 + good[20:], "checksum is [0-9a-f]{16}, expected 0{16}")


def test_every_flipped_bit_is_noticed(disk: FakeDisk) -> None:
    envelope.save(disk, PATH, b"TEST", 3, BODY)
    good = raw(disk)
    for at in range(len(good)):
        for bit in (1, 128):
            refused(disk, good[:at] + bytes([good[at] ^ bit]) + good[at + 1 :], "expected")


def test_a_valid_checksum_over_nonsense_is_refused(disk: FakeDisk) -> None:
    head = b"TEST" + struct.pack("<HHI", 3, 0, 1)
    refused(disk, head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head + b"\xc1")) + b"\xc1", "body is")


def test_more_than_the_ceiling_is_neither_written_nor_read(disk: FakeDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "SMALL_FILE_MAX", 100)
    envelope.save(disk, PATH, b"TEST", 3, "small")
    with pytest.raises(FormatError, match="expected at most 100"):
        envelope.save(disk, PATH, b"TEST", 3, "x" * 100)
    assert envelope.load(disk, PATH, b"TEST", 3) == "small"
    replace_file(disk, PATH, [bytes(101)])
    with pytest.raises(FormatError, match="at most 100"):
        envelope.load(disk, PATH, b"TEST", 3)


def test_a_magic_of_another_length_is_a_mistake_of_the_caller(disk: FakeDisk) -> None:
    with pytest.raises(ValueError, match="4 bytes"):
        envelope.save(disk, PATH, b"LONGER", 3, 1)
