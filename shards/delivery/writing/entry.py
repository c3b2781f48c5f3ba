"""Something on its way to the log, and what its outcome means."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topicd.errors import TopicdError
from topicd.shards.delivery.writing.durability import Need

Part = bytes | bytearray | memoryview


class Entry:
    """Subclasses say what committed and failed mean; `answer` always precedes `committed`."""

    __slots__ = ("need", "patient", "ring_end", "size")

    def __init__(self, need: Need, *, patient: bool = False) -> None:
        self.need = need
        self.patient = patient  # nobody waits for it: writes of others go on while it is synced
        self.ring_end = 0
        self.size = 0

    @property
    def awaited(self) -> bool:
        """Are there a few who wait for its records? They come before those who wait for its answer."""
        return False

    def answer(self) -> None:
        """Stored as `need` demands: tell those who wait, nothing else. They go on while the rest is done."""

    def committed(self) -> None:
        """Stored as `need` demands."""

    def failed(self, error: TopicdError) -> None:
        """Not stored, never visible."""


class ControlEntry(Entry):
    __slots__ = ("_applied", "_refused")

    def __init__(
        self,
        need: Need,
        applied: Callable[[], None] | None = None,
        refused: Callable[[TopicdError], None] | None = None,
        *,
        patient: bool = False,
    ) -> None:
        super().__init__(need, patient=patient)
        self._applied = applied
        self._refused = refused

    def committed(self) -> None:
        if self._applied is not None:
            self._applied()

    def failed(self, error: TopicdError) -> None:
        if self._refused is not None:
            self._refused(error)


def pieces(frames: bytearray | memoryview, offsets: Sequence[int], piece: int) -> list[memoryview]:
    """The frames cut at frame boundaries into parts of at most `piece` bytes (a frame is always smaller)."""
    view = memoryview(frames)
    if len(frames) <= piece:
        return [view]
    found, start = [], 0
    for end, following in zip(offsets[1:], [*offsets[2:], len(frames)], strict=True) if len(offsets) > 1 else ():
        if following - start > piece:
            found.append(view[start:end])
            start = end
    found.append(view[start:])
    return found
