"""Bytes that came and were not looked at yet, a slice at a time. Promise: slices are large as long as looking is cheap,
and small where it is not, so that one look is short whatever a peer sends.
"""

from __future__ import annotations

from collections import deque

from topicd.limits import KIB

_LEAST, _MOST = 256, 64 * KIB
LOOK_S = 0.0001  # a slice that took longer is followed by a smaller one


class Slices:
    __slots__ = ("_cut", "_size", "_waiting")

    def __init__(self, first: int) -> None:
        """`first`: so large is the first one."""
        self._waiting: deque[bytes | memoryview] = deque()
        self._size = first
        self._cut = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def put(self, data: bytes) -> None:
        self._waiting.append(data)

    def take(self) -> bytes:
        """The next slice; there is one."""
        data = self._waiting[0]
        self._cut = len(data) > self._size
        if self._cut:
            view = memoryview(data)
            self._waiting[0] = view[self._size :]
            return bytes(view[: self._size])
        self._waiting.popleft()
        return data if isinstance(data, bytes) else bytes(data)

    def took(self, seconds: float) -> None:
        """So long it took to look at the last one. What came whole says nothing of what is sent in bulk."""
        if self._cut and seconds > LOOK_S:
            self._size = max(_LEAST, self._size // 2)
        elif self._cut and seconds < LOOK_S / 2:
            self._size = min(_MOST, self._size * 2)

    def rest(self) -> bytes:
        """All that waits, and nothing waits any more."""
        found = b"".join(self._waiting)
        self._waiting.clear()
        return found
