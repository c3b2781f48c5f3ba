"""The dictionary of a topic: what its small records have in common, so that packing need not say it in every block.
Promise: it is used where it saves a tenth or more, itself included; a file that was packed with one holds it, and needs
nothing else to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topicd._native.interface import Buffer
from topicd.limits import KIB
from topicd.shards.storage.segment.info import SegmentInfo
from topicd.shards.storage.segment.packed import Packed, zstd

SMALL_RECORD = 1 * KIB
DICT_BYTES = (16 * KIB, 64 * KIB)  # the one that packs better is taken
_SAMPLES = 2_000
_ENOUGH = 4  # times a dictionary: samples with fewer bytes teach it nothing
_WORTH = 0.9  # of the size without
_TRY_AGAIN = 64  # segments: what is written to a topic changes with time

Pack = Callable[[Buffer, Sequence[int], int, int, bytes], Packed]


class Words:
    """Trained from the first segment that is packed, and looked at again from time to time. For one thread."""

    def __init__(self) -> None:
        self._words = b""
        self._left = 0  # segments until it is trained anew

    def pack(self, frames: memoryview, ends: Sequence[int], info: SegmentInfo, level: int, pack: Pack) -> Packed:
        plain = self._left > 0 and not self._words
        if plain or not info.count or len(frames) // info.count >= SMALL_RECORD:
            self._left -= 1
            return pack(frames, ends, info.first_seq, level, b"")
        known = [self._words]
        if self._left <= 0:
            known, self._left = [train(frames, ends, size) for size in DICT_BYTES], _TRY_AGAIN
        self._left -= 1
        without = best = pack(frames, ends, info.first_seq, level, b"")
        self._words = b""
        for words in filter(None, known):
            found = pack(frames, ends, info.first_seq, level, words)
            if found.size <= _WORTH * without.size and found.size < best.size:
                best, self._words = found, words
        return best


def train(frames: memoryview, ends: Sequence[int], size: int) -> bytes:
    """So many bytes. Empty: there is too little to learn from."""
    step = max(1, len(ends) // _SAMPLES)
    starts = (0, *ends)
    samples = [bytes(frames[starts[n] : ends[n]]) for n in range(0, len(ends), step) if ends[n] > starts[n]]
    if sum(map(len, samples)) < _ENOUGH * size:
        return b""
    try:
        words: bytes = zstd().train_dict(samples, size).dict_content
    except (zstd().ZstdError, ValueError):
        return b""
    return words
