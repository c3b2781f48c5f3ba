"""Backups, as far as a shard has to do with them: what is held while files are copied."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from topicd.errors import TopicdError
from topicd.ipc.protocol.messages import BackupCut, BackupFreeze, BackupHold, BackupRelease, BackupStill
from topicd.shards.delivery.sessions.call import Call, operation


@operation(BackupHold)
def hold(call: Call, want: BackupHold) -> None:
    _later(call, call.shard.backup_hold.hold(want.hold, want.lease_ms, lambda: call.connection.gone))


@operation(BackupStill)
def still(call: Call, want: BackupStill) -> None:
    _later(call, call.shard.backup_hold.still(want.hold))


@operation(BackupFreeze)
def freeze(call: Call, want: BackupFreeze) -> None:
    _later(call, call.shard.backup_hold.freeze(want.hold))


@operation(BackupCut)
def cut(call: Call, want: BackupCut) -> None:
    call.connection.rights.require("admin")
    call.answer(call.shard.backup_hold.cut(want.hold))


@operation(BackupRelease)
def release(call: Call, want: BackupRelease) -> None:
    call.connection.rights.require("admin")
    call.answer({"held": call.shard.backup_hold.release(want.hold)})


def _later(call: Call, work: Coroutine[Any, Any, dict[str, Any] | None]) -> None:
    try:
        call.connection.rights.require("admin")
    except TopicdError:
        work.close()
        raise

    async def run() -> None:
        try:
            call.answer(await work or {})
        except TopicdError as exc:
            call.refuse(exc)

    call.shard.backup_hold.begin(run())
