"""topicctl as users run it: a real daemon, real pipes."""

from __future__ import annotations

import json
import select
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

import topicd
from tests.process.cli_kit import TOPICCTL, environment, run_ctl, shell
from tests.support.daemon import LIVELY, Daemon, wait_until

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("cli"), wal_shards=2, delivery_shards=2, **LIVELY) as running:
        yield running


@pytest.fixture(scope="module")
def client(daemon: Daemon) -> topicd.Client:
    return daemon.client()


@pytest.fixture(scope="module")
def ctl(daemon: Daemon) -> Run:
    return partial(run_ctl, daemon)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Children hear SIGINT, also where the tests run behind a `&`, which has it ignored by all that are started."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


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


@pytest.mark.usefixtures("interruptible")
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
        line = f"{shlex.join(TOPICCTL)} read long {form} | head -n 1; echo ${{PIPESTATUS[0]}}"
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
        return client.fetch(topic, 0).payloads()
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
    ctl("topic", "config", "t.one", "type=heap", code=2)
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


def test_routers(ctl: Run, client: topicd.Client) -> None:
    made = ctl(
        "router", "create", "rt", "--from", "rt.a", "--to", "rt.b", "--filter", "eu:*", "--set-tag", "copy:{tag}"
    )
    assert made.stdout == "router rt created: rt.a -> rt.b\n"
    ctl("publish", "rt.a", "one", "--tag", "eu:1")
    ctl("publish", "rt.a", "two", "--tag", "us:1")
    assert ctl("read", "rt.b", "--data").stdout == "one\n"
    shown = json.loads(ctl("router", "show", "rt", "--json").stdout)
    assert (shown["forwarded_total"], shown["cursor"], shown["lag"], shown["waiting"]) == (1, 2, 0, None)
    assert "0 records" in ctl("router", "show", "rt").stdout
    refused = ctl("router", "create", "back", "--from", "rt.b", "--to", "rt.a", code=5)
    assert "rt.b -> rt.a -> rt.b" in refused.stderr and "--allow-cycle" in refused.stderr
    assert ctl("router", "create", "probe", "--from", "rt.a", "--to", "rt.c", "--sample", "2/3", code=2).stdout == ""
    ctl("router", "create", "probe", "--from", "rt.b", "--to", "rt.c", "--sample", "1/3", "--exactly-once")
    assert ctl("router", "graph").stdout == "rt.a\n└─ rt ─> rt.b  (eu:*)\n   └─ probe ─> rt.c  (1/3)\n"
    assert [row["router"] for row in json.loads(ctl("router", "list", "--from", "rt.a", "--json").stdout)] == ["rt"]
    assert "fed by" in ctl("topic", "show", "rt.b").stdout
    assert "did you mean probe" in ctl("router", "show", "prob", code=4).stderr
    assert ctl("router", "delete", "rt").stdout == "router rt deleted\n"
    ctl("router", "delete", "rt", code=4)
    ctl("topic", "delete", "rt.c", "--yes")
    assert ctl("router", "list").stdout == "no routers\n"


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


def test_a_daemon_that_is_not_there(ctl: Run) -> None:
    for args in (["status"], ["ping"], ["publish", "a", "b"], ["watch", "a"], ["top", "--once"]):
        assert "/nonexistent" in ctl(*args, "--socket", "/nonexistent", code=3).stderr
