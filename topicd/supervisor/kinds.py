"""The kinds of processes that the supervisor runs, as data. Promise: a new kind is one entry in KINDS and a folder of
its own; nothing else in the supervisor knows one kind from another.

All processes are started at once. One whose kind starts after others loads its code meanwhile and waits for
{"event": "start"}, which comes when all of those serve. Figures of its own are declared in topicd/metrics.py.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from topicd.config import Settings
from topicd.ipc.control import process_name
from topicd.ipc.shardboot import DELIVERY, WAL, ShardBoot
from topicd.paths import RunDir
from topicd.supervisor.resources import Resources

log = logging.getLogger(__name__)


class Stage(NamedTuple):
    """When processes that do not stop are pressed: shares of stop_timeout_s since the stop began. Kinds of one stage
    stop together; a later stage is asked when everybody before it has left."""

    term_at: float
    kill_at: float


class Handed(NamedTuple):
    """What a process gets beside what every process gets."""

    extras: Mapping[str, Any]  # into its BootInfo
    fds: tuple[int, ...] = ()  # inherited under the same numbers


class Kind(NamedTuple):
    name: str  # its processes are name-00, name-01 and so on
    command: tuple[str, ...]
    how_many: Callable[[Settings], int]
    stops: Stage
    hand: Callable[[Resources, Settings, int, int], Handed]  # to the process of an index that was restarted so often
    starts_after: tuple[str, ...] = ()  # kinds that it needs
    socket: Callable[[RunDir, int], Path] | None = None  # the supervisor listens there, so that clients can wait
    note_serving: Callable[[Resources], None] | None = None  # done when all of them serve, before others start
    ends_clean: bool = False  # one that does not end with 0 leaves work for the next start
    copied: bool = False  # begins as a copy of the template, which has its code loaded


def python(module: str) -> tuple[str, ...]:
    # -P: a module in the working directory must not stand in for one of ours.
    return (sys.executable, "-P", "-m", module)


def names_of(kinds: Iterable[Kind], settings: Settings) -> list[tuple[Kind, int]]:
    """Every process, in the order of the table."""
    return [(kind, index) for kind in kinds for index in range(kind.how_many(settings))]


def sockets_of(kinds: Iterable[Kind], settings: Settings, run_dir: RunDir) -> dict[str, Path]:
    """By process: where the supervisor listens for it."""
    return {
        process_name(kind.name, index): kind.socket(run_dir, index)
        for kind, index in names_of(kinds, settings)
        if kind.socket is not None
    }


def _wal(held: Resources, settings: Settings, index: int, restarts: int) -> Handed:
    boot = _shard(WAL, held, settings, index, restarts)._replace(old_instance=held.old_instance)
    return Handed(boot.extras(), (held.lock_fd, *boot.bell_fds.values()))


def _delivery(held: Resources, settings: Settings, index: int, restarts: int) -> Handed:
    listen_fd = held.listen_fd(process_name(DELIVERY, index))
    first_id, end_id = held.first_ids(index) if restarts == 0 else _fresh_ids(held, index)
    boot = _shard(DELIVERY, held, settings, index, restarts)
    boot = boot._replace(first_id=first_id, end_id=end_id, listen_fd=listen_fd)
    return Handed(boot.extras(), (held.lock_fd, *boot.bell_fds.values(), listen_fd))


def _shard(kind: str, held: Resources, settings: Settings, index: int, restarts: int) -> ShardBoot:
    identity = held.identity
    return ShardBoot(
        kind=kind,
        index=index,
        instance=identity.instance,
        run=identity.record.run,
        wal_shards=settings.wal_shards,
        delivery_shards=settings.delivery_shards,
        bell_fds=held.bells,
        wal_seed=held.wal_seed,
        power_lost=identity.power_lost and restarts == 0,
    )


def _fresh_ids(held: Resources, index: int) -> tuple[int, int]:
    """Empty if the disk refuses: a shard can serve its topics without ids."""
    try:
        return held.identity.take_ids()
    except OSError as exc:
        log.error("topic ids cannot be reserved", extra={"child": process_name(DELIVERY, index), "error": exc})
        return 0, 0


def _gateway(held: Resources, settings: Settings, index: int, restarts: int) -> Handed:
    fds = tuple(listener.fileno() for listener in held.http_listeners)
    return Handed({"listen_fds": list(fds), "delivery_shards": settings.delivery_shards}, fds)


def _chat(held: Resources, settings: Settings, index: int, restarts: int) -> Handed:
    listen_fd = held.listen_fd(process_name("chat", index))
    extras = {
        "index": index,
        "listen_fd": listen_fd,
        "delivery_shards": settings.delivery_shards,
        "wal_shards": settings.wal_shards,
    }
    return Handed(extras, (held.lock_fd, listen_fd))


KINDS: tuple[Kind, ...] = (
    Kind(
        name=WAL,
        command=python("topicd.shards.wal"),
        how_many=lambda settings: settings.wal_shards,
        stops=Stage(0.80, 0.90),
        hand=_wal,
        note_serving=Resources.forget_old_instance,
        ends_clean=True,  # only after everything in its rings is in its files
        copied=True,
    ),
    Kind(
        name=DELIVERY,
        command=python("topicd.shards.delivery"),
        how_many=lambda settings: settings.delivery_shards,
        stops=Stage(0.45, 0.55),
        hand=_delivery,
        starts_after=(WAL,),
        socket=RunDir.delivery_socket,
        copied=True,
    ),
    Kind(
        name="chat",
        command=python("topicd.shards.chat"),
        how_many=lambda settings: int(settings.chat),
        stops=Stage(0.30, 0.40),  # before the shards that its log is in
        hand=_chat,
        starts_after=(DELIVERY,),
        socket=RunDir.chat_socket,
    ),
    Kind(
        name="gateway",
        command=python("topicd.gateway"),
        how_many=lambda settings: int(settings.http),
        stops=Stage(0.30, 0.40),
        hand=_gateway,
        starts_after=(DELIVERY,),  # it serves at once, and says that it is not ready until they do
        copied=True,
    ),
)
