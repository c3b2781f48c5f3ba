"""The kernel gives no descriptor (EMFILE, ENFILE) or no memory (ENOMEM), at every call of a start, of work and of fsck.
That says nothing about any file: the start is refused or goes on without loss, nothing is called damaged, nothing goes
to quarantine, and as soon as there is enough again everything is there.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.machine import ROOT, Machine
from tests.faults.test_failed_reads import KEPT, World, found_in, payload, reported
from tests.support.fakedisk import FakeDisk
from tests.support.faultfs import FaultFs
from topicd.cli.offline.check import check_all
from topicd.cli.offline.data_dir import Offline
from topicd.disk import datadir
from topicd.errors import TopicdError
from topicd.paths import DataDir

OPENS = {"open", "create", "listdir", "sync_dir", "sync_filesystem"}
STEP = 1 if os.environ.get("TOPICD_SWEEP") == "full" else 5  # every so manyth call of a start
REFUSALS = [errno.EMFILE, errno.ENOMEM]
Concerned = Callable[[str, Path], bool]


def concerned(code: int) -> Concerned:
    return (lambda name, path: name in OPENS) if code == errno.EMFILE else (lambda name, path: True)


def quarantined(disk: FakeDisk) -> list[Path]:
    return [path for path in disk.files() if "quarantine" in path.parts]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    made = World(FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")]))
    yield made
    made.machine.close()


def calls_of_a_start(world: World, code: int) -> list[tuple[str, Path]]:
    counting = FaultFs(world.disk.image(KEPT), reads=True, only=concerned(code))
    with world.successor(counting) as machine:
        machine.open()
        return list(counting.calls)


@pytest.mark.fault("RES-04")
@pytest.mark.parametrize("always", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_start_that_gets_no_descriptor_or_memory_takes_nothing_for_damaged(
    world: World, code: int, always: bool
) -> None:
    calls = calls_of_a_start(world, code)
    assert len(calls) > 50
    for number, call in list(enumerate(calls, 1))[::STEP]:
        disk = world.disk.image(KEPT)
        fs = FaultFs(disk, number, code, always=always, reads=True, only=concerned(code))
        first = world.successor(fs)
        with first:
            with suppress(TopicdError, OSError):
                first.open()
                fs.fail_at = None
                found = found_in(first)
                assert found == world.living, f"call {number}, {call}: served, but not all of it"
                assert reported(first) == [], f"call {number}, {call}"
            fs.fail_at = None
            first.abandon()
            assert quarantined(disk) == [], f"call {number}, {call}"
            with world.successor(disk, first) as second:
                assert found_in(second.open()) == world.living, f"call {number}, {call}: the next start"
                assert reported(second) == [], f"call {number}, {call}: the next start"


def work(machine: Machine, name: str) -> dict[int, bytes]:
    """What was acknowledged, while any call may fail."""
    done: dict[int, bytes] = {}
    for n in range(6):
        data = payload(name, n)
        with suppress(TopicdError):
            done[machine.append(name, [data], tag=("red", "blue")[n % 2]).first_seq] = data
        if n == 3:
            machine.checkpoint()
            with suppress(TopicdError):
                machine.read(name)
    machine.snapshot()
    machine.checkpoint()
    machine.tick()
    machine.tick_wals()
    with suppress(TopicdError):
        machine.read(name)
    return done


@pytest.mark.fault("RES-05")
@pytest.mark.parametrize("always", [False, True], ids=["once", "for good"])
@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_a_shard_that_gets_no_descriptor_or_memory_goes_on_when_there_is_enough(code: int, always: bool) -> None:
    number, calls = 0, 1
    while number < calls:
        number += 1
        disk = FakeDisk(directories=[ROOT / name for name in ("meta", "wal", "topics")])
        fs = FaultFs(disk, None, code, always=always, reads=True, only=concerned(code))
        with Machine(fs, segment_max_records=4) as machine:
            machine.open()
            machine.configure("f", durability="fsync")
            machine.append("f", [payload("f", 77)])
            machine.checkpoint()
            fs.calls.clear()
            fs.fail_at = number
            done = {1: payload("f", 77), **work(machine, "f")}
            calls = max(calls, fs.count)
            what = f"call {number}: {fs.calls[min(number, fs.count) - 1]}"
            fs.fail_at = None
            machine.advance(1_000)
            machine.tick()
            machine.checkpoint()
            seq = machine.append("f", [b"later"]).first_seq
            done[seq] = b"later"
            assert {seen.seq: seen.data for seen in machine.read("f")} == done, what
            assert reported(machine) == [] and quarantined(disk) == [], what
            machine.abandon()
            with Machine(disk, previous=machine, power_lost=True, segment_max_records=4) as second:
                assert {seen.seq: seen.data for seen in second.open().read("f")} == done, f"{what}: the next start"
                assert reported(second) == [], f"{what}: the next start"
    assert number > 20


@pytest.mark.fault("RES-06")
@pytest.mark.parametrize("code", REFUSALS, ids=errno.errorcode.get)
def test_fsck_that_gets_no_descriptor_or_memory_ends_with_the_reason(world: World, code: int) -> None:
    data = DataDir(ROOT)

    def checked(fs: FaultFs) -> list[str]:
        return [str(one) for one in check_all(Offline(data, fs)).findings if one.path != data.identity]  # type: ignore[arg-type]

    def image() -> FakeDisk:
        disk = world.disk.image(KEPT)
        datadir._write(disk, data, datadir.Format(datadir.FORMAT_VERSION, 1, 0x5EED))
        return disk

    counting = FaultFs(image(), reads=True, only=concerned(code))
    clean = checked(counting)
    for number, call in enumerate(counting.calls, 1):
        try:
            found = checked(FaultFs(image(), number, code, reads=True, only=concerned(code)))
        except (TopicdError, OSError):
            continue
        assert found == clean, f"call {number}, {call}"
    assert counting.count > 50
