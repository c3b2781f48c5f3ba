"""Shared memory of one instance."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator

import pytest

from topicd import paths
from topicd.config import ConfigError
from topicd.ipc import shm
from topicd.ipc.ring import Ring
from topicd.limits import MIB
from topicd.paths import Instance
from topicd.supervisor import memory
from topicd.supervisor.memory import Memory


@pytest.fixture
def made() -> Iterator[Memory]:
    found = Memory(secrets.token_hex(8), 2, 3, 2 * MIB)
    yield found
    found.close()
    memory.unlink_all(found.instance)


def test_all_regions_are_made_and_all_are_unlinked(made: Memory) -> None:
    made.create()
    # 6 rings, 2 states of WAL shards, 5 stats pages, the pressure, the tally, the bells
    assert len(shm.names_of(made.instance)) == 6 + 2 + 5 + 1 + 1 + 1
    assert Ring.attach(paths.ring_shm(made.instance, 1, 2), made.instance).capacity == 2 * MIB
    assert list(made.pages) == list(made.bells) == ["wal-00", "wal-01", "dlv-00", "dlv-01", "dlv-02"]
    made.close()
    memory.unlink_all(made.instance)
    assert shm.names_of(made.instance) == []


def test_rings_are_there_only_if_all_was_made(made: Memory) -> None:
    old = Instance(made.instance, 2, 3)
    assert not memory.has_rings(old)
    made.create()
    assert memory.has_rings(old)
    shm.unlink(paths.bells_shm(made.instance))
    assert not memory.has_rings(old)


def test_one_missing_ring_is_noticed(made: Memory) -> None:
    made.create()
    shm.unlink(paths.ring_shm(made.instance, 0, 2))
    assert not memory.has_rings(Instance(made.instance, 2, 3))


def test_what_can_never_fit_is_a_wrong_setting(made: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs(paths.SHM_DIR)
    small = os.statvfs_result((*real[:2], MIB // real.f_frsize, *real[3:]))
    monkeypatch.setattr(os, "statvfs", lambda path: small)
    with pytest.raises(ConfigError, match=r"/dev/shm has 1 MiB in all; 2 x 3 rings of 2MiB and a page .* need 13 MiB"):
        made.create()
    assert shm.names_of(made.instance) == []


@pytest.mark.fault("SHM-01")
@pytest.mark.parametrize("refused", range(6 + 2 + 5 + 1))
def test_what_does_not_fit_now_is_refused_and_leaves_nothing(
    made: Memory, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """Whichever of its regions is the one that /dev/shm has no memory for."""
    left, real = iter(range(100)), os.posix_fallocate

    def fallocate(fd: int, offset: int, size: int) -> None:
        if next(left) == refused:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(fd, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    with pytest.raises(OSError, match=r"/dev/shm has .* MiB free; 2 x 3 rings") as caught:
        made.create()
    assert caught.value.errno == errno.ENOSPC
    assert shm.names_of(made.instance) == []
    assert (made.pages, made.bells) == ({}, {})


@pytest.mark.fault("SHM-02")
def test_no_region_has_a_hole_that_others_could_keep_from_being_filled(made: Memory) -> None:
    made.create()
    for name in shm.names_of(made.instance):
        found = os.stat(f"{paths.SHM_DIR}{name}")
        assert found.st_blocks * 512 >= found.st_size, name
