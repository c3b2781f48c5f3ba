"""Any process that the supervisor starts: how it begins, what it says, how it ends."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from topicd.config import Settings
from topicd.ipc import shm
from topicd.ipc.control import CONTROL_FD_ENV, BootInfo, ControlChannel
from topicd.ipc.stats import StatsPage

PROGRAM = """
import select, signal
from topicd import child
from topicd.errors import FormatError

def main(process):
    process.progress(50.0, "warming up")
    process.stats.publish({"greeting": process.info.extras["greeting"]})
    process.serving()
    while True:
        select.select([process.channel], [], [], 30.0)
        for message in child.messages(process.channel):
            match message["event"]:
                case "stop": return
                case "fail": raise FormatError("the disk is on fire")
                case "crash": raise ValueError("a bug")

child.run(child.boot(), main)
"""


class Started:
    def __init__(self, root: Path) -> None:
        self.instance = secrets.token_hex(8)
        self.page = StatsPage.create(self.instance, "extra-03")
        self.channel, theirs = ControlChannel.pair()
        settings = Settings(data_dir=root / "data", run_dir=root / "run")
        told = BootInfo("extra", 3, self.instance, 1, settings.to_wire(), {"greeting": "hello"})
        self.channel.send(told.to_wire())
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, CONTROL_FD_ENV: str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()

    def hear(self) -> dict[str, object] | None:
        return self.channel.receive_one(30.0)

    def end(self) -> tuple[int, str]:
        _, log = self.process.communicate(timeout=30.0)
        return self.process.returncode, log


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Started]:
    made = Started(tmp_path)
    assert made.hear() == {"event": "progress", "percent": 50.0, "what": "warming up"}
    assert made.hear() == {"event": "serving"}
    yield made
    made.process.kill()
    made.process.communicate()
    for name in shm.names_of(made.instance):
        shm.unlink(name)


def test_it_boots_publishes_and_stops_when_told(started: Started) -> None:
    found = started.page.read()
    assert found is not None
    assert (found["greeting"], found["pid"]) == ("hello", started.process.pid)
    started.process.send_signal(signal.SIGINT)  # of the terminal; the supervisor decides
    started.channel.send({"event": "stop"})
    assert started.end()[0] == 0


def test_it_leaves_when_the_supervisor_is_gone(started: Started) -> None:
    started.channel.close()
    assert started.end()[0] == 0


def test_what_a_user_can_act_on_is_told_in_one_line(started: Started) -> None:
    started.channel.send({"event": "fail"})
    assert started.hear() == {"event": "failed", "message": "the disk is on fire"}
    code, log = started.end()
    assert code == 1
    assert "Traceback" not in log


def test_a_bug_is_a_traceback_and_no_last_word(started: Started) -> None:
    started.channel.send({"event": "crash"})
    code, log = started.end()
    assert code == 1
    assert "ValueError: a bug" in log
    with pytest.raises(EOFError):
        started.channel.receive()
