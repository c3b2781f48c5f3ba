"""What a run holds, and that it takes nothing from another."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from topicd.config import Settings
from topicd.disk.datadir import LockHeld
from topicd.ipc import shm
from topicd.ipc.protocol import unixsock
from topicd.supervisor.kinds import KINDS, sockets_of
from topicd.supervisor.resources import Resources

SOCKETS = ["dlv-00.sock", "dlv-01.sock", "topicd.sock"]


def settings(root: Path, data: str = "data") -> Settings:
    return Settings(data_dir=root / data, run_dir=root / "run", wal_shards=1, delivery_shards=2, ring_bytes=2 << 20)


def listen(resources: Resources, root: Path) -> socket.socket:
    return resources.listen({}, sockets_of(KINDS, settings(root), resources.run_dir))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Resources, socket.socket]]:
    made = Resources(settings(tmp_path))
    made.take_lock()
    made.open([])
    listener = listen(made, tmp_path)
    yield made, listener
    listener.close()
    made.close(clean=True)


def test_refused_second_daemon_leaves_the_sockets_of_the_first(
    running: tuple[Resources, socket.socket], tmp_path: Path
) -> None:
    second = Resources(settings(tmp_path))
    with pytest.raises(LockHeld):
        second.take_lock()
    second.close(clean=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == SOCKETS


def test_daemon_of_other_data_cannot_take_the_run_directory(
    running: tuple[Resources, socket.socket], tmp_path: Path
) -> None:
    second = Resources(settings(tmp_path, "other"))
    second.take_lock()
    second.open([])
    instance = second.identity.instance
    with pytest.raises(OSError, match="another process listens there"):
        listen(second, tmp_path)
    second.close(clean=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == SOCKETS
    assert shm.names_of(instance) == []


def test_sockets_of_shards_that_are_gone_are_swept(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "dlv-07.sock").touch()
    made = Resources(settings(tmp_path))
    made.take_lock()
    made.open([])
    with listen(made, tmp_path):
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == SOCKETS
    made.close(clean=True)
    assert list((tmp_path / "run").iterdir()) == []


def test_who_connects_before_a_shard_runs_waits_in_its_queue(
    running: tuple[Resources, socket.socket], tmp_path: Path
) -> None:
    resources, _ = running
    with unixsock.connect(tmp_path / "run" / "dlv-01.sock", timeout=5.0) as client:
        client.sendall(b"early")
        shard = socket.socket(fileno=os.dup(resources.listen_fd("dlv-01")))
        with shard, shard.accept()[0] as accepted:
            assert accepted.recv(5) == b"early"


def test_who_connects_is_refused_when_no_shard_is_started_any_more(
    running: tuple[Resources, socket.socket], tmp_path: Path
) -> None:
    resources, _ = running
    resources.stop_listening()
    with pytest.raises(ConnectionRefusedError):
        unixsock.connect(tmp_path / "run" / "dlv-00.sock")


def test_close_may_be_called_twice_and_before_open(tmp_path: Path) -> None:
    made = Resources(settings(tmp_path))
    made.close(clean=True)
    made.take_lock()
    made.open([])
    made.close(clean=False)
    made.close(clean=False)
    for name in shm.names_of(made.identity.instance):
        shm.unlink(name)


def test_descriptors_suffice_for_the_connections_allowed(running: tuple[Resources, socket.socket]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= min(10_000, hard) or soft == resource.RLIM_INFINITY
