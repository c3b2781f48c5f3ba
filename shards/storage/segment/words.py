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
_DICT_BYTES = 16 * KIB
_SAMPLES = 2_000
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
        if self._left <= 0:
            self._words, self._left = train(frames, ends), _TRY_AGAIN
        self._left -= 1
        without = pack(frames, ends, info.first_seq, level, b"")
        if not self._words:
            return without
        found = pack(frames, ends, info.first_seq, level, self._words)
        if found.size <= _WORTH * without.size:
            return found
        self._words = b""
        return without


def train(frames: memoryview, ends: Sequence[int]) -> bytes:
    """Empty: there is too little to learn from."""
    step = max(1, len(ends) // _SAMPLES)
    starts = (0, *ends)
    samples = [bytes(frames[starts[n] : ends[n]]) for n in range(0, len(ends), step) if ends[n] > starts[n]]
    if sum(map(len, samples)) < 8 * _DICT_BYTES:
        return b""
    try:
        words: bytes = zstd().train_dict(samples, _DICT_BYTES).dict_content
    except (zstd().ZstdError, ValueError):
        return b""
    return words
