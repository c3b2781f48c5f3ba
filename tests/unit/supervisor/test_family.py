"""One child and the family: signs of life, last words, ids."""

from __future__ import annotations

import errno
import secrets
import selectors
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stub_harness import wait_for
from topicd.config import Settings
from topicd.ipc import shm
from topicd.ipc.control import BootInfo, ControlChannel
from topicd.ipc.stats import StatsPage
from topicd.supervisor.child import BOOT_GRACE_S, Child
from topicd.supervisor.family import WORKING_PATIENCE, Family
from topicd.supervisor.kinds import KINDS, sockets_of
from topicd.supervisor.resources import Resources
from topicd.supervisor.states import ChildState

SLEEPER = (sys.executable, "-c", "import time; time.sleep(3600)")
ASLEEP = [kind._replace(command=SLEEPER) for kind in KINDS]
WAL = ASLEEP[0]


@pytest.fixture
def instance() -> Iterator[str]:
    made = secrets.token_hex(8)
    yield made
    for name in shm.names_of(made):
        shm.unlink(name)


@pytest.fixture
def child(instance: str) -> Iterator[Child]:
    made = Child(WAL, 0, StatsPage.create(instance, "wal-00"))
    yield made
    made.kill()
    wait_for(lambda: made.reap() or not made.running, "its end")
    made.disconnect()


def spawn(child: Child, instance: str, command: tuple[str, ...] = SLEEPER, now: float = 100.0) -> None:
    child.kind = child.kind._replace(command=command)
    child.spawn(BootInfo(child.kind.name, child.index, instance, 1, {}, {}), [], now)


def test_a_process_without_a_heartbeat_yet_has_some_grace(child: Child, instance: str) -> None:
    spawn(child, instance)
    assert child.state is ChildState.STARTING
    assert child.silence(100.0 + BOOT_GRACE_S + 3) == pytest.approx(3.0)


def test_the_page_of_a_predecessor_is_no_sign_of_life(child: Child, instance: str) -> None:
    StatsPage.attach(instance, "wal-00").publish({"left": "behind"})
    spawn(child, instance)
    assert child.stats() is None


def test_own_heartbeat_counts(child: Child, instance: str) -> None:
    spawn(child, instance)
    page = StatsPage.attach(instance, "wal-00")
    page.publish({"pid": child.pid, "heartbeat": 107.0})
    assert child.silence(109.0) == pytest.approx(2.0)
    child.forgive(108.5)
    assert child.silence(109.0) == pytest.approx(0.5)


def test_last_words_are_heard_after_the_end(child: Child, instance: str) -> None:
    code = (
        "from topicd.ipc.control import attach_child\n"
        "channel, boot = attach_child()\n"
        "channel.send({'event': 'failed', 'message': 'alas'})\n"
        "raise SystemExit(4)\n"
    )
    spawn(child, instance, (sys.executable, "-c", code))
    wait_for(child.reap, "its end")
    assert (child.exit_code, child.exit_text()) == (4, "exit code 4")
    child.collect(101.0)
    assert child.next_message() == {"event": "failed", "message": "alas"}
    child.gone(None)
    assert child.state is ChildState.EXITED
    assert not child.send({"event": "stop"})


def test_signal_of_the_killer_has_a_name(child: Child, instance: str) -> None:
    spawn(child, instance)
    child.kill()
    wait_for(child.reap, "its end")
    assert child.exit_text() == "SIGKILL"


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    settings = Settings(
        data_dir=tmp_path / "data", run_dir=tmp_path / "run", wal_shards=1, delivery_shards=1, ring_bytes=2 << 20
    )
    resources = Resources(settings)
    resources.take_lock()
    resources.open([])
    listener = resources.listen({}, sockets_of(KINDS, settings, resources.run_dir))
    selector = selectors.DefaultSelector()
    failures: list[str] = []
    made = Family(selector, resources, settings, ASLEEP, failures.append)
    made.failures = failures  # type: ignore[attr-defined]
    made.open(100.0)
    yield made
    for one in made.children:
        if one.running:
            one.kill()
            wait_for(one.reap, "its end")
    made.close()
    listener.close()
    resources.close(clean=True)
    selector.close()


@pytest.mark.fault("PROC-12")
def test_one_that_works_and_says_nothing_is_not_killed_before_it_must_be_lost(family: Family) -> None:
    """Long work that shows no life: the next process would have to begin it anew."""
    busy, other = family.children
    spinning = (sys.executable, "-c", "while True: pass")
    busy.kill()
    wait_for(busy.reap, "its end")
    busy.gone(0.0)
    spawn(busy, family._resources.identity.instance, spinning)
    for now in (103.0, 104.0, 110.0, 150.0):
        StatsPage.attach(family._resources.identity.instance, other.name).publish({"pid": other.pid, "heartbeat": now})
        StatsPage.attach(family._resources.identity.instance, busy.name).publish({"pid": busy.pid, "heartbeat": 100.0})
        wait_for(busy.works, "its work")
        assert family.heartbeats_fresh(now)
    assert not family.heartbeats_fresh(100.0 + 5.0 * WORKING_PATIENCE + 1)
    wait_for(busy.reap, "its end")
    assert busy.exit_text() == "SIGKILL"


@pytest.mark.fault("PROC-12")
def test_one_that_stands_still_and_says_nothing_is_killed(family: Family) -> None:
    still, other = family.children
    for child in (still, other):
        StatsPage.attach(family._resources.identity.instance, child.name).publish(
            {"pid": child.pid, "heartbeat": 100.0}
        )
    still.kill(signal.SIGSTOP)
    wait_for(lambda: not still.works(), "it to stand still")
    StatsPage.attach(family._resources.identity.instance, other.name).publish({"pid": other.pid, "heartbeat": 106.0})
    assert family.heartbeats_fresh(104.0)
    assert not family.heartbeats_fresh(106.0)
    wait_for(still.reap, "its end")
    assert other.running


def test_heartbeats_are_fresh_only_while_everybody_lives(family: Family) -> None:
    assert family.heartbeats_fresh(101.0)
    wait_for(lambda: {child.works() for child in family.children} == {False}, "their sleep")
    assert not family.heartbeats_fresh(100.0 + BOOT_GRACE_S + 6)
    wait_for(lambda: all(child.reap() for child in family.children), "the silent to be killed")
    family.reap(102.0, lambda kind: True)
    assert [child.state for child in family.children] == [ChildState.BACKOFF] * 2
    assert not family.heartbeats_fresh(102.0)


def test_dead_child_waits_for_its_time_and_gets_fresh_ids(family: Family) -> None:
    dlv = family.children[1]
    dlv.kill()
    wait_for(dlv.reap, "its end")
    family.reap(101.0, lambda kind: True)
    assert family.next_start(lambda kind: True) == pytest.approx(101.1)
    assert family.next_start(lambda kind: kind.name == WAL.name) is None
    family.start_due(101.05, lambda kind: True)
    assert not dlv.running
    family.start_due(101.2, lambda kind: True)
    assert dlv.running
    assert dlv.restarts == 1


@pytest.mark.fault("RES-07")
def test_child_for_which_there_are_no_descriptors_is_started_later(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    dlv = family.children[1]
    dlv.kill()
    wait_for(dlv.reap, "its end")
    family.reap(101.0, lambda kind: True)
    kind = dlv.kind
    dlv.kind = kind._replace(hand=refuse)
    family.start_due(105.0, lambda kind: True)
    assert dlv.state is ChildState.BACKOFF
    dlv.kind = kind
    with monkeypatch.context() as patch:
        patch.setattr(ControlChannel, "pair", refuse)
        family.start_due(110.0, lambda kind: True)
    assert dlv.state is ChildState.BACKOFF
    family.start_due(115.0, lambda kind: True)
    assert dlv.running


def test_child_that_cannot_be_started_is_given_up(family: Family) -> None:
    dlv = family.children[1]
    dlv.kill()
    wait_for(dlv.reap, "its end")
    dlv.kind = dlv.kind._replace(command=("/nonexistent/python",))
    family.reap(101.0, lambda kind: True)
    for second in range(1, 6):
        family.start_due(101.0 + second, lambda kind: True)
    assert dlv.state is ChildState.EXITED
    assert "giving up" in family.failures[0]  # type: ignore[attr-defined]
