"""What systemd hears."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from topicd.supervisor.notify import Notifier, inherited_sockets


@pytest.fixture
def ear(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        yield sock


def notifier(ear: socket.socket, **environ: str) -> Notifier:
    made = Notifier({"NOTIFY_SOCKET": ear.getsockname(), **environ})
    made.open()
    return made


def heard(ear: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(ear.recv(4096).decode())
        except BlockingIOError:
            return found


def test_states_are_told(ear: socket.socket) -> None:
    made = notifier(ear)
    made.ready()
    made.reloading()
    made.stopping()
    made.more_time(2.5)
    ready, reloading, stopping, more = heard(ear)
    assert (ready, stopping, more) == ("READY=1", "STOPPING=1", "EXTEND_TIMEOUT_USEC=2500000")
    assert reloading.startswith("RELOADING=1\nMONOTONIC_USEC=")


def test_status_is_told_when_it_changed(ear: socket.socket) -> None:
    made = notifier(ear)
    for text in ("starting", "starting", "serving"):
        made.status(text)
    assert heard(ear) == ["STATUS=starting", "STATUS=serving"]


def test_watchdog_is_fed_three_times_in_its_time(ear: socket.socket) -> None:
    made = notifier(ear, WATCHDOG_USEC="30000000", WATCHDOG_PID=str(os.getpid()))
    for now in (0.0, 1.0, 9.9, 10.0, 15.0, 20.0):
        made.alive(now)
    assert heard(ear) == ["WATCHDOG=1"] * 3


@pytest.mark.parametrize("environ", [{}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"}])
def test_no_watchdog_for_us_means_no_pings(ear: socket.socket, environ: dict[str, str]) -> None:
    made = notifier(ear, **environ)
    made.alive(5.0)
    assert heard(ear) == []


def test_without_systemd_nothing_happens() -> None:
    made = Notifier({})
    made.open()
    made.ready()
    made.status("x")
    made.alive(0.0)
    made.close()
    made.close()


def test_a_deaf_systemd_is_no_reason_to_fail(ear: socket.socket) -> None:
    made = notifier(ear)
    os.unlink(ear.getsockname())
    made.ready()


def test_variables_are_taken_out_of_the_environment() -> None:
    environ = {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "LISTEN_FDS": "1", "LISTEN_PID": "1"}
    Notifier(environ)
    assert inherited_sockets(environ) == []
    assert environ == {}
