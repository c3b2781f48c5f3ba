"""What a new run does with the WAL of the previous one. Promise: bytes that a killed run left in its rings reach
the log before anything is served, and directories beyond the present number of shards are kept until they are
absorbed.
"""

from __future__ import annotations

import logging

from topicd import paths
from topicd.errors import FormatError
from topicd.ipc.ring import RingConsumer
from topicd.ipc.slots import Slots
from topicd.ipc.walstate import WalState
from topicd.paths import Instance
from topicd.shards.process.runtime import Shard
from topicd.shards.storage import walfile
from topicd.shards.storage.quarantine import Quarantine
from topicd.shards.wal.committer import Committer, Inlet
from topicd.shards.wal.log import WalLog

log = logging.getLogger(__name__)


def adopt_previous_run(shard: Shard, damage: list[str]) -> tuple[list[int], int | None]:
    """Drain and settle the old directories that fall to this shard: those it does not go on writing itself, and where
    the log ends that it does, if the shared memory of a killed run says so. What is damaged is added to damage."""
    info = shard.boot
    ends: dict[int, int | None] = {}
    if info.old_instance is not None:
        for old in range(info.index, info.old_instance.wal_shards, info.wal_shards):
            ends[old] = _drain(shard, info.old_instance, old, damage)
    found = (paths.parse_shard_dir(name) for name in shard.fs.listdir(shard.data.wal))
    extra = [n for n in found if n is not None and n >= info.wal_shards and n % info.wal_shards == info.index]
    for old in extra:
        settle_tail(shard, old, ends.get(old), damage)
    return extra, ends.get(info.index)


def settle_tail(shard: Shard, index: int, end_lsn: int | None, damage: list[str]) -> walfile.ShardEnd:
    """Find the end of a log and cut the torn tail behind it; damage is reported and stays where it is, but for files
    that hold no group at all: they go to quarantine, where nobody writes over them. end_lsn: where its writer stopped,
    if that is known: only a machine that went down leaves anything of the log behind it."""
    directory = shard.data.wal_shard(index)
    end = walfile.find_end(shard.fs, directory, shard.boot.wal_seed, end_lsn)
    for found in end.damage:
        note_damage(damage, str(found))
    for file in end.unknown:
        kept = Quarantine(shard.fs, shard.data).move(file.path)
        note_damage(damage, f"{file.path}: holds no group that can be read, moved to {kept}")
        if end.file == file:
            end.file = None
    if end.torn:
        removed = walfile.cut(shard.fs, directory, end)
        log.warning("torn tail cut", extra={"directory": str(directory), "lsn": end.lsn, "bytes": removed})
    return end


def note_damage(damage: list[str], what: str) -> None:
    log.error("WAL is damaged", extra={"damage": what})
    damage.append(what)


def drop_adopted(shard: Shard, adopted: list[int]) -> list[int]:
    """Every delivery shard has absorbed what was replayed: the directories beyond the present number may go. Those
    that are left, if the disk refuses."""
    fs = shard.fs
    for done, old in enumerate(adopted):
        directory = shard.data.wal_shard(old)
        try:
            for file in walfile.list_files(fs, directory):
                # In the order of their LSNs, each for good before the next: the rest is never a log with a hole.
                fs.unlink(file.path)
                fs.sync_dir(directory)
            for name in fs.listdir(directory):
                fs.unlink(directory / name, missing_ok=True)
            fs.rmdir(directory)
        except OSError as exc:
            log.warning("old WAL directory not dropped", extra={"directory": str(directory), "error": str(exc)})
            return adopted[done:]
        log.info("old WAL directory dropped", extra={"directory": str(directory)})
    return []


def _drain(shard: Shard, old: Instance, index: int, damage: list[str]) -> int | None:
    """Be the successor of the killed shard for as long as its rings hold bytes; where its log ends then, None if that
    is not known."""
    try:
        state_page = Slots.attach(paths.wal_state_shm(old.instance, index), old.instance)
        rings = [
            RingConsumer.attach(paths.ring_shm(old.instance, index, dlv), old.instance)
            for dlv in range(old.delivery_shards)
        ]
    except FormatError as exc:
        log.warning("rings of the killed run are gone", extra={"shard": index, "reason": str(exc)})
        return None
    payload = state_page.read()
    if payload is None:
        return None
    state = WalState.unpack(payload)
    in_use = shard.data.wal_shard(index) / paths.wal_file_name(state.first_lsn)
    if not shard.fs.exists(in_use):
        note_damage(damage, f"{in_use}: was written when the daemon was killed, and is missing")
    wal = WalLog(
        shard.fs,
        shard.data.wal_shard(index),
        shard.settings.wal_file_bytes,
        shard.boot.run - 1,
        shard.boot.wal_seed,
    )
    wal.open(state.lsn, state.first_lsn)
    inlets = [Inlet(ring, None, written, written) for ring, written in zip(rings, state.written, strict=True)]
    committer = Committer(wal, state_page, shard.clock, inlets, disk_sync_s=0.0)
    committer.open(shard.settings.wal_file_bytes - 4096)
    left = sum(ring.used for ring in rings)
    committer.finish()
    wal.close()
    for ring in rings:
        ring.close()
    state_page.close()
    if committer.read_only_errno:
        raise OSError(committer.read_only_errno, "the rings of the killed run could not be written to the WAL")
    if left:
        log.info("rings of the killed run drained", extra={"shard": index, "bytes": left})
    return wal.lsn
