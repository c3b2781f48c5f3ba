"""meta/identity.bin: run number, topic-id high-water mark, and whose shared memory may be left. Envelope
TDID, v1.

Promise: whatever is handed out (a run number, an instance id, a block of topic ids) is durable first and
never handed out again. An instance is on record before its shared memory exists and until that is gone,
so that a start after a kill finds the rings and drains them.

    run        count of starts
    next_id    topic ids below were handed out
    live       the instance of the current run, nil after a clean stop; its rings may hold data
    undrained  an earlier instance whose rings are not drained yet; while it is there, live never served
    garbage    instances whose shared memory holds nothing of value
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from topicd.disk import envelope
from topicd.disk.fs import Fs, no_file
from topicd.errors import FormatError
from topicd.paths import DataDir, Instance

MAGIC = b"TDID"
VERSION = 1
ID_BLOCK = 1024


class Record(NamedTuple):
    run: int = 0
    next_id: int = 1
    live: Instance | None = None
    undrained: Instance | None = None
    garbage: tuple[str, ...] = ()


class Identity:
    def __init__(self, fs: Fs, data: DataDir) -> None:
        self._fs = fs
        self._data = data
        self.record = Record()
        self.power_lost = False

    def open(self) -> None:
        """Read the file; the caller holds the directory's lock."""
        if what := no_file(self._fs, self._data.identity):
            raise FormatError(f"{self._data.identity} {what}; restore the file from a backup")
        try:
            body = envelope.load(self._fs, self._data.identity, MAGIC, VERSION)
        except FileNotFoundError:
            self._start_anew()
            return
        self.record = unpack_record(self._data, body)

    def begin_run(
        self, wal_shards: int, delivery_shards: int, id_blocks: int, has_rings: Callable[[Instance], bool]
    ) -> None:
        """A new run number, a new live instance and id blocks, in one durable step."""
        before = self.record
        # An instance that began while another was undrained never took a write: only the older one matters.
        left = before.undrained or before.live
        passed_over = before.live if before.undrained else None
        if left is not None and not has_rings(left):
            # Shared memory outlives processes, not the machine: what was not synced may be gone with it.
            self.power_lost = True
            passed_over, left = left, None
        garbage = {*before.garbage, *((passed_over.instance,) if passed_over else ())}
        self._save(
            Record(
                run=before.run + 1,
                next_id=before.next_id + id_blocks * ID_BLOCK,
                live=Instance(os.urandom(8).hex(), wal_shards, delivery_shards),
                undrained=left,
                garbage=tuple(sorted(garbage)),
            )
        )

    @property
    def instance(self) -> str:
        if self.record.live is None:
            raise FormatError("no run has begun")
        return self.record.live.instance

    def take_ids(self) -> tuple[int, int]:
        """A fresh block [start, end); durable when this returns."""
        start = self.record.next_id
        self._save(self.record._replace(next_id=start + ID_BLOCK))
        return start, start + ID_BLOCK

    def mark_drained(self) -> None:
        """Every WAL shard has the old rings' bytes in its files."""
        old = self.record.undrained
        if old is not None:
            self._save(self.record._replace(undrained=None, garbage=(*self.record.garbage, old.instance)))

    def mark_clean(self) -> None:
        """The live instance's rings are empty and nobody uses them any more."""
        if self.record.undrained is None:
            self._save(self.record._replace(live=None, garbage=(*self.record.garbage, self.instance)))

    def forget_garbage(self) -> None:
        """Its shared memory is gone. Not worth a sync of its own: written with the next change."""
        self.record = self.record._replace(garbage=())

    def _start_anew(self) -> None:
        if self._fs.listdir(self._data.topics) or self._fs.listdir(self._data.wal):
            raise FormatError(
                f"{self._data.identity} is missing although there is data: topic ids could be given twice; "
                "restore it from a backup"
            )
        self._fs.mkdir(self._data.meta)
        self._fs.sync_dir(self._data.root)

    def _save(self, record: Record) -> None:
        envelope.save(self._fs, self._data.identity, MAGIC, VERSION, pack_record(record))
        self.record = record


def read_record(fs: Fs, data: DataDir) -> Record:
    """What the file says; FileNotFoundError without one."""
    return unpack_record(data, envelope.load(fs, data.identity, MAGIC, VERSION))


def pack_record(record: Record) -> dict[str, Any]:
    live, undrained = (old._asdict() if old else None for old in (record.live, record.undrained))
    return {**record._asdict(), "live": live, "undrained": undrained}


def unpack_record(data: DataDir, body: Any) -> Record:
    try:
        return Record(
            run=int(body["run"]),
            next_id=int(body["next_id"]),
            live=Instance(**body["live"]) if body["live"] else None,
            undrained=Instance(**body["undrained"]) if body["undrained"] else None,
            garbage=tuple(str(name) for name in body["garbage"]),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise FormatError(f"{data.identity} is damaged: {exc!r}") from None
