"""A value in two slots: the last whole one is always there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from topicd import paths
from topicd.errors import FormatError
from topicd.ipc import shm, slots
from topicd.ipc.slots import Slots


@pytest.fixture
def name(instance: str) -> str:
    made = paths.wal_state_shm(instance, 0)
    slots.create(made, 1024, instance).close()
    return made


def slot_bytes(region: shm.Region, slot: int) -> tuple[int, int]:
    size = region.body_len // 2
    return shm.BODY_AT + slot * size, size


def test_nothing_written_reads_as_none(instance: str, name: str) -> None:
    assert Slots.attach(name, instance).read() is None


def test_the_newest_value_is_read(instance: str, name: str) -> None:
    writer, reader = Slots.attach(name, instance), Slots.attach(name, instance)
    for number in range(7):
        writer.write(b"value %d" % number)
        assert reader.read() == b"value %d" % number


def test_successor_of_a_writer_goes_on_after_its_last_value(instance: str, name: str) -> None:
    Slots.attach(name, instance).write(b"first")
    successor = Slots.attach(name, instance)
    successor.write(b"second")
    assert Slots.attach(name, instance).read() == b"second"


@pytest.mark.parametrize("cut", [1, 8, 12, 20, 24, 30])
def test_torn_write_leaves_the_value_before(instance: str, name: str, cut: int) -> None:
    writer = Slots.attach(name, instance)
    writer.write(b"one " * 10)
    writer.write(b"two " * 10)
    region = shm.attach(name, shm.RegionKind.SLOTS, instance)
    at, size = slot_bytes(region, 1)
    before = bytes(region.memory[at : at + size])
    writer.write(b"three " * 10)
    whole = bytes(region.memory[at : at + size])
    # As if the writer had died after `cut` bytes of its third write.
    region.memory[at : at + size] = whole[:cut] + before[cut:]
    assert Slots.attach(name, instance).read() == b"two " * 10


def test_value_after_a_torn_write_is_read(instance: str, name: str) -> None:
    writer = Slots.attach(name, instance)
    writer.write(b"one")
    region = shm.attach(name, shm.RegionKind.SLOTS, instance)
    at, _ = slot_bytes(region, 0)
    region.memory[at : at + 4] = b"\xff\xff\xff\xff"
    successor = Slots.attach(name, instance)
    successor.write(b"two")
    assert Slots.attach(name, instance).read() == b"two"


def test_too_long_a_value_is_refused_and_the_old_one_stays(instance: str, name: str) -> None:
    writer = Slots.attach(name, instance)
    writer.write(b"old")
    with pytest.raises(FormatError, match="do not fit"):
        writer.write(b"x" * 5000)
    assert writer.read() == b"old"


def test_two_damaged_slots_are_an_error_not_a_value(instance: str, name: str) -> None:
    writer = Slots.attach(name, instance)
    writer.write(b"one")
    writer.write(b"two")
    region = shm.attach(name, shm.RegionKind.SLOTS, instance)
    for slot in (0, 1):
        at, _ = slot_bytes(region, slot)
        region.memory[at + 24] ^= 0xFF
    with pytest.raises(FormatError, match="no whole value"):
        Slots.attach(name, instance).read()


WRITER = """
import sys
from topicd.ipc.slots import Slots
page = Slots.attach(sys.argv[1], sys.argv[2])
number = 0
while True:
    number += 1
    page.write(number.to_bytes(8, "little") * 100)
"""


def test_a_reader_beside_a_busy_writer_sees_whole_values_and_lags_by_one_at_most(instance: str, name: str) -> None:
    writer = subprocess.Popen([sys.executable, "-c", WRITER, name, instance])
    try:
        reader = Slots.attach(name, instance)
        last = reads = 0
        while reads < 3_000:
            raw = reader.read()
            if raw is None:
                continue
            number = int.from_bytes(raw[:8], "little")
            assert raw == raw[:8] * 100
            # A reader that is held up between the two slots may take the older one.
            assert number >= last - 1
            last, reads = max(last, number), reads + 1
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        raw = Slots.attach(name, instance).read()
        assert raw is not None and raw == raw[:8] * 100
    finally:
        writer.kill()
        writer.wait()
