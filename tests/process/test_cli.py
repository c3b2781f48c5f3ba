"""topicctl as users run it: a real daemon, real pipes, real terminals."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import topicd
from tests.support.daemon import LIVELY, Daemon, wait_until

TOPICCTL = [sys.executable, "-m", "topicd.cli.main"]
ANSI = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("cli"), wal_shards=2, delivery_shards=2, **LIVELY) as running:
        yield running


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> topicd.Client:
    return daemon.client()


def environment(daemon: Daemon) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    return {**kept, "TOPICD_SOCKET": str(daemon.run.root), "TERM": "xterm-256color"}


Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def ctl(daemon: Daemon) -> Run:
    def run(*args: str, input: str | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*TOPICCTL, *args],
            input=input,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=environment(daemon),
        )
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done

    return run


def shell(daemon: Daemon, line: str) -> str:
    """A line as a user types it; the exit code of a pipe is that of its first failure."""
    line = line.replace("topicctl ", shlex.join(TOPICCTL) + " ")
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(daemon),
    )
    assert done.returncode == 0, (line, done.stderr)
    return done.stdout


# ---- the README's commands ----


def test_the_first_session_of_a_user(daemon: Daemon, tmp_path: Path) -> None:
    events = tmp_path / "events.ndjson"
    events.write_text("".join(f'{{"id": {n}}}\n' for n in range(3)))
    assert shell(daemon, "topicctl publish first hello") == "first#1\n"
    assert shell(daemon, f"topicctl publish first --from-file {events}").startswith("first#2..4  3 records")
    assert shell(daemon, f"cat {events} | topicctl publish first -").startswith("first#5..7  3 records")
    lines = shell(daemon, "topicctl read first --from 0").splitlines()
    assert len(lines) == 7 and lines[0].split()[0] == "1" and lines[0].endswith("  hello")
    assert shell(daemon, "topicctl read first --json | tail -n 1 | cut -c 1-26") == '{"topic":"first","seq":7,"\n'
    assert "serving" in shell(daemon, "topicctl status")


def test_a_watch_shows_records_as_they_come(daemon: Daemon, client: topicd.Client) -> None:
    client.publish("watched", "before")
    with subprocess.Popen(
        [*TOPICCTL, "watch", "watched", "--data"], stdout=subprocess.PIPE, env=environment(daemon)
    ) as watch:
        assert watch.stdout is not None
        # Until it is subscribed its records are history; from then on each comes at once.
        seen = b""
        number = 0
        while not seen:
            number += 1
            client.publish("watched", f"tick {number}")
            if select.select([watch.stdout], [], [], 0.1)[0]:
                seen = watch.stdout.readline()
        client.publish("watched", "last")
        while seen != b"last\n":
            assert seen.startswith(b"tick "), seen
            seen = watch.stdout.readline()
        watch.send_signal(signal.SIGINT)
        assert watch.wait(10) == 130


def test_a_watch_over_patterns_sees_topics_that_come_later(daemon: Daemon, client: topicd.Client) -> None:
    client.publish("pat.a", "1")
    command = [*TOPICCTL, "watch", "pat.*", "other.*", "--from", "earliest", "--limit", "3", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(daemon)) as watch:
        assert watch.stdout is not None
        first = json.loads(watch.stdout.readline())
        client.publish("pat.b", "2")
        client.publish("other.c", "3")
        rest = [json.loads(line) for line in watch.stdout]
        assert watch.wait(20) == 0
    assert sorted([first["topic"], *(line["topic"] for line in rest)]) == ["other.c", "pat.a", "pat.b"]


def test_a_watch_survives_a_killed_shard(daemon: Daemon, client: topicd.Client) -> None:
    client.publish("survivor", "0")
    command = [*TOPICCTL, "watch", "survivor", "--from", "0", "--data", "--limit", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(daemon)) as watch:
        assert watch.stdout is not None
        assert watch.stdout.readline() == b"0\n"
        for name in ("dlv-00", "dlv-01"):
            daemon.wait_replaced(name, daemon.kill(name))
        client.publish("survivor", "1")
        client.publish("survivor", "2")
        assert watch.stdout.read() == b"1\n2\n"
        assert watch.wait(20) == 0


# ---- pipes and interrupts ----


def test_a_closed_pipe_is_quiet(daemon: Daemon, client: topicd.Client) -> None:
    client.publish_many("long", [b"x" * 100] * 50_000)
    for form in ("", "--json", "--data"):
        line = f"{' '.join(TOPICCTL)} read long {form} | head -n 1; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(
            ["bash", "-c", line], check=False, capture_output=True, text=True, timeout=60, env=environment(daemon)
        )
        assert done.stdout.splitlines()[-1] == "141"
        assert done.stderr == ""


def test_large_input_round_trips(daemon: Daemon, tmp_path: Path) -> None:
    source = tmp_path / "large"
    source.write_bytes(b"".join(b"%d %s\n" % (n, b"y" * (n % 200)) for n in range(100_000)))
    shell(daemon, f"topicctl publish bulk --from-file {source}")
    shell(daemon, f"topicctl read bulk --data | cmp - {source}")
    shell(daemon, "topicctl read bulk --json --limit 500 | topicctl publish bulk2 - --ndjson")
    assert shell(daemon, "topicctl read bulk2 --data | md5sum") == shell(
        daemon, "topicctl read bulk --data --limit 500 | md5sum"
    )


def test_lines_of_a_slow_pipe_are_stored_as_they_come(daemon: Daemon, client: topicd.Client) -> None:
    with subprocess.Popen(
        [*TOPICCTL, "publish", "slow", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(daemon)
    ) as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntw")
        process.stdin.flush()
        wait_until(lambda: _payloads(client, "slow") == [b"one"], "the first line")
        process.stdin.write(b"o\n")
        process.stdin.close()
        assert process.wait(20) == 0
    assert _payloads(client, "slow") == [b"one", b"two"]


def _payloads(client: topicd.Client, topic: str) -> list[bytes]:
    try:
        return client.read(topic, 0).payloads()
    except topicd.TopicdError:
        return []


# ---- every verb ----


def test_topics(ctl: Run) -> None:
    ctl("topic", "create", "t.one", "durability=fsync", "cap_records=100")
    ctl("topic", "create", "t.one", code=5)
    ctl("topic", "create", "t.one", "--if-missing")
    ctl("topic", "config", "t.one", "ttl_ms=60000")
    shown = json.loads(ctl("topic", "show", "t.one", "--json").stdout)
    assert (shown["config"]["durability"], shown["config"]["ttl_ms"], shown["count"]) == ("fsync", 60_000, 0)
    assert [t["topic"] for t in json.loads(ctl("topic", "list", "t.", "--json").stdout)] == ["t.one"]
    ctl("topic", "config", "t.one", "type=queue", code=5)
    ctl("topic", "delete", "t.one", "--yes")
    ctl("topic", "show", "t.one", code=4)


def test_reading(ctl: Run, client: topicd.Client) -> None:
    for n in range(1, 21):
        client.publish("r", f"r{n}", tag="even" if n % 2 == 0 else f"odd/{n}", node="here" if n > 10 else "there")

    def seqs(*args: str) -> list[int]:
        return [json.loads(line)["seq"] for line in ctl("read", "r", "--json", *args).stdout.splitlines()]

    assert seqs("--from", "17") == [18, 19, 20]
    assert seqs("--from", "latest") == []
    assert seqs("--from", "1h", "--limit", "2") == [1, 2]
    assert seqs("--last", "2") == [19, 20]
    assert seqs("--tag", "even", "--from", "15") == [16, 18, 20]
    assert seqs("--tag-prefix", "odd/1", "--exclude-node", "there") == [11, 13, 15, 17, 19]
    assert "data" not in json.loads(ctl("read", "r", "--json", "--meta-only", "--limit", "1").stdout)
    assert "did you mean" in ctl("read", "rr", code=4).stderr
    ctl("read", "r", "--from", "whenever", code=2)


def test_consumers(ctl: Run, client: topicd.Client) -> None:
    client.publish_many("c", [b"%d" % n for n in range(1, 11)])
    assert ctl("consumer", "read", "c", "billing", "--limit", "4", "--data").stdout == "1\n2\n3\n4\n"
    assert ctl("consumer", "read", "c", "billing", "--no-ack", "--limit", "1", "--data").stdout == "5\n"
    assert ctl("consumer", "read", "c", "billing", "--data").stdout.split() == ["5", "6", "7", "8", "9", "10"]
    assert ctl("consumer", "read", "c", "billing", "--data").stdout == ""
    ctl("consumer", "reset", "c", "billing", "7", "--yes")
    assert json.loads(ctl("consumer", "ack", "c", "billing", "8", "--json").stdout)["acked_seq"] == 8
    ctl("consumer", "ack", "c", "billing", "800", code=5)
    followed = ctl("consumer", "read", "c", "billing", "--follow", "--limit", "2", "--data")
    assert followed.stdout == "9\n10\n"
    assert json.loads(ctl("consumer", "show", "c", "billing", "--json").stdout)["lag"] == 0
    assert json.loads(ctl("consumer", "list", "--json").stdout)[0]["name"] == "billing"
    ctl("consumer", "show", "c", "bilking", code=4)
    ctl("consumer", "remove", "c", "billing", "-y")
    assert ctl("consumer", "list", "c").stdout == "no consumers\n"


def test_deletes(ctl: Run, client: topicd.Client) -> None:
    for n in range(1, 11):
        client.publish("d", f"{n}", tag="x/1" if n > 6 else "y")
    announced = json.loads(ctl("delete", "d", "--tag-prefix", "x/", "--dry-run", "--json").stdout)
    assert (announced["deleted"], announced["first_seq"], announced["last_seq"]) == (4, 7, 10)
    assert json.loads(ctl("delete", "d", "--tag-prefix", "x/", "--yes", "--json").stdout)["deleted"] == 4
    ctl("delete", "d", "--before", "4", code=2)
    assert ctl("delete", "d", "--before", "4", "--yes").stdout.startswith("deleted 3 records")
    assert ctl("read", "d", "--data").stdout == "4\n5\n6\n"


def test_a_full_topic_refuses(ctl: Run) -> None:
    ctl("topic", "create", "full", "cap_records=1", "discard=reject")
    ctl("publish", "full", "a")
    assert "raise the cap" in ctl("publish", "full", "b", code=5).stderr


def test_gaps_are_shown(ctl: Run) -> None:
    for cap in ("cap_records=5", "cap_bytes=9"):
        topic = f"capped.{cap[:9]}"
        ctl("topic", "create", topic, cap)
        ctl("publish", topic, "-", "--tag", "t", input="".join(f"{n}\n" for n in range(20)))
        lines = ctl("read", topic, "--from", "3").stdout.splitlines()
        assert "are gone (cap" in lines[0]
        assert lines[-1].endswith("  19")


def test_the_daemon_about_itself(ctl: Run, client: topicd.Client) -> None:
    client.publish("about", "x")
    names = {row["name"] for row in json.loads(ctl("status", "--json").stdout)["processes"]}
    assert names == {"supervisor", "wal-00", "wal-01", "dlv-00", "dlv-01"}
    assert "wal-01" in ctl("shards").stdout
    assert len(json.loads(ctl("shards", "--json").stdout)["delivery"]) == 2
    assert ctl("ping").stdout.startswith("pong in")
    assert "topicctl" in ctl("version").stdout
    metrics = ctl("metrics").stdout
    for name in ("records_total", "wal_sync_seconds_bucket", "ring_used_bytes", "process_resident_bytes"):
        assert f"topicd_{name}" in metrics
    assert "process" in ctl("top", "--once", "--interval", "0.2").stdout
    assert json.loads(ctl("top", "--json", "--count", "1", "--interval", "0.2").stdout)["state"] == "serving"


def test_bench(ctl: Run, client: topicd.Client) -> None:
    found = json.loads(ctl("bench", "--records", "5000", "--singles", "20", "--json").stdout)
    assert [result["records"] for result in found["results"]] == [20, 5000, 5020]
    assert found["topic"] not in [info.topic for info in client.topics()]
    assert "records/s" in ctl("bench", "--records", "1000", "--singles", "5", "--durability", "fsync").stdout


def test_a_daemon_that_is_not_there(ctl: Run) -> None:
    for args in (["status"], ["ping"], ["publish", "a", "b"], ["watch", "a"], ["top", "--once"]):
        assert "/nonexistent" in ctl(*args, "--socket", "/nonexistent", code=3).stderr


# ---- terminals ----


class Terminal:
    """topicctl on a terminal of 80 by 24."""

    def __init__(self, daemon: Daemon, *args: str) -> None:
        own, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            [*TOPICCTL, *args],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(daemon),
            start_new_session=True,
        )
        os.close(theirs)
        self._fd = own
        self.output = b""

    def read_until(self, wanted: bytes, timeout: float = 30.0) -> None:
        deadline = time.monotonic() + timeout
        while wanted not in ANSI.sub(b"", self.output):
            assert time.monotonic() < deadline, self.output
            self.read_some(0.1)

    def read_some(self, seconds: float) -> bool:
        if not select.select([self._fd], [], [], seconds)[0]:
            return True
        try:
            piece = os.read(self._fd, 65536)
        except OSError:
            return False
        self.output += piece
        return bool(piece)

    def type(self, keys: bytes) -> None:
        os.write(self._fd, keys)

    def finish(self, timeout: float = 30.0) -> int:
        deadline = time.monotonic() + timeout
        while self.read_some(0.1) and time.monotonic() < deadline and self.process.poll() is None:
            pass
        code = self.process.wait(5)
        while self.read_some(0.05) and select.select([self._fd], [], [], 0)[0]:
            pass
        os.close(self._fd)
        return code


def test_top_is_live_and_q_quits(daemon: Daemon, client: topicd.Client) -> None:
    client.publish("live", "x")
    terminal = Terminal(daemon, "top", "--interval", "0.2")
    terminal.read_until(b"q quits")
    terminal.read_until(b"dlv-01")
    assert b"\x1b[?1049h" in terminal.output, "the alternate screen"
    terminal.type(b"q")
    assert terminal.finish() == 0
    assert b"\x1b[?1049l" in terminal.output, "the screen is as it was"


def test_ctrl_c_ends_a_watch_quietly(daemon: Daemon, client: topicd.Client) -> None:
    client.publish("calm", "something")
    terminal = Terminal(daemon, "watch", "calm", "--from", "earliest")
    terminal.read_until(b"something")
    terminal.process.send_signal(signal.SIGINT)
    assert terminal.finish() == 130
    assert b"Traceback" not in terminal.output and b"rror" not in terminal.output


def test_colours_and_questions_on_a_terminal(daemon: Daemon, client: topicd.Client) -> None:
    client.publish("ask", "colourful", tag="t")
    terminal = Terminal(daemon, "read", "ask")
    terminal.read_until(b"colourful")
    assert terminal.finish() == 0 and b"\x1b[3" in terminal.output
    terminal = Terminal(daemon, "topic", "delete", "ask")
    terminal.read_until(b"[y/N]")
    terminal.type(b"n\r")
    assert terminal.finish() == 5
    assert client.state("ask").count == 1
    terminal = Terminal(daemon, "topic", "delete", "ask")
    terminal.read_until(b"[y/N]")
    terminal.type(b"y\r")
    assert terminal.finish() == 0
    assert "ask" not in [info.topic for info in client.topics()]


def test_a_new_topic_that_looks_like_a_typo_is_noted(daemon: Daemon, client: topicd.Client) -> None:
    client.publish("payments", "x")
    terminal = Terminal(daemon, "publish", "paymants", "x")
    terminal.read_until(b"did you mean payments?")
    assert terminal.finish() == 0


def test_long_work_shows_a_bar_with_rate_and_time_left(daemon: Daemon, tmp_path: Path) -> None:
    fifo = tmp_path / "slow"
    os.mkfifo(fifo)
    terminal = Terminal(daemon, "publish", "bar", "--from-file", str(fifo))
    deadline = time.monotonic() + 60
    with fifo.open("wb", buffering=0) as stream:
        while b"publish bar" not in terminal.output:
            assert time.monotonic() < deadline, terminal.output
            stream.write(b"line\n" * 1000)
            terminal.read_some(0.1)
    assert terminal.finish() == 0
    plain = ANSI.sub(b"", terminal.output)
    assert b"B/s" in plain and b"000 records" in plain


# ---- without a daemon ----


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that was killed in the middle of its work."""
    with Daemon(tmp_path, wal_shards=2, delivery_shards=2, **LIVELY) as running:
        client = running.client()
        for number in range(6):
            client.publish_many("orders", [b"record %d.%d" % (number, n) for n in range(400)], tag=f"t{number}")
            client.publish_many("other", [b"x" * 500] * 300)
        client.delete("orders", 100)
        client.delete("orders", match="t3")
        directory = running.data.topic(client.state("orders").topic_id)
        wait_until(lambda: len(list(directory.glob("*.tags"))) >= 3, "sealed segments")
        running.kill_all()
        yield running


def offline(daemon: Daemon, *args: str, code: int = 0) -> Any:
    done = subprocess.run(
        [*TOPICCTL, *args, "--data-dir", str(daemon.data.root), "--json"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, (args, done.returncode, done.stdout[-2000:], done.stderr)
    if args[0] in ("fsck", "snapshot") or args[1] == "verify":
        return json.loads(done.stdout)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_running_daemon_keeps_fsck_out(daemon: Daemon, ctl: Run) -> None:
    refused = ctl("fsck", "--data-dir", str(daemon.data.root), code=5)
    assert f"pid {daemon.pid}" in refused.stderr and "stop the daemon" in refused.stderr


def test_a_killed_daemon_leaves_nothing_that_fsck_calls_damage(stopped: Daemon) -> None:
    found = offline(stopped, "fsck")
    assert found["damaged"] is False
    assert found["topics"] == 2 and found["segments"] >= 4
    assert [f for f in found["findings"] if f["severity"] == "unknown"] == []


def test_offline_tools_read_what_the_daemon_wrote(stopped: Daemon) -> None:
    assert {row["problem"] for row in offline(stopped, "snapshot", "list")} == {None}
    assert all(row["damaged"] is False for row in offline(stopped, "segment", "verify"))
    segments = offline(stopped, "segment", "dump", "orders", "--deleted")
    logged = offline(stopped, "wal", "dump", "--topic", "orders", "--type", "append")
    stored = {line["seq"]: line["data"] for line in [*segments, *logged]}
    assert stored == {n + 1: f"record {n // 400}.{n % 400}" for n in range(2400) if n + 1 in stored}
    assert set(stored) >= {*range(100, 1201), *range(1601, 2401)}, "all but what was deleted"
    assert {line["type"] for line in offline(stopped, "wal", "dump")} & {"append", "producer"}


def test_a_repaired_daemon_serves_every_readable_record(stopped: Daemon) -> None:
    sealed = min((stopped.data.topics).rglob("*.tags"), key=lambda path: path.name + str(path))
    data = sealed.with_suffix(".data")
    topic_id = int(data.parent.name, 16)
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 0xFF
    data.write_bytes(content)
    before = {row["seq"] for row in offline(stopped, "segment", "dump", data.parent.name, code=1)}
    damage = [f for f in offline(stopped, "fsck", code=1)["findings"] if f["severity"] == "damage"]
    assert {f["path"] for f in damage} == {str(data)}
    lost = set(range(damage[0]["first_seq"], damage[0]["last_seq"] + 1))
    assert all(
        f["action"] for f in offline(stopped, "fsck", "--repair", code=1)["findings"] if f["severity"] == "damage"
    )
    assert offline(stopped, "fsck")["damaged"] is False
    assert list(stopped.data.quarantine.rglob("*.data.*"))

    stopped.start().wait_ready()
    client = stopped.client()
    name = next(info.topic for info in client.topics() if info.topic_id == topic_id)
    served = set()
    at, head = 0, client.state(name).head_seq
    while at < head:
        try:
            batch = client.read(name, at, limit=1000)
        except topicd.errors.StorageCorrupt as exc:
            assert set(range(exc.detail["first_seq"], exc.detail["last_seq"] + 1)) == lost
            at = exc.detail["last_seq"]
            continue
        served |= {record.seq for record in batch.records}
        at = batch.next_from_seq
    assert before - served == set()
    assert not served & lost
