"""The log of one WAL shard: where the next group goes, and which file is next. Promise: after append() returns the
group is in the file, after sync() everything appended survives power loss; a file whose sync failed is never
written again. Knows files and LSNs, no rings.

A sync that nobody waits for runs beside (aside.py): begin_sync() says what it will cover, end_sync() that it does. A
sync that is awaited and the end of the file wait for that one first, and hear its failure.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from topicd import paths
from topicd._native.interface import Buffer
from topicd.disk.fs import Fs
from topicd.limits import MIB
from topicd.shards.storage import walfile
from topicd.shards.wal.aside import ENDED, Aside, InTurn
from topicd.shards.wal.spares import Prepared, Spares

_PIECE = 1 * MIB  # unsynced, it is sent to the disk


def _nearly_full(file: Prepared) -> int:
    """From this offset on the next file shall be ready."""
    return file.size * 3 // 4


class WalLog:
    def __init__(
        self, fs: Fs, directory: Path, file_bytes: int, run: int, seed: int, aside: Aside | None = None
    ) -> None:
        self._fs = fs
        self.aside = InTurn() if aside is None else aside
        self._covers: int | None = None  # up to here, if a sync beside is under way
        self._sent_lsn = 0
        self._directory = directory
        self._file_bytes = file_bytes
        self.run = run
        self.seed = seed
        self._spares = Spares(fs, directory, file_bytes, self._reached)
        self._active: Prepared | None = None
        self.first_lsn = 0
        self.lsn = 0
        self.live_lsn: Callable[[], int] | None = None  # while turns are under way that do not count it here
        self.synced_lsn = 0
        self.rotations = 0

    @property
    def dirty(self) -> bool:
        return self.lsn > self.synced_lsn

    def open(self, lsn: int, first_lsn: int | None) -> None:
        """Go on at lsn, in the file that begins at first_lsn, or in a new file when that one is not usable. All below
        lsn is durable afterwards: the writer before may have died between a write and its sync."""
        self._fs.mkdir(self._directory)
        # Also when it was there: a start before this one may not have come to the sync.
        self._fs.sync_dir(self._directory.parent)
        self._spares.open()
        self.aside.open()
        self.lsn = self.synced_lsn = lsn
        if first_lsn is not None and self._reopen(first_lsn):
            return
        self._activate(lsn)

    def close(self) -> None:
        self._abandon_active()
        self._spares.close()
        self.aside.close()

    def fits(self, length: int) -> bool:
        """Does the next group go to the file that is in use?"""
        return self._active is not None and self._offset + walfile.GROUP.size + length <= self._active.size

    @property
    def lacks_successor(self) -> bool:
        """Is it time to have the next file ready? Not sooner: under load an old one may come back until then."""
        nearly_full = self._active is not None and self._offset > _nearly_full(self._active)
        return nearly_full and not self._spares.any_ready

    def append(self, parts: Sequence[Buffer], length: int) -> None:
        need = walfile.GROUP.size + length
        if not self.fits(length):
            self._rotate()
        active = self._require_active()
        offset = self._offset
        if offset + need > active.filled_to:
            self._spares.overtake(active, offset + need)
        header = walfile.group_header(length, self.lsn, self.synced_lsn, self.run, self.seed)
        active.file.pwrite([header, *parts], offset)
        self.lsn += need
        self.send_ahead()

    def native_room(self) -> tuple[int, int]:
        """(descriptor of the file in use, offset up to which groups may be written through it with nothing else to be
        done); 0: nothing may."""
        active = self._active
        fd = None if active is None else getattr(active.file, "raw_fd", None)
        if active is None or fd is None:
            return -1, 0
        limit = min(active.filled_to, active.size)
        return fd, limit if self._spares.any_ready else min(limit, _nearly_full(active))

    def send_ahead(self) -> None:
        """Let the disk begin with what was written, so that the next sync has little to do."""
        start = max(self._sent_lsn, self.synced_lsn, self.first_lsn)
        if self._active is not None and self.lsn - start >= _PIECE:
            self._sent_lsn = self.lsn
            self.aside.send(self._active.file, start - self.first_lsn, self._offset)

    @property
    def syncs_beside(self) -> bool:
        return self._covers is not None

    @property
    def has_ended(self) -> bool:
        """Is there an end_sync() that does not wait?"""
        return self._covers is not None and self.aside.state == ENDED

    def begin_sync(self) -> None:
        """Sync what is written now, beside what comes."""
        file = self._require_active().file
        self._covers = self.lsn
        self.aside.begin(file)

    def end_sync(self) -> float:
        """The seconds that it took; waits for it if it has to."""
        covers, self._covers = self._covers, None
        try:
            took_s = self.aside.take()
        except OSError:
            self.sync_failed()
            raise
        if covers is not None:
            self.synced_lsn = covers
        return took_s

    def sync(self) -> None:
        if self.syncs_beside:
            # Of a failure only one of two syncs at once would hear.
            self.end_sync()
            if not self.dirty:
                return
        try:
            self._require_active().file.sync_data()
        except OSError:
            self.sync_failed()
            raise
        self.synced_lsn = self.lsn

    def sync_failed(self) -> None:
        """Everything since the last good sync is void: the kernel may have dropped the pages."""
        self.lsn = self.synced_lsn
        self._abandon_active()

    def forget_append(self, lsn: int) -> None:
        """An append failed: the next one goes where it stood. Its header is wiped so that it is never read."""
        # Lower already if it was a sync that failed, before a rotation.
        self.lsn = min(lsn, self.lsn)
        if self._active is None:
            return
        try:
            self._active.file.pwrite([bytes(walfile.GROUP.size)], self._offset)
        except OSError:
            # Then the file itself is bad: a new one begins here, and readers end this one at its first LSN.
            self._abandon_active()

    def finished_files(self) -> list[walfile.WalFile]:
        return [f for f in walfile.list_files(self._fs, self._directory) if f.first_lsn < self.first_lsn]

    def recycle(self, file: walfile.WalFile) -> None:
        self._spares.recycle(file.path)

    def prepare_successor(self) -> None:
        self._spares.prepare()

    def tick(self) -> None:
        """Once a second."""
        self._spares.tick()

    def _reached(self) -> int:
        """Up to which LSN it is written, also for other threads."""
        live = self.live_lsn
        return self.lsn if live is None else live()

    @property
    def _offset(self) -> int:
        return self.lsn - self.first_lsn

    def _require_active(self) -> Prepared:
        if self._active is None:
            raise OSError(errno.EIO, "the WAL shard has no file to write to")
        return self._active

    def _reopen(self, first_lsn: int) -> bool:
        path = self._directory / paths.wal_file_name(first_lsn)
        if not self._fs.exists(path):
            return False
        file = self._fs.open(path, write=True)
        file.sync_data()
        size, written = file.size(), self.lsn - first_lsn
        if not written <= size <= self._file_bytes:
            file.close()  # of another wal_file_bytes, perhaps: it is finished as it is
            return False
        self._active = Prepared(path, file, size, self._file_bytes)
        self._active.first_lsn = first_lsn
        self._spares.fill(self._active)
        self.first_lsn = first_lsn
        return True

    def _rotate(self) -> None:
        if self._active is not None:
            if self.dirty:
                self.sync()
            self.aside.leave(self._active.file)
            self._spares.finish(self._active)
            self._active = None
            self.rotations += 1
        self._activate(self.lsn)

    def _activate(self, lsn: int) -> None:
        """The next file gets its name before anything is written to it, and the name is durable before the bytes.

        A file of that name is left over from a failure or a crash in this very step; all it holds is void.
        """
        target = self._directory / paths.wal_file_name(lsn)
        prepared = self._spares.take()
        try:
            self._fs.rename(prepared.path, target)
            self._fs.sync_dir(self._directory)
        except OSError:
            self._spares.release(prepared)
            raise
        prepared.path = target
        prepared.first_lsn = lsn
        self._active = prepared
        self.first_lsn = lsn

    def _abandon_active(self) -> None:
        if self._covers is not None:
            self._covers = None
            with suppress(OSError):  # all that is not synced is void, with the file
                self.aside.take()
        if self._active is not None:
            self.aside.leave(self._active.file)
            self._spares.release(self._active)
            self._active = None
