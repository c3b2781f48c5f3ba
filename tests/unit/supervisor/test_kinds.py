"""A kind of processes is an entry in a table: a third one, known to nothing else in the supervisor, lives like them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stub_harness import StubDaemon, alive, stub_daemons, wait_for
from topicd.config import Settings
from topicd.ipc.protocol import unixsock
from topicd.paths import RunDir
from topicd.supervisor.kinds import KINDS, names_of, sockets_of

EXTRAS = ["extra-00", "extra-01"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[StubDaemon]:
    with stub_daemons(tmp_path / "d") as make:
        made = make({"dlv-01": {"slow": 0.3}}, heartbeat_timeout_s=0.5)
        made.extra_env = {"TOPICD_STUB_THIRD": "1"}
        yield made.start().wait_ready()


def test_it_starts_after_those_it_needs_and_is_told_what_its_entry_says(daemon: StubDaemon) -> None:
    order = [(e["what"], e["name"]) for e in daemon.events() if e["what"] in ("serving", "start")]
    for name in EXTRAS:
        told = order.index(("start", name))
        assert {who for what, who in order[:told] if what == "serving"} >= {"wal-00", "wal-01", "dlv-00", "dlv-01"}
        assert told < order.index(("serving", name))
    boots = {name: daemon.events("boot", name)[0] for name in EXTRAS}
    assert [boots[name]["greeting"] for name in EXTRAS] == ["hello 0", "hello 1"]
    assert "wal_seed" not in boots["extra-00"]
    assert daemon.events("boot", "wal-00")[0]["bell_fds"].keys() == {"wal-00", "wal-01", "dlv-00", "dlv-01"}


def test_it_is_shown_in_the_status_with_its_heartbeat(daemon: StubDaemon) -> None:
    rows = {row["name"]: row for row in daemon.status()["processes"]}
    assert list(rows)[-2:] == EXTRAS
    assert {rows[name]["state"] for name in EXTRAS} == {"serving"}
    assert all(rows[name]["pid"] == rows[name]["stats"]["pid"] for name in EXTRAS)
    beat = rows["extra-00"]["stats"]["heartbeat"]
    wait_for(lambda: daemon.child("extra-00")["stats"]["heartbeat"] > beat, "the next heartbeat")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_silent_one_is_replaced_and_told_to_start(daemon: StubDaemon, number: signal.Signals) -> None:
    victim = daemon.child("extra-01")["pid"]
    os.kill(victim, number)
    wait_for(lambda: len(daemon.events("serving", "extra-01")) == 2, "the successor")
    assert not alive(victim)
    assert daemon.events("boot", "extra-01")[1]["restarts"] == daemon.child("extra-01")["restarts"] == 1
    assert len(daemon.events("start", "extra-01")) == 2
    assert [len(daemon.events("boot", name)) for name in ("wal-00", "dlv-00", "extra-00")] == [1, 1, 1]


def test_it_stops_in_its_stage_and_leaves_nothing_behind(daemon: StubDaemon) -> None:
    with unixsock.connect(daemon.root / "run" / "extra-00.sock", timeout=5.0):
        pass
    assert daemon.stop() == 0
    order = [(e["what"], e["name"].partition("-")[0]) for e in daemon.events() if e["what"] in ("stop", "exit")]
    last = {name: max(i for i, e in enumerate(order) if e == ("exit", name)) for name in ("extra", "dlv")}
    first = {name: min(i for i, e in enumerate(order) if e == ("stop", name)) for name in ("dlv", "wal")}
    assert last["extra"] < first["dlv"]
    assert last["dlv"] < first["wal"]
    assert daemon.shm_left() == []
    assert list((daemon.root / "run").iterdir()) == []


def test_the_table_of_the_daemon() -> None:
    settings = Settings(wal_shards=2, delivery_shards=3)
    assert [(kind.name, index) for kind, index in names_of(KINDS, settings)] == [
        ("wal", 0),
        ("wal", 1),
        ("dlv", 0),
        ("dlv", 1),
        ("dlv", 2),
    ]
    assert list(sockets_of(KINDS, settings, RunDir(Path("/run")))) == ["dlv-00", "dlv-01", "dlv-02"]
    names = {kind.name for kind in KINDS}
    for kind in KINDS:
        assert set(kind.starts_after) <= names - {kind.name}
        assert 0 < kind.stops.term_at < kind.stops.kill_at < 1
        # Whoever needs others stops before they do.
        assert all(kind.stops < other.stops for other in KINDS if other.name in kind.starts_after)
