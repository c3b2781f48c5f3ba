"""A digest of a set of record ids: 65,536 buckets by their first two bytes, and above them a tree that branches by 16.
Promise: it depends on the set only, not on the order in which ids came and went; two trees differ on the way to every
bucket in which the sets differ.

A bucket is the sum of the BLAKE3 of its ids modulo 2^256, so that an id is added or taken out without knowing the
others. The hash of a node is the BLAKE3 of its 16 children; of an empty one it is zero.
"""

from __future__ import annotations

from blake3 import blake3

from topicd.shards.chat.keys import bucket_of

BUCKETS = 65_536
BRANCH = 16
LEVELS = 4  # below the root: 16, 256, 4,096 and 65,536 nodes
HASH = 16  # bytes of a hash that travel and that parents are made of
_MOD = 1 << 256
EMPTY = bytes(HASH)


class Digest:
    def __init__(self) -> None:
        self._sums: dict[int, int] = {}  # of buckets that are not empty
        self.count = 0
        # By level from the root to the lowest parents: what is known. Of a known node everything below is known.
        self._nodes: list[dict[int, bytes]] = [{} for _ in range(LEVELS)]

    def insert(self, record: bytes) -> None:
        self._add(record, int.from_bytes(blake3(record).digest(), "big"))
        self.count += 1

    def remove(self, record: bytes) -> None:
        self._add(record, -int.from_bytes(blake3(record).digest(), "big"))
        self.count -= 1

    def replace(self, old: bytes | None, new: bytes | None) -> None:
        if old is not None:
            self.remove(old)
        if new is not None:
            self.insert(new)

    def add(self, other: Digest) -> None:
        """Of a set that has nothing in common with this one."""
        for bucket, total in other._sums.items():
            self._change(bucket, total)
        self.count += other.count

    def _add(self, record: bytes, amount: int) -> None:
        self._change(bucket_of(record), amount)

    def _change(self, bucket: int, amount: int) -> None:
        total = (self._sums.get(bucket, 0) + amount) % _MOD
        if total:
            self._sums[bucket] = total
        else:
            self._sums.pop(bucket, None)
        for level in range(LEVELS - 1, -1, -1):
            bucket //= BRANCH
            if self._nodes[level].pop(bucket, None) is None:
                break  # then nothing above is known either

    @property
    def root(self) -> bytes:
        return self.node(0, 0)

    def node(self, level: int, index: int) -> bytes:
        """Level 0 is the root, level LEVELS the buckets."""
        if level == LEVELS:
            total = self._sums.get(index)
            return EMPTY if total is None else blake3(total.to_bytes(32, "big")).digest()[:HASH]
        known = self._nodes[level].get(index)
        if known is None:
            below = self.children(level, index)
            known = EMPTY if not any(below) else blake3(below).digest()[:HASH]
            self._nodes[level][index] = known
        return known

    def children(self, level: int, index: int) -> bytes:
        """Hashes of the 16 nodes below one, joined."""
        first = index * BRANCH
        return b"".join(self.node(level + 1, child) for child in range(first, first + BRANCH))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and self._sums == other._sums and self.count == other.count

    __hash__ = None  # type: ignore[assignment]
