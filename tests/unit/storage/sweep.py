"""Crash an operation after each of its filesystem calls, with several kinds of damage, and look at what is
left.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random

from tests.support.fakedisk import STYLES, FakeDisk
from tests.support.faultfs import Crashed, FaultFs
from tests.support.monitorfs import MonitorFs
from tests.unit.storage.segment_kit import FULL
from topicd.disk.fs import Fs

SEEDS = range(len(STYLES) * (60 if FULL else 6))
POINTS = 1_000_000 if FULL else 60  # crash points tried of one operation

Operation = Callable[[Fs], None]
Check = Callable[[FakeDisk, bool], None]  # the disk as found, did the operation return


def calls_of(disk: FakeDisk, operate: Operation) -> int:
    fs = FaultFs(MonitorFs(disk.image(0)))
    operate(fs)
    return fs.count


def sampled(count: int, seed: int = 0) -> list[int]:
    """All points if they are few, else the ends and a random part of the middle."""
    every = range(count + 1)
    return list(every) if count < POINTS else sorted({0, count, *Random(seed).sample(every, POINTS)})


def sweep(disk: FakeDisk, operate: Operation, check: Check) -> None:
    """Run check on every disk that a crash of the operation may leave. disk must be synced."""
    assert disk.unsynced() == []
    seen: set[int] = set()
    for point in sampled(calls_of(disk, operate)):
        used = disk.image(0)
        fs = FaultFs(MonitorFs(used), crash_after=point)
        done = False
        with suppress(Crashed):
            operate(fs)
            done = True
        for seed in SEEDS:
            left = used.image(seed)
            key = hash((done, fingerprint(left)))
            if key in seen:
                continue
            seen.add(key)
            where = fs.calls[-1] if fs.calls else "nothing"
            with noting(f"crash after call {point} ({where}), seed {seed} ({STYLES[seed % len(STYLES)]})"):
                check(left, done)


def fingerprint(disk: FakeDisk) -> int:
    return hash(frozenset(disk.files().items()))


def images(disk: FakeDisk) -> Iterator[FakeDisk]:
    """What a crash now may leave, each once."""
    seen: set[int] = set()
    for seed in SEEDS if FULL else range(len(STYLES) * 2):
        left = disk.image(seed)
        if fingerprint(left) not in seen:
            seen.add(fingerprint(left))
            yield left


@contextmanager
def noting(where: str) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(where)
        raise


def failures(disk: FakeDisk, operate: Operation) -> Iterator[tuple[str, FaultFs, FakeDisk]]:
    """(what, a filesystem about to fail, its disk) for every call, once and for ever, with both errors."""
    for point in sampled(calls_of(disk, operate)):
        for code in (errno.EIO, errno.ENOSPC):
            for always in (False, True):
                used = disk.image(0)
                what = f"call {point} fails with {errno.errorcode[code]}{' for ever' if always else ''}"
                yield what, FaultFs(MonitorFs(used), point, code, always=always, short=always), used
