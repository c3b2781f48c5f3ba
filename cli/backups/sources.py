"""Whose data directory a backup is taken of: a running daemon's, which is asked to hold its files, or one that nobody
uses, which is locked.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from topicd.backup.create import CutMissed, check_is_data
from topicd.cli.exits import CliError, Exit
from topicd.client.blocking.client import Client
from topicd.disk import identity
from topicd.disk.datadir import LockHeld, open_format, take_lock
from topicd.disk.fs import Fs
from topicd.errors import Conflict, FormatError, NotReady, TopicdError
from topicd.ipc.protocol.messages import BackupCut, BackupFreeze, BackupHold, BackupRelease, BackupStill
from topicd.limits import BACKUP_LEASE_MS
from topicd.paths import SHM_DIR, DataDir, shm_prefix

_RENEWED = 3  # times within a lease


class Served:
    """By a daemon on this machine."""

    served = True

    def __init__(self, fs: Fs, client: Client, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._monotonic = monotonic
        self._owner = secrets.token_hex(8)
        self._holding = False
        self._told_at = 0.0
        self.data = DataDir(Path(str(client.settings()["data_dir"])))
        try:
            check_is_data(fs, self.data)
        except (FormatError, OSError):
            hint = "a backup is made on the daemon's machine, by its user"
            raise CliError(f"the data directory {self.data.root} cannot be read here", Exit.FAILED, hint) from None

    def hold(self) -> None:
        self._holding = True
        self._hold()

    def _hold(self) -> None:
        self._client.ask_shards(BackupHold(hold=self._owner, lease_ms=BACKUP_LEASE_MS))
        self._told_at = self._monotonic()

    def keep(self) -> None:
        if self._holding and self._monotonic() - self._told_at > BACKUP_LEASE_MS / 1000 / _RENEWED:
            self._hold()

    def still(self) -> None:
        self._client.ask_shards(BackupStill(hold=self._owner))

    def cut(self) -> dict[int, int]:
        """All are frozen before the first is asked where the logs end, and each says that it still was when it was
        asked: what the first one read is one moment of all. Later ones may have read more."""
        try:
            self._client.ask_shards(BackupFreeze(hold=self._owner))
            answers = self._client.ask_shards(BackupCut(hold=self._owner))
        except (Conflict, NotReady) as exc:
            raise CutMissed(exc.message) from None
        ends: dict[int, int] = {}
        for answer in answers:
            for shard, lsn in answer["wal"]:
                ends[int(shard)] = min(int(lsn), ends.get(int(shard), int(lsn)))
        return ends

    def release(self) -> None:
        self._holding = False
        if not all(answer["held"] for answer in self._client.ask_shards(BackupRelease(hold=self._owner))):
            raise Conflict(
                "the daemon did not hold its files until the end: it was restarted, or the backup stood still"
            )

    def close(self) -> None:
        if self._holding:
            self._holding = False
            with suppress(TopicdError):
                self._client.ask_shards(BackupRelease(hold=self._owner))


class Unused:
    """By nobody: it is locked as long as the backup takes."""

    served = False

    def __init__(self, fs: Fs, data: DataDir) -> None:
        check_is_data(fs, data)
        self.data = data
        try:
            self._lock: int | None = take_lock(data, 0.0)
        except LockHeld as exc:
            hint = "without --data-dir the backup is made while the daemon serves"
            raise CliError(str(exc), Exit.REFUSED, hint) from None
        try:
            open_format(fs, data)
            self._check_rings(fs)
        except BaseException:
            self.close()
            raise

    def _check_rings(self, fs: Fs) -> None:
        """A killed daemon may have left acknowledged records in shared memory."""
        record = identity.read_record(fs, self.data)
        for left in (record.live, record.undrained):
            prefix = shm_prefix(left.instance).lstrip("/") if left is not None else ""
            if prefix and any(name.startswith(prefix) for name in os.listdir(SHM_DIR)):
                hint = "start the daemon once: it brings them to the disk"
                raise CliError("the daemon was killed and records are still in shared memory", Exit.REFUSED, hint)

    def hold(self) -> None: ...

    def keep(self) -> None: ...

    def still(self) -> None: ...

    def cut(self) -> dict[int, int]:
        return {}

    def release(self) -> None: ...

    def close(self) -> None:
        fd, self._lock = self._lock, None
        if fd is not None:
            os.close(fd)
