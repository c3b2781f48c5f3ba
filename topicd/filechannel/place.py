"""A channel's directory with what all parts of a process need of it: the filesystem, the shared page, the locks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, RLock

from topicd.disk.datadir import make_directory
from topicd.disk.fs import Fs, RealFs
from topicd.errors import InvalidRequest
from topicd.filechannel.errors import OffsetDamaged
from topicd.filechannel.layout import DROPPED, parse_offset
from topicd.filechannel.lock import WriterLock, try_own
from topicd.filechannel.offsets import Position, read_position
from topicd.filechannel.page import Page, SharedFile
from topicd.filechannel.survey import look


class Place:
    """fs: another filesystem than the real one, in tests; then nothing is shared with other processes."""

    def __init__(self, directory: Path, fs: Fs | None = None) -> None:
        self.directory = directory
        self.fs: Fs = RealFs() if fs is None else fs
        self._is_real = fs is None
        self._shared: SharedFile | None = None
        self._lock: WriterLock | None = None
        self._guard = RLock()
        self._guarded = False  # by this thread, with the lock of the shared file as well
        self.page = Page.private()
        self._closing = Lock()

    def open(self, *, writer: bool) -> None:
        self._make_directory()
        if not self._is_real:
            return
        if writer:
            self._lock = WriterLock(self.directory)
        self._shared = SharedFile(self.directory)
        self.page = self._shared.page

    def _make_directory(self) -> None:
        try:
            make_directory(self.fs, self.directory)
        except (FileExistsError, NotADirectoryError):
            raise InvalidRequest(f"{self.directory} is not a directory", path=str(self.directory)) from None

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Held for moments, by one thread of one process: to begin the page, to add and remove receivers, and to remove
        what none of them needs. The same thread may take it again."""
        with self._guard:
            if self._shared is None or self._guarded:
                yield
                return
            with self._shared.locked():
                self._guarded = True
                try:
                    yield
                finally:
                    self._guarded = False

    def believed(self) -> int | None:
        """What was published, if the page is of this boot. Call under the guard."""
        return self.page.published if self._shared is not None and self._shared.is_trusted() else None

    def begin_page(self, end: int, synced: int) -> None:
        if self._shared is None:
            self.page.note_synced(synced)
            self.page.publish(end)
        else:
            self._shared.begin(end, synced)

    def join_page(self) -> None:
        """Without a writer: if nobody has begun the page since the machine started, the files say where they end."""
        with self.guard():
            if self.believed() is None:
                found = look(self.fs, self.directory)
                self.begin_page(found.end, 0)

    def close(self) -> None:
        with self._closing:
            if self._shared is not None:
                self._shared.close()
            if self._lock is not None:
                self._lock.release()
                self._lock = None

    # ---- receivers' positions ----

    def positions(self, *, remove: bool = True) -> dict[str, Position | None]:
        """Of all receivers, by name; None: both slots are damaged. remove: temporary ones without a process go."""
        found: dict[str, Position | None] = {}
        for name in sorted(self.fs.listdir(self.directory)):
            receiver = parse_offset(name)
            if receiver is None:
                continue
            try:
                position = read_position(self.fs, self.directory / name)
            except FileNotFoundError:
                continue
            except OffsetDamaged:
                found[receiver] = None
                continue
            if not (remove and position.temporary and self._abandoned(self.directory / name)):
                found[receiver] = position
        return found

    def _abandoned(self, path: Path) -> bool:
        if not self._is_real:
            return False
        with self.guard():
            try:
                file = self.fs.open(path)
            except FileNotFoundError:
                return True
            try:
                if not try_own(file):
                    return False
                self.fs.unlink(path, missing_ok=True)
                return True
            finally:
                file.close()

    def dropped(self) -> int:
        """Messages before this offset were dropped because the channel was full."""
        try:
            return read_position(self.fs, self.directory / DROPPED).offset
        except (FileNotFoundError, OffsetDamaged):
            return 0
