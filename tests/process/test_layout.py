"""What the daemon leaves on disk, in its run directory and in shared memory: names of docs/formats.md, no others."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from tests.process.wire import Wire, owner
from tests.support.daemon import Daemon, wait_until
from topicd.ipc import shm
from topicd.ipc.protocol.messages import Op

SHARDS = 2
DATA = [
    r"LOCK",
    r"FORMAT",
    r"meta",
    r"meta/identity\.bin",
    r"meta/shard-\d\d",
    r"meta/shard-\d\d/snapshot-\d+\.bin",
    r"wal",
    r"wal/shard-\d\d",
    r"wal/shard-\d\d/wal-[0-9a-f]{16}\.log",
    r"wal/shard-\d\d/spare-\d+\.log",
    r"topics",
    r"topics/[0-9a-f]{16}",
    r"topics/[0-9a-f]{16}/topic\.bin",
    r"topics/[0-9a-f]{16}/seg-\d{20}\.(data|idx|tags|del)",
]
SHM = [r"ring\.\d\d\.\d\d", r"walstate\.\d\d", r"stats\.(wal|dlv)-\d\d", r"bells", r"pressure", r"tally"]


def strangers(root: Path, known: list[str]) -> list[str]:
    names = [str(path.relative_to(root)) for path in root.rglob("*")]
    return [name for name in names if not any(re.fullmatch(pattern, name) for pattern in known)]


def lively(daemon: Daemon) -> None:
    """Topics with segments, marks, snapshots; one is deleted."""
    for number in range(6):
        name = f"t{number}"
        with Wire(owner(daemon.run.root, name, SHARDS)) as wire:
            topic_id = wire.open(name)
            for _ in range(3):
                wire.append(topic_id, [b"x" * 100] * 100)
            wait_until(lambda wire=wire, name=name: wire.state(name)["stored_seq"] == 300, "the checkpoint")
            wire.ask(Op.DELETE_RECORDS, {"topic": name, "before_seq": 150})
    with Wire(owner(daemon.run.root, "t5", SHARDS)) as wire:
        wire.ask(Op.DELETE_TOPIC, {"topic": "t5"})


def test_every_name_is_known(tmp_path: Path) -> None:
    settings = {"segment_max_records": 100, "checkpoint_ms": 20, "snapshot_ms": 200}
    with Daemon(tmp_path, wal_shards=SHARDS, delivery_shards=SHARDS, **settings) as daemon:
        lively(daemon)
        wait_until(lambda: len(list(daemon.data.topics.iterdir())) == 5, "the deleted topic to go")
        wait_until(lambda: len(list(daemon.data.meta.rglob("snapshot-*"))) >= 2 * SHARDS, "snapshots")
        instance = daemon.status()["instance"]
        prefix = f"/topicd.{instance}."
        names = [name.removeprefix(prefix) for name in shm.names_of(instance)]
        assert len([name for name in names if name.startswith("ring")]) == SHARDS * SHARDS
        assert [n for n in names if not any(re.fullmatch(pattern, n) for pattern in SHM)] == []
        sockets = {path.name for path in daemon.run.root.iterdir()}
        assert {"topicd.sock", "dlv-00.sock", "dlv-01.sock"} <= sockets
        assert daemon.stop().code == 0
        assert strangers(daemon.data.root, DATA) == []
        assert shm.names_of(instance) == []
        assert list(daemon.run.root.iterdir()) == []


def test_nothing_is_open_to_strangers(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=SHARDS, delivery_shards=SHARDS) as daemon:
        lively_topic = Wire(owner(daemon.run.root, "t", SHARDS))
        lively_topic.append(lively_topic.open("t"), [b"secret"])
        lively_topic.close()
        for path in daemon.run.root.iterdir():
            mode = path.lstat().st_mode
            if stat.S_ISSOCK(mode):
                assert stat.S_IMODE(mode) & 0o007 == 0, path
        for path in [daemon.data.root, *daemon.data.root.rglob("*")]:
            assert not path.stat().st_mode & stat.S_IWOTH, path
        instance = daemon.status()["instance"]
        for name in shm.names_of(instance):
            assert stat.S_IMODE(os.stat(f"/dev/shm{name}").st_mode) == 0o600, name
