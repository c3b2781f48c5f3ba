"""Shared words between two processes: never torn, never zero in between, never going back."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path

import pytest
from word_writer import BOTH_HALVES

from topicd._native.interface import Core

LAST = 1_000_000


def test_word_written_by_another_process_only_grows(codec: Core, tmp_path: Path) -> None:
    path = tmp_path / "word"
    path.write_bytes(bytes(4096))
    writer = Path(__file__).parent / "word_writer.py"
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        child = subprocess.Popen([sys.executable, str(writer), codec.name, str(path), str(LAST)])
        last, changes, load = 0, 0, codec.load
        try:
            while last < LAST:
                word = load(memory, 64)
                value, torn = divmod(word, BOTH_HALVES)
                assert not torn, f"{word:#x}"
                assert value >= last
                changes += value != last
                last = value
                assert child.poll() in (None, 0) if not value else True
        finally:
            child.kill()
            child.wait()
        assert codec.fence_load(memory, 64) == LAST * BOTH_HALVES
        assert changes > 2, "the reader never ran beside the writer"


def test_words_keep_their_neighbours(codec: Core) -> None:
    memory = bytearray(b"\xff" * 24)
    codec.store(memory, 8, 0x0102030405060708)
    assert memory == b"\xff" * 8 + bytes([8, 7, 6, 5, 4, 3, 2, 1]) + b"\xff" * 8
    codec.store_fence(memory, 16, 0)
    assert codec.load(memory, 8) == codec.fence_load(memory, 8) == 0x0102030405060708
    assert (codec.load(memory, 0), codec.load(memory, 16)) == (2**64 - 1, 0)


@pytest.mark.parametrize("offset", [1, 4, 12, 17, 24, 2**63])
def test_word_outside_or_unaligned_is_refused(codec: Core, offset: int) -> None:
    memory = bytearray(24)
    for call in (
        lambda: codec.load(memory, offset),
        lambda: codec.fence_load(memory, offset),
        lambda: codec.store(memory, offset, 1),
        lambda: codec.store_fence(memory, offset, 1),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert caught.value.args == ("invalid_request", f"no aligned word at offset {offset} of 24 bytes")
    assert memory == bytes(24)


def test_load_reads_read_only_memory_and_store_refuses_it(codec: Core) -> None:
    memory = bytes(7) + b"\x01"
    assert codec.load(memory, 0) == 1 << 56
    with pytest.raises(ValueError) as caught:
        codec.store(memory, 0, 1)
    assert caught.value.args == ("invalid_request", "the buffer is read-only")


def test_mapping_can_be_closed_after_use(codec: Core) -> None:
    memory = mmap.mmap(-1, 4096)
    codec.store(memory, 0, 5)
    codec.load(memory, 0)
    codec.ring_write(memory, 64, 128, 120, b"0123456789", 0, 10)
    memory.close()


@pytest.mark.parametrize(
    ("body_at", "capacity", "head", "why"),
    [
        (4, 3, 0, "4 bytes exceed a ring of 3"),
        (4, 13, 0, "a ring of 13 bytes at 4 is outside a memory of 16 bytes"),
        (17, 0, 0, "a ring of 0 bytes at 17 is outside a memory of 16 bytes"),
        (4, 0, 0, "a ring of 0 bytes at 4 is outside a memory of 16 bytes"),
        (2**64 - 1, 8, 0, "a ring of 8 bytes at 18446744073709551615 is outside a memory of 16 bytes"),
        (8, 2**64 - 4, 0, "a ring of 18446744073709551612 bytes at 8 is outside a memory of 16 bytes"),
        (4, 8, 2**64 - 4, "head 18446744073709551612 would overflow"),
    ],
)
def test_ring_write_that_does_not_fit_is_refused(codec: Core, body_at: int, capacity: int, head: int, why: str) -> None:
    memory = bytearray(b"#" * 16)
    with pytest.raises(ValueError) as caught:
        codec.ring_write(memory, body_at, capacity, head, b"abcd", 0, 4)
    assert caught.value.args == ("invalid_request", why)
    assert memory == b"#" * 16


def test_ring_can_be_filled_to_the_last_byte(codec: Core) -> None:
    memory = bytearray(b"#" * 8)
    assert codec.ring_write(memory, 2, 4, 3, b"abcd", 0, 4) == 7
    assert memory == b"##bcda##"


def test_ring_write_wraps(codec: Core) -> None:
    memory = bytearray(b"#" * 16)
    assert codec.ring_write(memory, 4, 8, 1_000_006, b"..abcd..", 2, 6) == 1_000_010
    assert memory == b"####cd####ab####"
