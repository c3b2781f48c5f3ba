"""Backups of a daemon that serves: made under load, restored, compared with what was acknowledged at their moment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.cli_kit import TOPICCTL, environment, run_ctl
from tests.support.chatpair import CHAT
from tests.support.daemon import LIVELY, Daemon, drain_topic, wait_until
from topicd.errors import TopicdError
from topicd.placement import delivery_shard

SHARDS = 2
WRITERS = 3


def named(prefix: str, shard: int) -> str:
    return next(name for n in range(100) if delivery_shard(name := f"{prefix}{n}", SHARDS) == shard)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root = tmp_path_factory.mktemp("backup")
    with Daemon(root, wal_shards=SHARDS, delivery_shards=SHARDS, env=CHAT, **LIVELY) as running:
        yield running


class Load:
    """Writers that count, and jobs that fail at once and go to dead letters in the other shard."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._stopping = threading.Event()
        self.acked: dict[str, int] = {}  # topic to the number of the last record that was acknowledged
        self.sent: dict[str, int] = {}
        self._threads = [threading.Thread(target=self._write, args=(f"load.{n}",)) for n in range(WRITERS)]
        self._threads.append(threading.Thread(target=self._bury))
        self.failed: list[Exception] = []

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        wait_until(lambda: self.failed or min([self.acked.get(f"load.{n}", 0) for n in range(WRITERS)]) > 200, "load")
        return self

    def __exit__(self, *exc: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        assert self.failed == []

    def _write(self, topic: str) -> None:
        client = self._daemon.client(timeout=60)
        number = 0
        while not self._stopping.is_set():
            self.sent[topic] = number
            client.publish(topic, b"%d" % number)
            self.acked[topic] = number
            number += 1

    def _bury(self) -> None:
        """Each job is in the queue or among the dead letters, whenever one looks."""
        client = self._daemon.client(timeout=60)
        queue, number = client.queue(JOBS), 0
        try:
            while not self._stopping.is_set():
                self.sent[JOBS] = number
                queue.put(b"%d" % number)
                self.acked[JOBS] = number
                queue.nack(list(queue.claim(1)), "dead", reason="on purpose")
                number += 1
        except TopicdError as exc:
            self.failed.append(exc)


JOBS, DEAD = named("jobs.", 0), named("dead.", 1)


def create(daemon: Daemon, shelf: Path) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(run_ctl(daemon, "backup", "create", str(shelf), "--json").stdout)
    return made


def iso(ms: int) -> str:
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(ms // 1000))}.{ms % 1000:03d}+00:00"


def restored(daemon: Daemon, shelf: Path, root: Path, *more: str) -> Daemon:
    run_ctl(daemon, "backup", "restore", str(shelf), str(root / "data"), *more)
    return Daemon(root, wal_shards=1, delivery_shards=1, env=CHAT)


def test_a_backup_under_load_is_one_moment_of_everything(daemon: Daemon, tmp_path: Path) -> None:
    client = daemon.client()
    client.configure(JOBS, type="queue", dead_letter=DEAD)
    client.routers.create("copy", named("src.", 0), named("dst.", 1))
    client.publish_many(named("src.", 0), [b"%d" % n for n in range(50)])
    client.open_consumer(named("src.", 0), "reader", "latest")
    client.channels.join("room", user="ann")
    client.channels.set_config("room", user="ann", persist=True)
    client.channels.join("room", user="bob")
    for n in range(5):
        client.channels.publish("room", b"%d" % n, user="ann")
    client.chat.send("kitchen", "dinner is ready", user="ann")
    shelf = tmp_path / "shelf"
    with Load(daemon) as load:
        create(daemon, shelf)
        before = dict(load.acked)
        create(daemon, shelf)
        after = dict(load.sent)
    assert run_ctl(daemon, "backup", "verify", str(shelf), "--all", "--json").returncode == 0
    with restored(daemon, shelf, tmp_path / "again") as again:
        back = again.client()
        for n in range(WRITERS):
            numbers = [int(record.data) for record in drain_topic(back, f"load.{n}")]
            assert numbers == list(range(len(numbers)))
            assert before[f"load.{n}"] < len(numbers) <= after[f"load.{n}"] + 1
        waiting = [int(record.data) for record in drain_topic(back, JOBS)]
        buried = [int(record.data) for record in drain_topic(back, DEAD)]
        assert set(range(before[JOBS] + 1)) <= {*waiting, *buried}
        assert len(buried) == len(set(buried))
        assert [record.data for record in drain_topic(back, named("dst.", 1))] == [b"%d" % n for n in range(50)]
        assert back.routers.get("copy").forwarded_total == 50
        assert [(row.name, row.acked_seq) for row in back.consumers(named("src.", 0))] == [("reader", 50)]
        assert set(back.channels.members("room").users) == {"ann", "bob"}
        assert [message.data for message in back.channels.history("room", user="bob")] == [b"%d" % n for n in range(5)]
        assert back.chat.inbox("ann").chats[0].preview == "dinner is ready"
        assert back.chat.verify()["differences"] == []
        assert "damage=0" in again.log


def test_a_killed_backup_leaves_nothing_whole_and_the_daemon_goes_on(daemon: Daemon, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    client = daemon.client()
    client.publish("still", b"1")
    process = subprocess.Popen([*TOPICCTL, "backup", "create", str(shelf)], env=environment(daemon))
    wait_until(lambda: (shelf.exists() and any(shelf.glob("*.partial/*"))) or process.poll() is not None, "it begins")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    client.publish("still", b"2")
    listed = json.loads(run_ctl(daemon, "backup", "list", str(shelf), "--json").stdout)
    for row in listed:
        assert row["whole"] == (not row["id"].endswith(".partial"))
    # What the killed one holds is let go when its connection is gone; the next one waits for that.
    made = json.loads(run_ctl(daemon, "backup", "create", str(shelf), "--json").stdout)
    listed = json.loads(run_ctl(daemon, "backup", "list", str(shelf), "--json").stdout)
    assert all(row["whole"] for row in listed)
    assert listed[-1]["id"] == made["id"]


def test_what_cannot_be_done_is_said_and_changes_nothing(daemon: Daemon, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    inside = daemon.data.root / "backups"
    assert "lies in the data directory" in run_ctl(daemon, "backup", "create", str(inside), code=2).stderr
    refused = run_ctl(daemon, "backup", "create", str(shelf), "--data-dir", str(daemon.data.root), code=5)
    assert "in use" in refused.stderr
    assert "does not exist" in run_ctl(daemon, "backup", "verify", str(tmp_path / "nowhere"), code=2).stderr
    assert "no backup" in run_ctl(daemon, "backup", "verify", str(shelf), code=4).stderr
    create(daemon, shelf)
    target = tmp_path / "target"
    target.mkdir()
    (target / "mine").write_text("precious")
    assert "is there already" in run_ctl(daemon, "backup", "restore", str(shelf), str(target), code=5).stderr
    assert [path.name for path in target.iterdir()] == ["mine"]
    made = Path(create(daemon, shelf)["path"])
    for place in (made / "mine", made / "data" / "mine", daemon.data.root / "mine"):
        assert f"{place} lies in the " in run_ctl(daemon, "backup", "restore", str(shelf), str(place), code=5).stderr
        assert not place.exists() and not list(place.parent.glob("*.restor*"))
        assert "lies in the " in run_ctl(daemon, "backup", "create", str(place), code=2).stderr
    assert "no backup 'x'" in run_ctl(daemon, "backup", "restore", str(shelf), str(tmp_path / "t"), "x", code=4).stderr


def test_a_damaged_backup_is_found_by_verify(daemon: Daemon, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    daemon.client().publish_many("big", [b"x" * 200] * 1_200)
    directory = daemon.data.topic(daemon.client().state("big").topic_id)
    wait_until(lambda: any(directory.glob("*.tags")), "a sealed segment")
    # On a filesystem of its own it would be a copy; here the byte must not change under the daemon.
    made = create(daemon, shelf)
    victim = next((Path(made["path"]) / "data" / "topics" / directory.name).glob("*.data"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.unlink()
    victim.write_bytes(content)
    report = json.loads(run_ctl(daemon, "backup", "verify", str(shelf), "--json", code=1).stdout)
    assert victim.name in report["problems"][0]


def test_nobody_is_given_an_older_backup_than_he_thinks(daemon: Daemon, tmp_path: Path) -> None:
    shelf, client = tmp_path / "shelf", daemon.client()
    client.publish("kept", b"1")
    create(daemon, shelf)
    client.publish("kept", b"2")
    manifest = Path(create(daemon, shelf)["path"]) / "manifest.bin"
    between = run_ctl(daemon, "backup", "list", str(shelf), "--json")
    older, newer = (row["id"] for row in json.loads(between.stdout))
    content = bytearray(manifest.read_bytes())
    content[len(content) // 2] ^= 1
    manifest.write_bytes(content)
    assert f"{newer}: wrong" in run_ctl(daemon, "backup", "verify", str(shelf), code=1).stdout
    rows = json.loads(run_ctl(daemon, "backup", "verify", str(shelf), "--all", "--json", code=1).stdout)
    assert [(row["id"], bool(row["problems"])) for row in rows] == [(older, False), (newer, True)]
    target = tmp_path / "target"
    for args in ([str(target)], [str(target), "--topic", "kept", "--until", "2"]):
        refused = run_ctl(daemon, "backup", "restore", str(shelf), *args, code=1)
        assert f"{newer} cannot be restored" in refused.stderr and not target.exists()
    assert newer in run_ctl(daemon, "backup", "drill", str(shelf), code=1).stderr
    late = run_ctl(daemon, "backup", "restore", str(shelf), str(target), "--until", "1ms", code=4)
    assert f"{newer} is damaged" in late.stderr
    client.publish("kept", b"3")
    create(daemon, shelf)
    moment = client.fetch("kept", 2).records[0].ts
    passed = run_ctl(daemon, "backup", "restore", str(shelf), str(target), "--until", iso(moment))
    assert f"{newer} is passed over" in passed.stderr
    assert run_ctl(daemon, "backup", "restore", str(shelf), str(tmp_path / "by-name"), older).stderr == ""


def test_a_restore_ends_where_it_is_told_to(daemon: Daemon, tmp_path: Path) -> None:
    shelf, client = tmp_path / "shelf", daemon.client()
    client.publish_many("ends", [b"%d" % n for n in range(700)])
    client.publish("other", b"x")
    create(daemon, shelf)
    assert (
        "--topic"
        in run_ctl(daemon, "backup", "restore", str(shelf), str(tmp_path / "t"), "--until", "5", code=2).stderr
    )
    none = run_ctl(daemon, "backup", "restore", str(shelf), str(tmp_path / "t"), "--topic", "endz", code=4)
    assert "did you mean ends" in none.stderr
    late = run_ctl(daemon, "backup", "restore", str(shelf), str(tmp_path / "t"), "--until", "2999-01-01", code=4)
    assert "newest backup" in late.stderr
    assert not list(tmp_path.glob("t*"))
    named = ("--topic", "ends", "--topic", "ends")  # once is enough
    with restored(daemon, shelf, tmp_path / "again", *named, "--until", "650") as again:
        back = again.client()
        assert [record.data for record in drain_topic(back, "ends")] == [b"%d" % n for n in range(650)]
        assert [row.topic for row in back.topics()] == ["ends"]
        assert back.publish("ends", b"new") == 701
        assert "damage=0" in again.log


def test_channels_and_chats_end_there_too(daemon: Daemon, tmp_path: Path) -> None:
    shelf, client = tmp_path / "shelf", daemon.client()
    client.channels.join("hall", user="ann")
    client.channels.set_config("hall", user="ann", persist=True)
    for n in range(3):
        client.channels.publish("hall", b"%d" % n, user="ann")
    client.chat.send("porch", "the first", user="eve")
    client.publish("clock", b"now")
    moment = client.fetch("clock", 0).records[0].ts
    wait_until(lambda: time.time_ns() // 1_000_000 > moment + 1, "time goes on")
    client.channels.publish("hall", b"later", user="ann")
    client.chat.send("porch", "the last", user="eve")
    create(daemon, shelf)
    with restored(daemon, shelf, tmp_path / "again", "--until", iso(moment)) as again:
        back = again.client()
        assert [message.data for message in back.channels.history("hall", user="ann")] == [b"0", b"1", b"2"]
        assert back.chat.inbox("eve").chats[0].preview == "the first"
        assert back.chat.verify()["differences"] == []
        back.channels.publish("hall", b"new", user="ann")
        assert [message.data for message in back.channels.history("hall", user="ann")][-1] == b"new"
        back.chat.send("porch", "the second", user="eve")
        assert back.chat.inbox("eve").chats[0].preview == "the second"
        assert "damage=0" in again.log


def test_a_drill_says_whether_a_restore_would_work(daemon: Daemon, tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    daemon.client().publish_many("drilled", [b"x" * 100] * 1_200)
    directory = daemon.data.topic(daemon.client().state("drilled").topic_id)
    wait_until(lambda: any(directory.glob("*.tags")), "a sealed segment")
    made = create(daemon, shelf)
    report = json.loads(run_ctl(daemon, "backup", "drill", str(shelf), "--json").stdout)
    assert report["problems"] == []
    assert report["audit"]["records"] >= 1_200
    assert [path.name for path in shelf.iterdir() if path.name.startswith(".")] == []
    assert "would work" in run_ctl(daemon, "backup", "drill", str(shelf), "--no-daemon").stdout
    victim = next((Path(made["path"]) / "data" / "topics" / directory.name).glob("*.data"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.unlink()
    victim.write_bytes(content)
    done = run_ctl(daemon, "backup", "drill", str(shelf), "--json", code=1)
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert any("drilled" in line or victim.name in line for line in report["problems"])
    assert [path.name for path in shelf.iterdir() if path.name.startswith(".")] == []
