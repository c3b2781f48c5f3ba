"""The template and its copies: children of the supervisor with what they were sent, and a way that may be missing."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stub_harness import alive, wait_for
from topicd import _native
from topicd.ipc import template as wire
from topicd.ipc.control import ControlChannel
from topicd.ipc.shardboot import DELIVERY, WAL
from topicd.supervisor import template as module
from topicd.supervisor.template import Copy, Template

PR_SET_CHILD_SUBREAPER = 36
DEAF = (sys.executable, "-c", "import time; time.sleep(3600)")


@pytest.fixture(autouse=True)
def orphans() -> Iterator[None]:
    """Those of other tests shall not become children of this process."""
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.fixture
def template() -> Iterator[Template]:
    made = Template()
    made.open()
    yield made
    made.close()


def copy_of(template: Template, kind: str = WAL) -> tuple[Copy, ControlChannel, list[int]]:
    """A copy that waits for its boot message, its channel, and the numbers it has beside that."""
    channel, theirs = ControlChannel.pair()
    reader, writer = os.pipe()
    try:
        copy = template.copy(kind, f"{kind}-00", [theirs.fileno(), reader])
        assert copy is not None
        return copy, channel, [theirs.fileno(), reader]
    finally:
        theirs.close()
        os.close(reader)
        os.close(writer)


def ended(copy: Copy) -> int:
    wait_for(lambda: copy.poll() is not None, "its end")
    code = copy.poll()
    assert code is not None
    return code


@pytest.mark.parametrize("kind", [WAL, DELIVERY, "gateway"])
def test_a_copy_is_the_supervisors_own_child(template: Template, kind: str) -> None:
    copy, channel, _ = copy_of(template, kind)
    assert Path(f"/proc/{copy.pid}/stat").read_text().rsplit(")", 1)[1].split()[1] == str(os.getpid())
    assert copy.poll() is None
    copy.send_signal(signal.SIGKILL)
    assert ended(copy) == -signal.SIGKILL
    copy.send_signal(signal.SIGKILL)  # it is gone, and its number may be somebody else's
    channel.close()


def test_a_copy_has_the_descriptors_that_were_sent_and_no_others(template: Template) -> None:
    copy, channel, numbers = copy_of(template)
    name = f"/proc/{copy.pid}/comm"
    wait_for(lambda: Path(name).read_text() == "topicd wal-00\n", "its name")
    links = {int(fd): os.readlink(f"/proc/{copy.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{copy.pid}/fd")}
    assert set(links) == {0, 1, 2, *numbers}
    assert links[0] == "/dev/null"
    assert links[numbers[0]].startswith("socket:")
    assert links[numbers[1]].startswith("pipe:")
    copy.send_signal(signal.SIGKILL)
    ended(copy)
    channel.close()


def test_a_copy_ends_with_its_supervisor_and_says_how(template: Template) -> None:
    copy, channel, _ = copy_of(template)
    channel.close()  # before it was told anything
    assert ended(copy) == 1


def test_the_template_leaves_with_its_supervisor(template: Template) -> None:
    pid = template.pid
    assert alive(pid)
    template.close()
    assert not alive(pid)
    assert template.copy(WAL, "wal-00", []) is None


def test_a_dead_template_is_replaced(template: Template) -> None:
    before = template.pid
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: not alive(before), "its end")
    template.reap()
    assert template.pid not in (0, before)
    copy, channel, _ = copy_of(template)
    channel.close()
    ended(copy)


def test_one_that_dies_while_it_is_asked_is_no_copy(template: Template) -> None:
    os.kill(template.pid, signal.SIGKILL)
    assert template.copy(WAL, "wal-00", []) is None


def test_a_silent_template_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.05)
    monkeypatch.setattr(module, "_END_S", 0.05)
    deaf = Template(DEAF)
    deaf.open()
    pid = deaf.pid
    assert deaf.copy(WAL, "wal-00", []) is None
    assert not alive(pid)
    deaf.close()


def test_without_the_native_core_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "keep_orphans", None)
    made = Template()
    made.open()
    assert made.pid == 0
    assert made.copy(WAL, "wal-00", []) is None
    made.close()


def test_one_that_cannot_be_started_is_none() -> None:
    made = Template(("/nowhere/python",))
    made.open()
    assert made.copy(WAL, "wal-00", []) is None
    made.close()


@pytest.mark.fault("RES-07")
def test_without_descriptors_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    made = Template()
    with monkeypatch.context() as patch:
        patch.setattr(socket, "socketpair", refuse)
        made.open()
    assert made.pid == 0
    assert made.copy(WAL, "wal-00", []) is None
    made.close()


def test_numbers_that_are_in_each_others_way_are_exchanged() -> None:
    program = """
import os
from topicd.ipc import template
a, b = os.open("/dev/null", os.O_RDONLY), os.open("/dev/zero", os.O_RDONLY)
template.place({b: a, a: b, 40: os.open("/dev/full", os.O_RDONLY)})
print([os.readlink(f"/proc/self/fd/{fd}") for fd in (a, b, 40)], len(os.listdir("/proc/self/fd")))
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout == "['/dev/zero', '/dev/null', '/dev/full'] 7\n"


def test_more_descriptors_than_a_message_takes_are_refused() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, pytest.raises(OSError):
        wire.ask(ours, WAL, "wal-00", [theirs.fileno()] * 300, 0.1)
