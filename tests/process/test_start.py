"""Clients of a shard that is not there yet, or not any more: they wait in its queue, and its successor answers."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.process.wire import Wire
from tests.support.daemon import Daemon
from topicd.ipc.protocol.messages import Op

PATIENCE_S = 30.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1) as made:
        yield made


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_who_connects_while_a_shard_is_away_is_answered_by_its_successor(daemon: Daemon, number: int) -> None:
    killed = daemon.kill("dlv-00", number)
    psutil.wait_procs([child for child in daemon.children() if child.pid == killed], PATIENCE_S)
    wire = Wire(daemon.run.delivery_socket(0), timeout=PATIENCE_S)
    assert wire.ask(Op.PING, {}) == {}
    assert daemon.pids()["dlv-00"] != killed
    wire.close()


def test_who_connects_during_a_start_is_answered_once_all_is_recovered(daemon: Daemon) -> None:
    daemon.client().publish("orders", b"kept")
    daemon.kill_all()
    daemon.start()
    assert daemon.client(wait=PATIENCE_S).fetch("orders", 0).payloads() == [b"kept"]
