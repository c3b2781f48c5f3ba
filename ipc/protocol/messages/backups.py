"""Backups: each request is sent to every delivery shard before the next is sent to any; all need the right admin."""

from __future__ import annotations

from topicd import limits
from topicd.ipc.protocol.fields import number, text
from topicd.ipc.protocol.messages.declaring import Op, Request

__all__ = ["BackupCut", "BackupFreeze", "BackupHold", "BackupRelease", "BackupStill"]


class BackupHold(Request, op=Op.BACKUP_HOLD, answer="data_dir, run, shard, wal_shards, delivery_shards"):
    """Nothing that is stored is removed or rewritten, and the log keeps everything, until it is released or lease_ms
    are over. Sent again it is renewed. Answered when what was in memory is in segments and in a snapshot."""

    hold: str = text(64, help="the same for all requests of one backup")
    lease_ms: int = number(100, limits.BACKUP_LEASE_MS_MAX, default=limits.BACKUP_LEASE_MS)


class BackupStill(Request, op=Op.BACKUP_STILL):
    """Changes of channels wait until the cut, for 10 seconds at most."""

    hold: str = text(64)


class BackupFreeze(Request, op=Op.BACKUP_FREEZE):
    """Nothing more goes to the log until the cut, for a second at most. Answered when all that went before is
    synced."""

    hold: str = text(64)


class BackupCut(Request, op=Op.BACKUP_CUT, answer="wal [[WAL shard, LSN]] (the log up to there is the backup's)"):
    """Everything goes on. Refused with conflict if it went on before: then nothing is known of the moment."""

    hold: str = text(64)


class BackupRelease(Request, op=Op.BACKUP_RELEASE, answer="held (was it, from its beginning to now)"):
    hold: str = text(64)
