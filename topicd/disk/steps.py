"""Steps on files, said first and done together. Promise: a chain is done in order, up to the first step that fails; no
chain minds another.

Fs.run takes chains. The real filesystem does all of them in C, without the interpreter's lock; run_steps below is what
that means, call by call, and serves where there is no C and where tests want to see, fail or crash every single call.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from topicd._native.interface import Buffer, Chain, MakeDir, Put, Rename, Step, SyncDir
from topicd.disk.interface import Failure, File, Fs
from topicd.limits import MIB

__all__ = ["LONG", "PIECE", "Chain", "Failure", "MakeDir", "Put", "Rename", "Step", "SyncDir", "run_steps"]

LONG = 1 * MIB  # a Put from this on goes to the disk piece by piece
PIECE = 1 * MIB


class _TooShort(Exception):
    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def run_steps(fs: Fs, chains: Sequence[Chain]) -> dict[int, Failure]:
    """Fs.run by the single calls of fs."""
    failures = {}
    for number, chain in enumerate(chains):
        failure = _run_chain(fs, chain)
        if failure is not None:
            failures[number] = failure
    return failures


def _run_chain(fs: Fs, chain: Chain) -> Failure | None:
    for number, step in enumerate(chain):
        try:
            _do(fs, step)
        except OSError as error:
            if error.filename is None:
                error.filename = step[0]  # calls on an open file do not know its name
            return Failure(number, error)
        except _TooShort as short:
            return Failure(number, None, short.size)
    return None


def _do(fs: Fs, step: Step) -> None:
    match step:
        case Put():
            _put(fs, step)
        case MakeDir(path):
            fs.mkdir(Path(path))
        case SyncDir(path):
            fs.sync_dir(Path(path))
        case Rename(source, target):
            fs.rename(Path(source), Path(target))


def _put(fs: Fs, step: Put) -> None:
    file = fs.open(step.path, write=True, create=step.create)
    try:
        size, length = file.size(), sum(map(len, step.parts))
        if size < step.offset:
            raise _TooShort(size)
        if size > step.offset + length:
            # Left by an attempt that failed; a seal would count it.
            file.truncate(step.offset + length)
        if length >= LONG:
            _write_long(file, step.parts, step.offset)
        elif length:
            file.pwrite(step.parts, step.offset)
        if step.sync:
            file.sync_data()
    finally:
        file.close()


def _write_long(file: File, parts: Sequence[Buffer], offset: int) -> None:
    """The disk begins with the first piece while the last is not copied yet: the sync behind it waits less."""
    piece: list[Buffer] = []
    length = 0
    for number, part in enumerate(parts, 1):
        piece.append(part)
        length += len(part)
        if length >= PIECE or number == len(parts):
            file.pwrite(piece, offset)
            file.begin_sync(offset, length)
            offset, piece, length = offset + length, [], 0
