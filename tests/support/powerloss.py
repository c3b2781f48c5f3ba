"""What a loss of power leaves of files and names in memory. The styles are described in fakedisk."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import NamedTuple

SECTOR = 512
_numbers = count(1)  # of inodes
STYLES = ("lost", "kept", "prefix", "sectors", "zeroed", "names", "bytes")


class Write(NamedTuple):
    order: int
    offset: int
    data: bytes


class Truncate(NamedTuple):
    order: int
    size: int


class Rename(NamedTuple):
    """One change of a directory, done whole or not at all: names with what they stand for from now on."""

    order: int
    names: tuple[tuple[str, Inode | Dir | None], ...]


class Inode:
    def __init__(self, durable: bytes = b"") -> None:
        self.content = bytearray(durable)  # what reads see
        self.durable = bytearray(durable)  # what survives
        self.pending: list[Write | Truncate] = []  # what may
        self.number = next(_numbers)
        self.changed = 0  # by which operation
        self.bad_sectors: list[tuple[int, int]] = []  # bytes that no read gets until they are written again

    def heal(self, start: int, end: int) -> None:
        """These bytes were written, or cut off: the disk puts them elsewhere."""
        parts = [part for a, b in self.bad_sectors for part in ((a, min(b, start)), (max(a, end), b))]
        self.bad_sectors = [(a, b) for a, b in parts if a < b]

    def sync(self) -> None:
        # Not `durable = content`: pages that a failed sync dropped stay lost until they are written again.
        for op in self.pending:
            apply(self.durable, op)
        self.pending.clear()


class Dir:
    def __init__(self) -> None:
        self.live: dict[str, Inode | Dir] = {}
        self.durable: dict[str, Inode | Dir] = {}
        self.pending: list[Rename] = []

    def sync(self) -> None:
        self.durable = dict(self.live)
        self.pending.clear()


def apply(data: bytearray, op: Write | Truncate) -> None:
    if isinstance(op, Truncate):
        del data[op.size :]
        data.extend(bytes(op.size - len(data)))
    else:
        data.extend(bytes(max(op.offset - len(data), 0)))
        data[op.offset : op.offset + len(op.data)] = op.data


class PowerLoss:
    """One way the unsynced part may come out."""

    def __init__(self, seed: int, order: int) -> None:
        self._random = Random(seed)
        self._style = STYLES[seed % len(STYLES)]
        self._until = self._random.randint(0, order)
        self._copies: dict[int, Inode | Dir] = {}

    def directory(self, source: Dir) -> Dir:
        names = dict(source.durable)
        for change in source.pending:
            if self._name_survives(change):
                link(names, change.names)
        copy = Dir()
        copy.live = {name: self._copy(node) for name, node in names.items()}
        copy.sync()
        return copy

    def _copy(self, node: Inode | Dir) -> Inode | Dir:
        if id(node) not in self._copies:
            if isinstance(node, Dir):
                self._copies[id(node)] = self.directory(node)
            else:
                self._copies[id(node)] = copy = Inode(bytes(self._bytes(node)))
                copy.bad_sectors = list(node.bad_sectors)
                copy.number, copy.changed = node.number, node.changed
        return self._copies[id(node)]

    def _name_survives(self, change: Rename) -> bool:
        if self._style == "prefix":
            return change.order <= self._until
        if self._style in {"sectors", "zeroed"}:
            return self._random.random() < 0.5
        return self._style in {"kept", "names"}

    def _bytes(self, node: Inode) -> bytearray:
        left = bytearray(node.durable)
        if self._style in {"kept", "bytes"}:
            for op in node.pending:
                apply(left, op)
        elif self._style == "prefix":
            self._apply_prefix(left, node.pending)
        elif self._style in {"sectors", "zeroed"} and node.pending:
            return self._mix_sectors(node)
        return left

    def _apply_prefix(self, left: bytearray, pending: list[Write | Truncate]) -> None:
        for op in pending:
            if op.order <= self._until:
                apply(left, op)
            elif isinstance(op, Write):
                # The first one behind the point reached the disk in part: whole sectors of old bytes only.
                kept = self._random.randint(0, len(op.data))
                if op.offset + kept < len(left):
                    kept = max((op.offset + kept) // SECTOR * SECTOR - op.offset, 0)
                apply(left, Write(op.order, op.offset, op.data[:kept]))
                return
            else:
                return

    def _mix_sectors(self, node: Inode) -> bytearray:
        sizes, grown = [len(node.durable)], len(node.durable)
        for op in node.pending:
            grown = op.size if isinstance(op, Truncate) else max(grown, op.offset + len(op.data))
            sizes.append(grown)
        size = self._random.choice(sizes)
        left = bytearray(size)
        for start in range(0, size, SECTOR):
            left[start : start + SECTOR] = self._sector(node, start)[: size - start]
        return left

    def _sector(self, node: Inode, start: int) -> bytes:
        window = bytearray(node.durable[start : start + SECTOR].ljust(SECTOR, b"\0"))
        versions = [bytes(window)]
        for op in node.pending:
            if isinstance(op, Truncate):
                if op.size < start + SECTOR:
                    keep = max(op.size - start, 0)
                    window[keep:] = bytes(SECTOR - keep)
                    versions.append(bytes(window))
                continue
            low, high = max(op.offset, start), min(op.offset + len(op.data), start + SECTOR)
            if low < high:
                window[low - start : high - start] = op.data[low - op.offset : high - op.offset]
                versions.append(bytes(window))
        chosen = self._random.choice(versions)
        old = min(max(len(node.durable) - start, 0), SECTOR)
        if self._style == "zeroed" and self._random.random() < 0.3:
            return chosen[:old].ljust(SECTOR, b"\0")
        if self._random.random() < 0.2:
            return chosen[: self._random.randint(old, SECTOR)].ljust(SECTOR, b"\0")
        return chosen


def link(names: dict[str, Inode | Dir], changes: tuple[tuple[str, Inode | Dir | None], ...]) -> None:
    for name, node in changes:
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node
