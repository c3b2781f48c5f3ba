"""A data directory with a bit of everything, what is in it, and what a start makes of a copy of it. Promise: the code
that runs is the supervisor's reading of FORMAT and identity, the shards' own start, and fsck; nothing is simulated but
the processes.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.machine import SEED, Machine
from topicd.cli.exits import CliError
from topicd.cli.offline.check import Checked, check_all
from topicd.cli.offline.data_dir import Offline
from topicd.cli.offline.repair import repair, settle_known
from topicd.disk import datadir, envelope, identity
from topicd.disk.fs import RealFs
from topicd.errors import StorageCorrupt, TopicdError
from topicd.ipc.protocol.messages import Op
from topicd.paths import DataDir
from topicd.shards.storage import snapshot
from topicd.shards.storage.topic_label import read_label

TAGS = ("red", "green", "blue")
CLASSES = {"fsync": "fsync", "disk": "disk", "memory": "memory", "all-gone": "fsync"}
FEWER = ("fsync", "memory", "all-gone")
FINAL_RUN = 3


@dataclass
class Truth:
    """What a start on the undamaged directory serves."""

    records: dict[str, dict[int, bytes]] = field(default_factory=dict)
    deleted: dict[str, set[int]] = field(default_factory=dict)
    next_id: int = 0
    directories: dict[str, str] = field(default_factory=dict)  # of topics: name of the directory -> of the topic


@dataclass
class Outcome:
    """What a start made of a directory."""

    refused: str = ""
    broken: str = ""  # an exception that no operator should see
    damage: list[str] = field(default_factory=list)
    records: dict[str, dict[int, bytes]] = field(default_factory=dict)
    unreadable: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)

    def served(self) -> set[tuple[str, int]]:
        return {(topic, seq) for topic, found in self.records.items() for seq in found}


def build(root: Path, part_bytes: int = snapshot.PART_BYTES, *, small: bool = False) -> Truth:
    """part_bytes: snapshots with more of them are in parts. small: fewer files of each kind."""
    whole = snapshot.PART_BYTES
    snapshot.PART_BYTES = part_bytes
    try:
        return _build(root, FEWER if small else tuple(CLASSES), 4 if small else 6)
    finally:
        snapshot.PART_BYTES = whole


def _build(root: Path, names: tuple[str, ...], batches: int) -> Truth:
    """Segments sealed and open, marks, rewrites, floors, a topic whose records are all gone, a WAL that has forgotten
    and one that has not; two runs, the second of them killed."""
    logging.disable(logging.CRITICAL)
    truth = Truth()
    root.mkdir(parents=True)
    fs, data = RealFs(), DataDir(root)
    for directory in (data.meta, data.wal, data.topics):
        fs.mkdir(directory)
    datadir._write(fs, data, datadir.Format(datadir.FORMAT_VERSION, 1, SEED))
    with Machine(fs, root=root) as first:
        _fill(first.open(), truth, names, batches)
        first.forget_wal()
        first.stop()
        with Machine(fs, root=root, previous=first) as second:
            second.open()
            _go_on(second, truth)
            second.tick_wals()
            second.settle()
            truth.next_id = second.next_id
            second.abandon()
    record = identity.Record(run=FINAL_RUN - 1, next_id=truth.next_id)
    envelope.save(fs, data.identity, identity.MAGIC, identity.VERSION, identity.pack_record(record))
    for directory in data.topics.iterdir():
        truth.directories[directory.name] = read_label(fs, directory).name
    return truth


def _fill(machine: Machine, truth: Truth, names: tuple[str, ...], batches: int) -> None:
    for name in names:
        machine.configure(name, durability=CLASSES[name])
        truth.records[name], truth.deleted[name] = {}, set()
        for number in range(batches):
            _append(machine, truth, name, 5, TAGS[number % 3])
        machine.checkpoint()
    _delete(machine, truth, "fsync", tag="red")
    if "disk" in names:
        _delete(machine, truth, "disk", before=12)
    _delete(machine, truth, "all-gone", before=5 * batches + 1)
    machine.ask("fsync", Op.CONSUMER_OPEN, name="reader")
    machine.checkpoint()
    machine.snapshot()


def _go_on(machine: Machine, truth: Truth) -> None:
    _append(machine, truth, "fsync", 10, "green")
    _append(machine, truth, "memory", 3, "blue")
    machine.checkpoint()
    machine.configure("late", durability="fsync")
    truth.records["late"], truth.deleted["late"] = {}, set()
    _append(machine, truth, "late", 9, "red")
    machine.checkpoint()
    _delete(machine, truth, "memory", tag="green")
    _append(machine, truth, "late", 3, "green")
    _append(machine, truth, "fsync", 4, "red")
    # It says how far the log went: without that, the loss of its newest bytes looks like a loss of power.
    machine.snapshot()


def _append(machine: Machine, truth: Truth, name: str, count: int, tag: str) -> None:
    known = truth.records[name]
    start = max([*known, *truth.deleted[name]], default=0) + 1
    payloads = [f"{name} {start + n} {'x' * (40 + 7 * ((start + n) % 9))}".encode() for n in range(count)]
    assert machine.append(name, payloads, tag=tag).first_seq == start
    known.update({start + n: payload for n, payload in enumerate(payloads)})
    _TAGGED.update({(name, start + n): tag for n in range(count)})


_TAGGED: dict[tuple[str, int], str] = {}


def _delete(machine: Machine, truth: Truth, name: str, *, tag: str | None = None, before: int | None = None) -> None:
    body = {"match": tag} if tag is not None else {"before_seq": before}
    machine.ask(name, Op.DELETE_RECORDS, **body)
    for seq in list(truth.records[name]):
        if _TAGGED[name, seq] == tag or (before is not None and seq < before):
            del truth.records[name][seq]
            truth.deleted[name].add(seq)


def check(root: Path) -> Checked | str:
    """As `topicctl fsck` does it; text: why it refuses."""
    offline = Offline(DataDir(root))
    try:
        found = check_all(offline)
        settle_known(found, offline)
    except (TopicdError, CliError) as exc:
        return str(exc)
    return found


def mend(root: Path, found: Checked) -> None:
    """The rest of `topicctl fsck --repair`."""
    if found.damaged:
        with suppress(TopicdError, CliError):
            repair(found, Offline(DataDir(root)))


def start(root: Path, next_id: int, run: int = FINAL_RUN) -> Outcome:
    fs, data, outcome = RealFs(), DataDir(root), Outcome()
    try:
        seed = datadir.upgrade(fs, data, datadir.open_format(fs, data)).wal_seed
        assert seed == SEED
        known = identity.Identity(fs, data)
        known.open()
        with Machine(fs, root=root, run=run, next_id=next_id) as machine:
            machine.open()
            _read(machine, outcome)
            machine.stop()
    except TopicdError as exc:
        outcome.refused = str(exc) or repr(exc)
    except Exception as exc:
        outcome.broken = repr(exc)
    return outcome


def _read(machine: Machine, outcome: Outcome) -> None:
    outcome.damage = machine.damage()
    for name in machine.topics():
        found = outcome.records.setdefault(name, {})
        bad = outcome.unreadable.setdefault(name, [])
        at, head = 0, int(machine.state(name)["head_seq"])
        outcome.heads[name] = head
        while at < head:
            try:
                seen, after, _ = machine.read_some(name, at)
            except StorageCorrupt as exc:
                bad.append((int(exc.detail["first_seq"]), int(exc.detail["last_seq"])))
                assert bad[-1][1] > at, f"{name}: reading stands still at {at}: {exc}"
                at = bad[-1][1]
                continue
            found.update({record.seq: record.data for record in seen})
            assert after > at, f"{name}: reading stands still at {at}"
            at = after
    with suppress(TopicdError):
        machine.ask("fsync", Op.CONSUMER_LIST)
