"""Shared memory regions say what they are."""

from __future__ import annotations

import struct

import posix_ipc
import pytest

from topicd import paths
from topicd.errors import FormatError
from topicd.ipc import shm
from topicd.ipc.shm import RegionKind


def region_name(instance: str) -> str:
    return f"{paths.shm_prefix(instance)}test"


def test_attached_region_shows_the_bytes_of_the_created_one(instance: str) -> None:
    made = shm.create(region_name(instance), RegionKind.RING, 4096, instance)
    made.memory[shm.BODY_AT : shm.BODY_AT + 5] = b"hello"
    seen = shm.attach(region_name(instance), RegionKind.RING, instance)
    assert seen.body_len == 4096
    assert seen.memory[shm.BODY_AT : shm.BODY_AT + 5] == b"hello"


def test_an_existing_region_is_never_reused(instance: str) -> None:
    shm.create(region_name(instance), RegionKind.RING, 64, instance)
    with pytest.raises(posix_ipc.ExistentialError):
        shm.create(region_name(instance), RegionKind.RING, 64, instance)


def test_missing_region_is_named(instance: str) -> None:
    with pytest.raises(FormatError, match="does not exist"):
        shm.attach(region_name(instance), RegionKind.RING, instance)


@pytest.mark.parametrize(
    ("at", "raw", "label"),
    [
        (0, b"TOPICD\0\0", "magic"),
        (8, struct.pack("<I", 99), "version"),
        (12, struct.pack("<I", RegionKind.STATS), "kind"),
        (16, struct.pack("<Q", 12345), "size"),
        (24, b"0123456789abcdef", "instance"),
    ],
)
def test_a_mismatch_names_the_field_and_both_values(instance: str, at: int, raw: bytes, label: str) -> None:
    made = shm.create(region_name(instance), RegionKind.RING, 64, instance)
    made.memory[at : at + len(raw)] = raw
    with pytest.raises(FormatError, match=f"{label} is .* expected"):
        shm.attach(region_name(instance), RegionKind.RING, instance)


def test_region_without_room_for_a_header_is_refused(instance: str) -> None:
    posix_ipc.SharedMemory(region_name(instance), posix_ipc.O_CREX, size=10).close_fd()
    with pytest.raises(FormatError, match="a header needs"):
        shm.attach(region_name(instance), RegionKind.RING, instance)


def test_names_of_lists_only_the_instance_and_unlink_may_be_repeated(instance: str) -> None:
    shm.create(region_name(instance), RegionKind.RING, 64, instance).close()
    assert shm.names_of(instance) == [region_name(instance)]
    assert shm.names_of("f" * 16) == []
    shm.unlink(region_name(instance))
    shm.unlink(region_name(instance))
    assert shm.names_of(instance) == []
