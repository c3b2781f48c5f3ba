"""Giving space back: sealed segments that every receiver has left behind, and on a full channel the oldest.

Promise: a segment goes only when every receiver's durable offset is behind it, or when the channel may drop and has
noted durably what is dropped, so that each receiver is told of the gap.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock

from topicd.filechannel.errors import OffsetDamaged
from topicd.filechannel.layout import DROPPED, PACKED_SUFFIX, offset_path, segment_path
from topicd.filechannel.offsets import OffsetFile, create_position
from topicd.filechannel.place import Place
from topicd.filechannel.settings import Settings
from topicd.filechannel.survey import Segment

log = logging.getLogger(__name__)


class Collector:
    """sealed is only ever replaced, never changed: other threads look at it without a lock."""

    def __init__(self, place: Place, settings: Settings) -> None:
        self._place = place
        self._settings = settings
        self._lock = Lock()
        self.sealed: list[Segment] = []
        self.on_seal: Callable[[], None] = lambda: None

    def bytes(self) -> int:
        return sum(segment.file_bytes for segment in self.sealed)

    def seal(self, segment: Segment) -> None:
        with self._lock:
            if segment.segment_id not in {known.segment_id for known in self.sealed}:
                self.sealed = [*self.sealed, segment]
        self.on_seal()

    def floor(self) -> int | None:
        """The offset that the slowest receiver has acknowledged; None: nobody receives, or one cannot say."""
        positions = self._place.positions().values()
        known = [position.offset for position in positions if position is not None]
        return min(known) if known and len(known) == len(positions) else None

    def collect(self) -> int:
        """How many segments were removed."""
        with self._lock:
            if not self.sealed:
                return 0
            floor = self.floor()
            if floor is None:
                return 0
            done = [segment for segment in self.sealed if segment.end <= floor]
            # Only from the front: what is between two others is still part of the chain.
            done = [segment for mine, segment in zip(self.sealed, done, strict=False) if mine is segment]
            if done:
                self._sync_positions()
            return sum(1 for segment in done if self._remove_read(segment))

    def _sync_positions(self) -> None:
        """An offset that a power loss takes back must not point to a segment that is gone."""
        for name in self._place.positions():
            with suppress(FileNotFoundError):
                file = self._place.fs.open(offset_path(self._place.directory, name))
                try:
                    file.sync_data()
                finally:
                    file.close()

    def _remove_read(self, segment: Segment) -> bool:
        with self._place.guard():
            # Under the guard, and asked again: somebody may have come who begins with this segment.
            floor = self.floor()
            if floor is None or floor < segment.end:
                return False
            self._remove(segment)
            return True

    def _remove(self, segment: Segment) -> None:
        directory = self._place.directory
        self._place.fs.unlink(segment_path(directory, segment.segment_id), missing_ok=True)
        self._place.fs.unlink(segment_path(directory, segment.segment_id, PACKED_SUFFIX), missing_ok=True)
        # Durably before the next: a power loss that brings back an older one would make a hole.
        self._place.fs.sync_dir(directory)
        self.sealed = [known for known in self.sealed if known.segment_id != segment.segment_id]

    def drop_oldest(self) -> bool:
        """Remove the oldest sealed segment, read or not. False: there is none."""
        with self._lock:
            if not self.sealed:
                return False
            oldest = self.sealed[0]
            self._note_dropped(oldest.end)
            with self._place.guard():
                self._remove(oldest)
            log.warning(
                "oldest messages of a full file channel dropped",
                extra={"directory": str(self._place.directory), "begin": oldest.begin, "end": oldest.end},
            )
            return True

    def _note_dropped(self, end: int) -> None:
        path = self._place.directory / DROPPED
        try:
            note = OffsetFile(self._place.fs, path, sync=True)
        except (FileNotFoundError, OffsetDamaged):
            create_position(self._place.fs, path, end)
            return
        try:
            note.move(max(end, note.offset))
        finally:
            note.close()

    def exchange(self, segment: Segment, packing: Path, file_bytes: int) -> bool:
        """Put the packed file in the place of the plain one. False: the segment is not needed any more."""
        fs, directory = self._place.fs, self._place.directory
        with self._lock:
            if segment not in self.sealed:
                return False
            # The packed name first, durably: at every moment one of the two is there.
            fs.rename(packing, segment_path(directory, segment.segment_id, PACKED_SUFFIX))
            fs.sync_dir(directory)
            fs.unlink(segment_path(directory, segment.segment_id), missing_ok=True)
            packed = Segment(segment.segment_id, segment.begin, segment.end, True, file_bytes, segment.synced)
            self.sealed = [packed if known is segment else known for known in self.sealed]
            return True
