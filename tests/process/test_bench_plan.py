"""topicctl bench against a real daemon: every line of the plan has its figure, and nothing is left behind."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.process.cli_kit import TOPICCTL, environment, run_ctl
from tests.support.daemon import LIVELY, Daemon, wait_until
from tests.support.ports import free_ports
from topicd.bench.plan import TESTS
from topicd.cli.exits import Exit
from topicd.cli.offline import token_file

SHORT = ("--seconds", "0.05")
FEW = ("--watchers", "1,3")
LITTLE = ("--records", "1000")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("bench"), wal_shards=1, delivery_shards=2, **LIVELY) as running:
        yield running


def _topics(daemon: Daemon) -> list[str]:
    return [info.topic for info in daemon.client().topics()]


def test_every_line_of_the_plan_has_a_figure(daemon: Daemon, tmp_path: Path) -> None:
    found = json.loads(run_ctl(daemon, "bench", *SHORT, *FEW, *LITTLE, "--dir", str(tmp_path), "--json").stdout)
    assert found["failed"] == []
    assert [test for test in TESTS if not any(line["test"] == test for line in found["results"])] == []
    for line in found["results"]:
        figures = {key: value for key, value in line.items() if key not in ("test", "name") and value is not None}
        assert figures and all(value > 0 for value in figures.values()), line
    by_name = {line["name"]: line for line in found["results"]}
    for durability in ("ephemeral", "memory", "disk", "fsync"):
        line = by_name[f"single appends, {durability}"]
        assert line["p50_us"] <= line["p99_us"] <= line["p999_us"]
    assert by_name["3 watchers"]["last_p99_us"] >= by_name["3 watchers"]["last_p50_us"]
    assert 100 < by_name["in segments"]["bytes_per_record"] < 200
    assert 100 < by_name["in the log"]["bytes_per_record"] < 200
    assert by_name["1,000 records, from the log alone"]["seconds"] < 60
    assert str(tmp_path) in found["machine"]["filesystem"]
    assert "1 WAL shards, 2 delivery shards" in found["daemon"]["daemon"]
    assert _topics(daemon) == []
    assert [route.name for route in daemon.client().routers.list()] == []
    assert list(tmp_path.iterdir()) == []


def test_recovery_needs_no_daemon(daemon: Daemon) -> None:
    done = run_ctl(daemon, "bench", "--only", "recovery", *SHORT, *LITTLE, "--socket", "/nonexistent")
    assert "from the log alone" in done.stdout


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_no_daemon_and_no_files(daemon: Daemon, tmp_path: Path, number: int) -> None:
    command = [*TOPICCTL, "bench", "--only", "throttling", "--seconds", "600", "--dir", str(tmp_path)]
    with subprocess.Popen(command, env=environment(daemon), stdout=subprocess.DEVNULL) as bench:
        wait_until(lambda: list(tmp_path.glob("topicd-bench-*/data-1/topics/*")), "a topic of the scratch daemon")
        started = [child for child in psutil.Process(bench.pid).children(recursive=True) if "topicd" in child.cmdline()]
        assert started
        bench.send_signal(number)
        assert bench.wait(60) in (-number, 128 + number)
        wait_until(lambda: not any(child.is_running() for child in started), "the scratch daemon to end")
        wait_until(lambda: not list(tmp_path.iterdir()), "its files to be gone")


def test_topics_of_a_run_that_is_ended_are_deleted(daemon: Daemon) -> None:
    command = [*TOPICCTL, "bench", "--only", "A", "--seconds", "600"]
    with subprocess.Popen(command, env=environment(daemon), stdout=subprocess.DEVNULL) as bench:
        wait_until(lambda: len(_topics(daemon)) == 2, "topics of the run")
        bench.send_signal(signal.SIGTERM)
        assert bench.wait(60) == 128 + signal.SIGTERM
    assert _topics(daemon) == []


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, dict[str, str]]]:
    """A daemon on TCP, and tokens by name."""
    root = tmp_path_factory.mktemp("guarded")
    tokens = root / "tokens.toml"
    rights = {"reader": ["read"], "writer": ["write", "read"], "boss": ["admin"]}
    secrets = {name: token_file.create(tokens, name, given) for name, given in rights.items()}
    listen = f"127.0.0.1:{free_ports(2)}"
    with Daemon(root, wal_shards=1, delivery_shards=2, listen_tcp=listen, tokens_file=tokens) as running:
        yield running, {name: f"tcp://{listen} {secret}" for name, secret in secrets.items()}


def _from_afar(daemon: Daemon, where: str, *args: str) -> subprocess.CompletedProcess[str]:
    url, token = where.split()
    env = {**environment(daemon), "TOPICD_SOCKET": url, "TOPICD_TOKEN": token}
    return subprocess.run([*TOPICCTL, "bench", *args], env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("who", ["reader", "writer"])
def test_a_missing_right_is_said_and_nothing_is_left(guarded: tuple[Daemon, dict[str, str]], who: str) -> None:
    daemon, tokens = guarded
    done = _from_afar(daemon, tokens[who], *SHORT, "--only", "A,router")
    assert done.returncode == Exit.REFUSED, done.stderr
    assert "has no delete right" in done.stderr and "writes, reads and deletes them" in done.stderr
    assert "left behind" not in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""
    assert _topics(daemon) == []


def test_every_client_of_a_run_shows_the_token(guarded: tuple[Daemon, dict[str, str]]) -> None:
    daemon, tokens = guarded
    done = _from_afar(daemon, tokens["boss"], *SHORT, *FEW, "--only", "A,B,C,D,E,fanout,router,eviction", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["failed"] == []
    assert _topics(daemon) == []
