"""The supervisor as a process, with stub children: start, restarts, stalls, stop, orphans, lock."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stub_harness import Start, StubDaemon, alive, stub_daemons, wait_for
from topicd.ipc import shm

NAMES = ["wal-00", "wal-01", "dlv-00", "dlv-01"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Start]:
    with stub_daemons(tmp_path / "d") as make:
        yield make


# ---- start and stop ----


def test_ready_daemon_says_where_it_listens_and_what_to_try(daemon: Start) -> None:
    d = daemon().start().wait_ready()
    assert f"listens on {d.socket}" in d.out
    for command in (
        "publish orders hello",
        "read orders\n",
        "watch orders",
    ):
        assert command in d.out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_clean_stop_leaves_nothing_behind(daemon: Start, number: int) -> None:
    d = daemon().start().wait_ready()
    assert d.stop(number) == 0
    assert not any(alive(pid) for pid in d.pids())
    assert d.shm_left() == []
    assert list((d.root / "run").iterdir()) == []


def test_delivery_shards_stop_before_the_first_wal_shard_is_asked(daemon: Start) -> None:
    d = daemon().start().wait_ready()
    assert d.stop() == 0
    order = [(e["what"], e["name"][:3]) for e in d.events() if e["what"] in ("stop", "exit")]
    assert max(i for i, e in enumerate(order) if e == ("exit", "dlv")) < min(
        i for i, e in enumerate(order) if e == ("stop", "wal")
    )


def test_delivery_shards_are_told_to_start_only_when_every_wal_shard_serves(daemon: Start) -> None:
    d = daemon({"wal-01": {"slow": 0.4}}).start().wait_ready()
    order = [(e["what"], e["name"]) for e in d.events() if e["what"] in ("serving", "start")]
    first_told = min(order.index(("start", name)) for name in ("dlv-00", "dlv-01"))
    assert {name for _, name in order[:first_told]} == {"wal-00", "wal-01"}
    for name in ("dlv-00", "dlv-01"):
        assert order.index(("start", name)) < order.index(("serving", name))


def test_each_shard_boots_with_all_it_needs(daemon: Start) -> None:
    d = daemon().start().wait_ready()
    boots = {e["name"]: e for e in d.events("boot")}
    assert sorted(boots) == sorted(NAMES)
    assert all(set(b["bell_fds"]) == set(NAMES) for b in boots.values())
    assert len({b["wal_seed"] for b in boots.values()}) == 1
    blocks = [(b["first_id"], b["end_id"]) for name, b in boots.items() if name.startswith("dlv")]
    assert sorted(blocks) == [(1, 1025), (1025, 2049)]
    assert boots["wal-00"]["run"] == 1
    assert boots["wal-00"]["old_instance"] is None


def test_next_run_has_a_new_number_new_instance_and_new_ids(daemon: Start) -> None:
    d = daemon().start().wait_ready()
    d.stop()
    d.start()
    wait_for(lambda: len(d.events("serving")) == 8, "the second run")
    boots = d.events("boot", "dlv-00")
    assert [b["run"] for b in boots] == [1, 2]
    assert boots[0]["instance"] != boots[1]["instance"]
    assert boots[1]["first_id"] >= 2049
    assert boots[0]["wal_seed"] == boots[1]["wal_seed"]


def test_a_directory_with_a_space_works(tmp_path: Path) -> None:
    d = StubDaemon(tmp_path / "with space")
    try:
        d.start().wait_ready()
        assert d.stop() == 0
    finally:
        d.clean_up()


def test_too_long_a_path_for_a_socket_works(tmp_path: Path) -> None:
    d = StubDaemon(tmp_path / ("long" * 20) / ("er" * 40))
    try:
        d.start().wait_ready()
        assert d.status()["state"] == "serving"
        assert d.stop() == 0
    finally:
        d.clean_up()


# ---- children that die, stall or fail ----


@pytest.mark.parametrize("name", ["wal-00", "dlv-01"])
def test_a_killed_child_is_replaced_on_the_same_instance_and_others_live_on(daemon: Start, name: str) -> None:
    d = daemon().start().wait_ready()
    before = {row["name"]: row["pid"] for row in d.status()["processes"]}
    os.kill(before[name], signal.SIGKILL)
    wait_for(lambda: len(d.events("serving", name)) == 2, "the successor")
    wait_for(lambda: d.status()["state"] == "serving", "serving again")
    after = {row["name"]: row["pid"] for row in d.status()["processes"]}
    assert {n for n in after if after[n] != before[n]} == {name}
    assert d.child(name)["restarts"] == 1
    assert len(d.instances()) == 1
    if name.startswith("dlv"):
        first, second = d.events("boot", name)
        assert second["first_id"] >= first["end_id"]
        assert len(d.events("start", name)) == 2
    assert d.stop() == 0


def test_a_child_that_crashes_at_once_is_given_up_and_all_stop(daemon: Start) -> None:
    d = daemon({"dlv-01": {"crash": True}}).start()
    assert d.wait_exit() == 1
    assert len(d.events("boot", "dlv-01")) == 5
    assert "dlv-01 died 5 times within 30 s (exit code 7); giving up" in d.err
    assert len(d.events("exit", "wal-00")) == 1
    assert d.shm_left() == []


def test_a_stalled_child_is_killed_and_replaced(daemon: Start) -> None:
    d = daemon(heartbeat_timeout_s=0.5).start().wait_ready()
    victim = d.child("wal-01")["pid"]
    os.kill(victim, signal.SIGSTOP)
    wait_for(lambda: len(d.events("serving", "wal-01")) == 2, "the successor")
    assert not alive(victim)
    assert "no heartbeat" in d.err
    assert d.stop() == 0


def test_a_supervisor_that_slept_itself_does_not_blame_its_children(daemon: Start) -> None:
    d = daemon(heartbeat_timeout_s=1.0).start().wait_ready()
    pids = d.pids()
    for pid in [*pids, d.pid]:
        os.kill(pid, signal.SIGSTOP)
    asleep = time.monotonic()
    wait_for(lambda: time.monotonic() - asleep > 1.5, "a nap longer than the timeout")
    for pid in [d.pid, *pids]:
        os.kill(pid, signal.SIGCONT)
    beat = time.monotonic()
    wait_for(
        lambda: all((row["stats"] or {}).get("heartbeat", 0) > beat for row in d.status()["processes"][1:]),
        "new heartbeats",
    )
    assert d.pids() == pids


def test_a_failed_child_ends_the_daemon_with_its_message(daemon: Start) -> None:
    d = daemon({"wal-00": {"fail": "shard-00: checksum mismatch at lsn 4096"}}).start()
    assert d.wait_exit() == 1
    assert "wal-00: shard-00: checksum mismatch at lsn 4096" in d.err
    assert len(d.events("boot", "wal-00")) == 1
    assert not any(alive(pid) for pid in d.pids())


def test_stop_during_recovery_is_clean(daemon: Start) -> None:
    d = daemon({"wal-00": {"slow": 3600}}).start()
    wait_for(lambda: len(d.events("boot")) == 4, "all children")
    assert d.status()["state"] == "starting"
    assert d.stop() == 0
    assert d.shm_left() == []


# ---- stop with the obstinate ----


def test_a_deaf_child_gets_sigterm_and_a_stubborn_one_is_killed_in_time(daemon: Start) -> None:
    plan = {"dlv-00": {"deaf": True}, "dlv-01": {"deaf": True, "stubborn": True}}
    d = daemon(plan, stop_timeout_s=2).start().wait_ready()
    begun = time.monotonic()
    assert d.stop() == 0
    assert time.monotonic() - begun < 2
    assert "signal=SIGTERM" in d.err
    assert "child=dlv-01 signal=SIGKILL" in d.err
    assert "child=dlv-00 signal=SIGKILL" not in d.err
    assert len(d.events("exit", "wal-00")) == 1
    assert d.shm_left() == []


def test_rings_of_a_wal_shard_that_had_to_be_killed_are_kept_and_drained_by_the_next_run(
    daemon: Start,
) -> None:
    d = daemon({"wal-00": {"deaf": True, "stubborn": True}}, stop_timeout_s=1).start().wait_ready()
    assert d.stop() == 1
    [old] = d.instances()
    assert shm.names_of(old)
    d.plan = {}
    d.start()
    wait_for(lambda: len(d.events("serving", "dlv-01")) == 2, "the second run")
    assert d.events("boot", "wal-00")[1]["old_instance"] == {
        "instance": old,
        "wal_shards": 2,
        "delivery_shards": 2,
    }
    assert shm.names_of(old) == []
    assert d.stop() == 0
    assert d.shm_left() == []


def test_second_interrupt_does_not_wait(daemon: Start) -> None:
    d = daemon({"*": {"deaf": True, "stubborn": True}}, stop_timeout_s=3600).start().wait_ready()
    os.kill(d.pid, signal.SIGINT)
    wait_for(lambda: "stopping" in d.err, "the first to be taken")
    assert d.stop(signal.SIGINT) == 1
    assert not any(alive(pid) for pid in d.pids())


def test_wal_shard_that_dies_while_delivery_shards_finish_is_replaced_for_them(daemon: Start) -> None:
    d = daemon({"dlv-00": {"deaf": True}}, stop_timeout_s=5).start().wait_ready()
    wal = d.child("wal-00")["pid"]
    os.kill(d.pid, signal.SIGTERM)
    wait_for(lambda: d.events("stop", "dlv-00"), "the stop")
    os.kill(wal, signal.SIGKILL)
    wait_for(lambda: len(d.events("serving", "wal-00")) == 2, "the successor")
    assert d.wait_exit() == 0


# ---- when the supervisor itself is killed ----


def test_children_leave_when_the_supervisor_is_killed(daemon: Start) -> None:
    d = daemon().start().wait_ready()
    os.kill(d.pid, signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in d.pids()), "the children to leave")
    assert len(d.events("orphan")) == 4


def test_run_after_a_kill_gets_the_rings_of_the_killed_one(daemon: Start) -> None:
    d = daemon().start().wait_ready()
    os.kill(d.pid, signal.SIGKILL)
    [old] = d.instances()
    wait_for(lambda: not any(alive(pid) for pid in d.pids()), "the children to leave")
    assert shm.names_of(old)
    d.start()
    wait_for(lambda: len(d.events("serving", "dlv-01")) == 2, "the second run")
    assert d.events("boot", "wal-01")[1]["old_instance"]["instance"] == old
    assert d.events("boot", "dlv-01")[1]["old_instance"] is None
    assert shm.names_of(old) == []
    assert d.stop() == 0


def test_run_killed_before_it_drained_leaves_the_older_rings_for_the_third(daemon: Start) -> None:
    d = daemon().start().wait_ready()
    os.kill(d.pid, signal.SIGKILL)
    [old] = d.instances()
    wait_for(lambda: not any(alive(pid) for pid in d.pids()), "the children to leave")
    d.plan = {"wal-00": {"slow": 3600}}
    d.start()
    wait_for(lambda: len(d.events("boot")) == 8, "the second run")
    os.kill(d.pid, signal.SIGKILL)
    wait_for(lambda: not any(alive(pid) for pid in d.pids()), "its children to leave")
    d.plan = {}
    d.start()
    wait_for(lambda: len(d.events("serving", "dlv-01")) == 2, "the third run")
    assert d.events("boot", "wal-01")[2]["old_instance"]["instance"] == old
    live = d.events("boot", "wal-01")[2]["instance"]
    assert {name.split(".")[1] for name in d.shm_left()} == {live}
    assert d.stop() == 0
    assert d.shm_left() == []


def test_new_supervisor_waits_for_the_children_of_a_killed_one(daemon: Start) -> None:
    d = daemon().start().wait_ready()
    straggler = d.child("wal-00")["pid"]
    os.kill(straggler, signal.SIGSTOP)
    os.kill(d.pid, signal.SIGKILL)
    d.start()
    wait_for(lambda: "waiting for the children of a dead supervisor" in d.err, "the second run to wait")
    assert len(d.events("boot")) == 4
    os.kill(straggler, signal.SIGCONT)
    wait_for(lambda: len(d.events("serving")) == 8, "the second run")
    assert d.stop() == 0


# ---- the lock ----


def test_second_daemon_is_refused_with_the_pid_of_the_first(daemon: Start, tmp_path: Path) -> None:
    d = daemon().start().wait_ready()
    second = StubDaemon(tmp_path / "d")
    second.start()
    assert second.wait_exit() == 3
    assert f"in use by another topicd (pid {d.pid})" in second.err
    assert d.status()["state"] == "serving"
    assert d.stop() == 0
