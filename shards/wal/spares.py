"""WAL files ahead of their use. Promise: at an ordinary pace a file has its blocks before they are written over,
because overwriting syncs a third faster than appending. A filler thread writes zeros ahead of the committer.

Zeros on their way to the disk hold up the syncs of those who wait for an answer. So while the log is written to, the
filler keeps a few MiB ahead and no more; the rest of the file it fills when nobody writes.

In a flood zeros would only be written to be written over: the filler does not hurry, a committer that overtakes it
fills the file with its own bytes, and every file that was absorbed is kept until it is quiet again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from topicd import paths
from topicd.disk.fs import File, Fs, no_file
from topicd.limits import MIB

_STEP = 1 * MIB
_AHEAD = 4 * MIB  # of the writer, so much has its blocks
_PACE_S = 0.025  # between two steps when less has, or nobody writes
_REST_S = 0.05  # so long nobody has written before the first step beyond _AHEAD
_OVERTAKEN_S = 0.25
_QUIET_TICKS = 60  # without a file being taken
KEPT = 2  # recycled files kept beyond the one in preparation
KEPT_IN_FLOOD = 8  # what waits to be absorbed comes back all at once


class Prepared:
    """A file that is being zero-filled or was; its owner may write below `filled_to`."""

    def __init__(self, path: Path, file: File, filled_to: int, size: int) -> None:
        self.path = path
        self.file = file
        self.filled_to = filled_to
        self.first_lsn: int | None = None  # once it is in use
        self.size = size
        self.error: OSError | None = None

    def ahead(self, reached: int) -> int:
        """Bytes that have blocks and are still to be written by its owner, who has come that far."""
        return self.filled_to - (reached - self.first_lsn if self.first_lsn is not None else 0)


class Spares:
    def __init__(self, fs: Fs, directory: Path, file_bytes: int, reached: Callable[[], int]) -> None:
        """reached: up to which LSN the log is written, as any thread may ask."""
        self._fs = fs
        self._directory = directory
        self._file_bytes = file_bytes
        self._reached = reached
        self._changed = threading.Condition()
        self._ready: list[Prepared] = []
        self._filling: Prepared | None = None
        self._step = threading.Lock()  # held while the filler writes, so that no file is closed under it
        self._overtaken = False
        self._seen = 0  # how far the log was written when the filler last looked
        self._quiet_ticks = 0
        self._stopping = False
        self._thread = threading.Thread(target=self._fill_forever, name="wal-filler", daemon=True)
        self._number = 0

    def open(self) -> None:
        for name in self._fs.listdir(self._directory):
            number = paths.parse_spare_file(name)
            path = self._directory / name
            if number is None or no_file(self._fs, path):
                continue
            self._number = max(self._number, number)
            self._adopt(path)
        self._thread.start()

    def close(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()
        for prepared in self._ready:
            prepared.file.close()
        self._ready.clear()

    def take(self) -> Prepared:
        """The next file, possibly still being filled. Raises the OSError that kept it from being made."""
        with self._changed:
            self._quiet_ticks = 0
            if self._ready:
                return self._ready.pop(0)
        return self._start_one()

    @property
    def any_ready(self) -> bool:
        return bool(self._ready)

    def prepare(self) -> None:
        """Have one ready soon; errors show when it is taken."""
        if self.any_ready:
            return
        try:
            prepared = self._start_one()
        except OSError:
            return
        with self._changed:
            self._ready.append(prepared)

    def fill(self, prepared: Prepared) -> None:
        """Go on with a file of an earlier start that may have been filled in part."""
        if prepared.filled_to < prepared.size:
            with self._changed:
                self._filling = prepared
                self._changed.notify_all()

    def overtake(self, prepared: Prepared, up_to: int) -> None:
        """The owner writes the bytes below up_to now; the filler goes on behind them, and not at once."""
        with self._step:
            if prepared.error is not None:
                raise prepared.error
            self._overtaken = True
            prepared.filled_to = max(prepared.filled_to, min(up_to, prepared.size))

    def finish(self, prepared: Prepared) -> None:
        """Release a file that is full. If its owner was faster than the filler, its last piece has no blocks: it is
        worth keeping all the same, and only files of the right size are."""
        with self._step, suppress(OSError):
            if prepared.filled_to < prepared.size:
                prepared.filled_to = prepared.size
                prepared.file.truncate(prepared.size)
        self.release(prepared)

    def release(self, prepared: Prepared) -> None:
        """Close a file that was taken; it is filled no further."""
        with self._step:
            with self._changed:
                if self._filling is prepared:
                    self._filling = None
            prepared.file.close()

    def tick(self) -> None:
        """Once a second: when it has been quiet for long, files that only a flood needs go."""
        with self._changed:
            extra = self._ready[KEPT:] if self._quiet_ticks >= _QUIET_TICKS else []
            del self._ready[len(self._ready) - len(extra) :]
            self._quiet_ticks += 1
        for prepared in extra:
            prepared.file.close()
            with suppress(OSError):  # the next start finds it among the spares
                self._fs.unlink(prepared.path, missing_ok=True)

    def recycle(self, path: Path) -> None:
        """Take an absorbed file back. Its old groups are told from new ones by their LSN."""
        with self._changed:
            wanted = len(self._ready) < KEPT_IN_FLOOD and self._fs.size(path) == self._file_bytes
        if not wanted:
            self._fs.unlink(path, missing_ok=True)
            self._fs.sync_dir(self._directory)
            return
        self._number += 1
        target = self._directory / paths.spare_file_name(self._number)
        self._fs.rename(path, target)
        # Before the next one goes: files leave in the order of their LSNs, or the log would seem to have a hole.
        self._fs.sync_dir(self._directory)
        self._adopt(target)

    def _adopt(self, path: Path) -> None:
        # A file cut short by a crash while it was filled is not worth finishing.
        if len(self._ready) >= KEPT_IN_FLOOD or self._fs.size(path) != self._file_bytes:
            self._fs.unlink(path, missing_ok=True)
            return
        file = self._fs.open(path, write=True)
        self._ready.append(Prepared(path, file, self._file_bytes, self._file_bytes))

    def _start_one(self) -> Prepared:
        self._number += 1
        path = self._directory / paths.spare_file_name(self._number)
        file = self._fs.open(path, write=True, create=True)
        prepared = Prepared(path, file, 0, self._file_bytes)
        try:
            # The first step is made here: without a single block there is nothing to hand out.
            file.pwrite([bytes(min(_STEP, self._file_bytes))], 0)
            file.sync_data()
        except OSError:
            file.close()
            self._fs.unlink(path, missing_ok=True)
            raise
        prepared.filled_to = min(_STEP, self._file_bytes)
        with self._changed:
            self._filling = prepared
            self._changed.notify_all()
        return prepared

    def _fill_forever(self) -> None:
        zeros = bytes(_STEP)
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._stopping or self._filling is not None)
                if self._stopping:
                    return
                prepared = self._filling
            if prepared is None:
                continue
            with self._step:
                if self._filling is not prepared:
                    continue
                try:
                    self._fill_step(prepared, zeros)
                except OSError as exc:
                    self._note_failure(prepared, exc)
            self._rest(prepared)

    def _rest(self, prepared: Prepared) -> None:
        """Until the next step is due."""
        with self._changed:
            while not self._stopping:
                reached = self._reached()
                enough = prepared.ahead(reached) >= _AHEAD
                in_the_way = enough and reached != self._seen
                pause = _OVERTAKEN_S if self._overtaken else _REST_S if in_the_way else _PACE_S
                self._overtaken, self._seen = False, reached
                self._changed.wait_for(lambda: self._stopping, pause)
                if not self._overtaken and not (enough and self._reached() != reached):
                    return

    def _fill_step(self, prepared: Prepared, zeros: bytes) -> None:
        at = prepared.filled_to
        step = min(_STEP, prepared.size - at)
        if step > 0:
            prepared.file.pwrite([zeros[:step]], at)
            # On its way now, so that whoever syncs next does not wait for it.
            prepared.file.begin_sync(at, step)
        with self._changed:
            prepared.filled_to = at + step
            if prepared.filled_to >= prepared.size:
                self._filling = None
            self._changed.notify_all()

    def _note_failure(self, prepared: Prepared, exc: OSError) -> None:
        with self._changed:
            prepared.error = exc
            prepared.size = prepared.filled_to  # it ends here; what does not fit goes to the next file
            self._filling = None
            if prepared in self._ready:
                self._ready.remove(prepared)
                prepared.file.close()
                self._fs.unlink(prepared.path, missing_ok=True)
            self._changed.notify_all()
