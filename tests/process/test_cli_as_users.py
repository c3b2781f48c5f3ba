"""What people do with topicctl all day: copies, exports, patterns, contexts, a look at what is wrong."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

import pytest

import topicd
from tests.process.cli_kit import TOPICCTL, environment, run_ctl, shell
from tests.support.daemon import Daemon
from topicd.cli.verbs.read import FOLLOWED

DATAS = [b"hello", b'{"base64": "aGk="}', b"\xff\xfe\x00", "gr\u00fc\u00dfe".encode(), b""]


@pytest.fixture
def filled(module_daemon: Daemon, topic: str) -> str:
    with module_daemon.client() as client:
        records = [topicd.Record(data, tag=f"t{n}", node="me", meta={"n": n}) for n, data in enumerate(DATAS)]
        client.publish_many(topic, records)
        client.configure(topic, ttl="7d")
    return topic


def contents(daemon: Daemon, topic: str) -> list[tuple[object, ...]]:
    with daemon.client() as client:
        return [(r.data, r.tag, r.node, r.meta) for r in client.read(topic)]


def test_copies_exports_and_pipes_keep_every_byte(module_daemon: Daemon, filled: str, tmp_path: Path) -> None:
    daemon, wanted = module_daemon, contents(module_daemon, filled)
    run_ctl(daemon, "topic", "copy", filled, f"{filled}.copy")
    for file in (tmp_path / "a.ndjson", tmp_path / "b.ndjson.gz"):
        run_ctl(daemon, "topic", "export", filled, str(file))
        run_ctl(daemon, "topic", "import", f"{filled}.{file.name}", str(file))
        assert contents(daemon, f"{filled}.{file.name}") == wanted
    shell(daemon, f"topicctl read {filled} --json | topicctl publish {filled}.pipe - --ndjson")
    shell(daemon, f"topicctl read {filled} --json --parse | topicctl publish {filled}.parsed - --ndjson")
    for name in ("copy", "pipe"):
        assert contents(daemon, f"{filled}.{name}") == wanted
    assert [data for data, *_ in contents(daemon, f"{filled}.parsed")] == DATAS
    with daemon.client() as client:
        assert client.state(f"{filled}.copy").config.ttl_ms == client.state(f"{filled}.b.ndjson.gz").config.ttl_ms > 0


def test_a_torn_export_is_known(module_daemon: Daemon, filled: str, tmp_path: Path) -> None:
    run_ctl(module_daemon, "topic", "export", filled, str(tmp_path / "a.gz"))
    lines = gzip.decompress((tmp_path / "a.gz").read_bytes()).splitlines(keepends=True)
    (tmp_path / "torn").write_bytes(b"".join(lines[:-2]))
    assert "is torn" in run_ctl(module_daemon, "topic", "import", f"{filled}.t", str(tmp_path / "torn"), code=1).stderr
    (tmp_path / "other").write_bytes(b"something else\n")
    assert "no export" in run_ctl(module_daemon, "topic", "import", "x", str(tmp_path / "other"), code=2).stderr
    assert "exists already" in run_ctl(module_daemon, "topic", "export", filled, str(tmp_path / "torn"), code=5).stderr


def test_a_gap_in_the_pipe_is_noted_not_stored(module_daemon: Daemon, topic: str) -> None:
    with module_daemon.client() as client:
        client.configure(topic, cap_records=2)
        for n in range(5):
            client.publish(topic, b"%d" % n)
    shell(module_daemon, f"topicctl read {topic} --from 0 --json | topicctl publish {topic}.c - --ndjson")
    assert [data for data, *_ in contents(module_daemon, f"{topic}.c")] == [b"3", b"4"]


def test_a_renamed_topic_keeps_its_consumers_place(module_daemon: Daemon, filled: str) -> None:
    with module_daemon.client() as client:
        client.delete(filled, before_seq=2)
        client.open_consumer(filled, "c")
        client.ack_consumer(filled, "c", 3)
        wanted = contents(module_daemon, filled)
        run_ctl(module_daemon, "topic", "rename", filled, f"{filled}.new", "--yes")
        assert contents(module_daemon, f"{filled}.new") == wanted
        assert [topic.topic for topic in client.topics(filled)] == [f"{filled}.new"]
        with client.consumer(f"{filled}.new", "c") as consumer:
            assert next(consumer).tag == "t3"
        run_ctl(module_daemon, "topic", "purge", f"{filled}.new", "--yes")
        assert client.state(f"{filled}.new").count == 0


def test_reading_parts_patterns_and_layouts(module_daemon: Daemon, topic: str) -> None:
    names = [f"{topic}.a.z", f"{topic}.b.z", f"{topic}.c"]
    with module_daemon.client() as client:
        for name in names:
            client.publish_many(name, [b"one", b"two", b"three"], tag="t")
    said = run_ctl(module_daemon, "read", f"{topic}.*.z", "--format", "{topic}|{seq}|{tag}|{data}", "--grep", "^t")
    assert said.stdout.splitlines() == [
        f"{name}|{n}|t|{d}" for name in names[:2] for n, d in ((2, "two"), (3, "three"))
    ]
    assert run_ctl(module_daemon, "read", names[2], "--until", "2", "--data").stdout == "one\ntwo\n"
    assert run_ctl(module_daemon, "tail", names[2], "--last", "1", "--no-follow", "--data").stdout == "three\n"
    assert run_ctl(module_daemon, "read", names[2], "--until", "1h", "--data").stdout == ""
    for wrong in (
        ["--parse"],
        ["--json", "--data"],
        ["--format", "{nothing}"],
        ["--grep", "("],
        ["--until", "2", "-f"],
    ):
        run_ctl(module_daemon, "read", names[2], *wrong, code=2)


def test_several_topics_are_followed_and_laid_out(module_daemon: Daemon, topic: str) -> None:
    first, second = f"{topic}.a", f"{topic}.b"
    layout = ["--format", "{topic} {seq} {data}", "--grep", "e"]
    with module_daemon.client() as client, ExitStack() as stack:
        for name in (first, second):
            client.publish_many(name, [b"one", b"two", b"three"])
        tail = stack.enter_context(following(module_daemon, "tail", f"{topic}.*", "--last", "2", *layout))
        watch = stack.enter_context(following(module_daemon, "watch", f"{topic}.>", "--from", "earliest", *layout))
        assert [tail.readline() for _ in range(2)] == [f"{name} 3 three\n" for name in (first, second)]
        wanted = [f"{name} {n} {data}\n" for name in (first, second) for n, data in ((1, "one"), (3, "three"))]
        assert sorted(watch.readline() for _ in range(4)) == wanted
        for name in (second, first):
            client.publish_many(name, [b"four", b"five"])
            assert tail.readline() == watch.readline() == f"{name} 5 five\n"
    many = [f"{topic}.{n}" for n in range(FOLLOWED + 1)]
    assert "up to 16 topics" in run_ctl(module_daemon, "read", *many, "--follow", code=2).stderr


@contextmanager
def following(daemon: Daemon, *args: str) -> Iterator[IO[str]]:
    """What it prints; it is interrupted in the end."""
    process = subprocess.Popen([*TOPICCTL, *args], env=environment(daemon), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.communicate()


def test_contexts_name_daemons(module_daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    line = "unset TOPICD_SOCKET; cd /; topicctl "
    shell(module_daemon, f"{line} context add here {module_daemon.run.socket}")
    assert "pong" in shell(module_daemon, f"{line} ping")
    assert "pong" in shell(module_daemon, f"{line} ping --context here")
    assert json.loads(shell(module_daemon, f"{line} context list --json"))[0]["current"] is True
    assert (tmp_path / "topicd/contexts.toml").stat().st_mode & 0o777 == 0o600


def test_the_running_daemon_tells_its_settings_and_who_is_connected(module_daemon: Daemon, topic: str) -> None:
    found = json.loads(run_ctl(module_daemon, "settings", "--json").stdout)
    assert found["data_dir"] == str(module_daemon.data.root) and "wal_shards" in found
    with module_daemon.client() as client, client.watch(topic):
        rows = json.loads(run_ctl(module_daemon, "connections", "--json").stdout)
        mine = [row for row in rows if topic in row["subscriptions"]]
        assert len(mine) == 1 and f"process {os.getpid()}" in mine[0]["who"]
        assert mine[0]["bytes_in"] > 0 and mine[0]["since_ts"] > 0
    assert "watches" in run_ctl(module_daemon, "connections").stdout


def test_the_doctor_finds_what_is_wrong(module_daemon: Daemon, tmp_path: Path) -> None:
    found = {row["what"]: row for row in json.loads(run_ctl(module_daemon, "doctor", "--json").stdout)}
    assert {"version", "compiled", "Java", "daemon", "disk", "/dev/shm", "ulimit", "clock"} <= set(found)
    assert found["daemon"]["state"] == found["disk"]["state"] == found["/dev/shm"]["state"] == "ok"
    nowhere = run_ctl(module_daemon, "doctor", "-s", str(tmp_path / "none.sock"), "--json", code=1)
    assert {row["what"]: row["state"] for row in json.loads(nowhere.stdout)}["daemon"] == "wrong"
