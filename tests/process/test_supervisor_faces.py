"""What the supervisor shows: its socket to clients, its states to systemd, nothing when at rest."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stub_harness import Link, Start, StubDaemon, stub_daemons, wait_for
from topicd.ipc.protocol.messages import Op

NAMES = ["wal-00", "wal-01", "dlv-00", "dlv-01"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Start]:
    with stub_daemons(tmp_path / "d") as make:
        yield make


# ---- the socket ----


def test_hello_carries_the_shard_map(daemon: Start) -> None:
    d = daemon().start().wait_ready()
    hello = Link(d.socket).hello
    assert hello["shards"] == [str(d.root / "run" / f"dlv-0{i}.sock") for i in range(2)]
    assert (hello["wal_shards"], hello["delivery_shards"], hello["version"]) == (2, 2, 2)
    assert (hello["role"], hello["state"], hello["instance"]) == ("supervisor", "serving", d.instances()[0])
    assert hello["limits"]["max_data_and_meta"] == 1024 * 1024


def test_status_shows_every_process_with_its_page(daemon: Start) -> None:
    d = daemon().start().wait_ready()
    status = d.status()
    assert [row["name"] for row in status["processes"]] == ["supervisor", *NAMES]
    for row in status["processes"]:
        assert row["rss"] > 1_000_000
        assert row["uptime_s"] > 0
    assert status["processes"][1]["stats"]["turns"] == 1
    assert status["processes"][1]["state"] == "serving"


def test_status_shows_recovery_while_it_lasts(daemon: Start) -> None:
    d = daemon({"wal-00": {"slow": 3600}}).start().wait_answering()
    wait_for(lambda: d.child("wal-00")["percent"] == 50.0, "progress")
    row = d.child("wal-00")
    assert (row["state"], row["what"]) == ("recovering", "replay")


def test_unknown_op_is_an_error_and_the_connection_lives_on(daemon: Start) -> None:
    d = daemon().start().wait_ready()
    link = Link(d.socket)
    assert link.ask(Op.APPEND, {})["error"]["code"] == "invalid_request"
    assert link.ask(Op.PING, {}) == {}


def test_reload_changes_what_may_change_and_tells_the_children(daemon: Start) -> None:
    d = daemon()
    d.root.mkdir()
    file = d.root / "topicd.toml"
    file.write_text("checkpoint_ms = 1000\n")
    d.extra_env = {"TOPICD_CONFIG": str(file)}
    d.start().wait_ready()
    file.write_text('checkpoint_ms = 70\nlog_level = "debug"\ndisk_sync_ms = 9\n')
    os.kill(d.pid, signal.SIGHUP)
    wait_for(lambda: len(d.events("reload")) == 4, "the children to hear it")
    settings = d.events("reload")[0]["message"]["settings"]
    assert (settings["checkpoint_ms"], settings["log_level"], settings["disk_sync_ms"]) == (70, "debug", 50)
    assert "setting needs a restart disk_sync_ms=9" in d.err
    file.write_text("nonsense = 1\n")
    os.kill(d.pid, signal.SIGHUP)
    wait_for(lambda: "settings not reloaded" in d.err, "the refusal")
    assert d.status()["state"] == "serving"
    assert d.stop() == 0


# ---- systemd ----


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0topicd-test-{secrets.token_hex(8)}")
        sock.settimeout(30)
        yield sock


def heard_until(sock: socket.socket, last: str) -> list[str]:
    found: list[str] = []
    while last not in found:
        found += sock.recv(4096).decode().splitlines()
    return found


def with_systemd(d: StubDaemon, sock: socket.socket) -> StubDaemon:
    d.extra_env = {"NOTIFY_SOCKET": "@" + sock.getsockname()[1:].decode(), "WATCHDOG_USEC": "300000"}
    return d


def test_ready_is_said_after_every_shard_serves_and_stopping_before_they_stop(
    daemon: Start, notify: socket.socket
) -> None:
    d = with_systemd(daemon({"dlv-01": {"slow": 0.3}}), notify).start()
    before = heard_until(notify, "READY=1")
    assert len(d.events("serving")) == 4
    assert any(line.startswith("STATUS=starting") for line in before)
    assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in before)
    heard_until(notify, "STATUS=serving: 4 processes")
    heard_until(notify, "WATCHDOG=1")
    assert d.stop() == 0
    heard_until(notify, "STOPPING=1")


def test_status_follows_a_child_that_is_replaced_and_ready_is_said_once(daemon: Start, notify: socket.socket) -> None:
    d = with_systemd(daemon(), notify).start()
    heard_until(notify, "STATUS=serving: 4 processes")
    os.kill(d.child("dlv-00")["pid"], signal.SIGKILL)
    heard = heard_until(notify, "STATUS=degraded: dlv-00 backoff")
    heard += heard_until(notify, "STATUS=serving: 4 processes")
    assert "READY=1" not in heard


def test_listening_socket_of_systemd_is_used_and_left_in_place(daemon: Start, tmp_path: Path) -> None:
    d = daemon()
    d.root.mkdir()
    path = tmp_path / "activated.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        d.start_activated(listener)
        link = Link(path)
        assert link.hello["delivery_shards"] == 2
        assert not d.socket.exists()
        assert d.stop() == 0
        assert path.exists()


# ---- at rest ----


def test_an_idle_supervisor_hardly_wakes_up(daemon: Start) -> None:
    d = daemon().start().wait_ready()

    def switches() -> int:
        lines = Path(f"/proc/{d.pid}/status").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if "voluntary_ctxt_switches" in line)

    begun, before = time.monotonic(), switches()
    wait_for(lambda: time.monotonic() - begun > 3, "three idle seconds")
    assert switches() - before <= 12
