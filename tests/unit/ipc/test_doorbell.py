"""Doorbells: no wake-up is lost, and nobody is woken for nothing."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import pytest

from topicd import _native, paths
from topicd.ipc import doorbell, shm
from topicd.ipc.doorbell import Doorbell

ROUNDS = 20_000


@pytest.fixture
def region(instance: str) -> shm.Region:
    return doorbell.create_words(paths.bells_shm(instance), 2, instance)


def readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_an_awake_process_is_not_rung(region: shm.Region) -> None:
    bell = Doorbell(region, 0, doorbell.create_fd())
    bell.ring()
    assert not readable(bell.fd)


def test_a_sleeping_process_is_rung_and_sleeps_again_only_after_awake(region: shm.Region) -> None:
    bell = Doorbell(region, 1, doorbell.create_fd())
    bell.announce()
    bell.ring()
    bell.ring()
    assert readable(bell.fd)
    bell.awake()
    assert not readable(bell.fd)
    bell.ring()
    assert not readable(bell.fd)


def test_whoever_rings_learns_whether_somebody_slept(region: shm.Region) -> None:
    bell = Doorbell(region, 0, doorbell.create_fd())
    assert not bell.ring()
    bell.announce()
    assert bell.ring()
    assert not bell.ring()


def test_who_has_withdrawn_is_not_rung_until_the_next_announcement(region: shm.Region) -> None:
    bell = Doorbell(region, 0, doorbell.create_fd())
    bell.announce()
    bell.withdraw()
    bell.ring()
    assert not readable(bell.fd)
    bell.announce()
    bell.ring()
    assert readable(bell.fd)


def test_bells_are_apart(region: shm.Region) -> None:
    first, second = (Doorbell(region, i, doorbell.create_fd()) for i in range(2))
    first.announce()
    second.ring()
    assert not readable(second.fd)
    assert not readable(first.fd)


def test_ring_always_reaches_a_process_that_said_nothing(region: shm.Region) -> None:
    bell = Doorbell(region, 0, doorbell.create_fd())
    bell.ring_always()
    assert readable(bell.fd)


# Both sides play ping-pong over two counters and sleep between turns. One lost wake-up and the game stands
# still.
PLAYER = """
import os, select, sys
from topicd._native import core
from topicd.ipc import shm
from topicd.ipc.doorbell import Doorbell

bells, court, instance, me, rounds, fds = sys.argv[1:7]
me, rounds, fds = int(me), int(rounds), [int(fd) for fd in fds.split(",")]
region = shm.attach(bells, shm.RegionKind.BELLS, instance)
words = shm.attach(court, shm.RegionKind.SLOTS, instance).memory
mine, other = Doorbell(region, me, fds[me]), Doorbell(region, 1 - me, fds[1 - me])
MINE, OTHER = 64 + 64 * me, 64 + 64 * (1 - me)

def ball_is_here(turn):
    return core.load(words, OTHER) >= turn + (0 if me == 0 else 1)

for turn in range(rounds):
    while not ball_is_here(turn):
        mine.announce()
        if not ball_is_here(turn):
            # No timeout worth the name: a lost wake-up shows as exit code 9.
            if not select.select([mine.fd], [], [], 20)[0]:
                os._exit(9)
        mine.awake()
    core.store(words, MINE, turn + 1)
    other.ring()
"""


@pytest.mark.skipif(_native.core.name != "native", reason="the twin has no store-load fence")
def test_no_wakeup_is_lost_between_two_processes(region: shm.Region, instance: str) -> None:
    court = f"{paths.shm_prefix(instance)}court"
    words = shm.create(court, shm.RegionKind.SLOTS, 128, instance)
    fds = [doorbell.create_fd() for _ in range(2)]
    for fd in fds:
        os.set_blocking(fd, False)
    base = [sys.executable, "-c", PLAYER, region.name, court, instance]
    players = [
        subprocess.Popen([*base, str(me), str(ROUNDS), ",".join(map(str, fds))], pass_fds=fds) for me in range(2)
    ]
    try:
        assert [player.wait(timeout=100) for player in players] == [0, 0]
    finally:
        for player in players:
            player.kill()
            player.wait()
        for fd in fds:
            os.close(fd)
    assert _native.core.load(words.memory, 64) == _native.core.load(words.memory, 128) == ROUNDS
