"""One process is killed while producers and a watcher run: the others go on, and nothing is lost, doubled or missed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.load import Producer, Watcher, wait_for_acks
from tests.support.daemon import LIVELY, SUPERVISOR, Daemon, drain_topic, wait_until
from tests.support.oracle import Oracle, seen
from topicd.client.blocking.client import Client
from topicd.errors import ConnectionLost, Throttled
from topicd.ipc import shm
from topicd.placement import delivery_shard, wal_shard

CLASSES = ("fsync", "disk", "memory")
SHARDS = 2


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path, wal_shards=SHARDS, delivery_shards=SHARDS, **LIVELY) as started:
        yield started


class Load:
    """Producers on topics of every class and shard, and a watcher of them all."""

    def __init__(self, daemon: Daemon) -> None:
        self.daemon = daemon
        self.oracle = Oracle()
        self.topics = [f"{cls}-{n}" for cls in CLASSES for n in range(4)]
        client = daemon.client()
        for topic in self.topics:
            client.configure(topic, durability=topic.split("-")[0])
        self.watcher = Watcher(daemon.run.root, self.topics)
        self.watcher.start()
        assert self.watcher.opened.wait(60)
        self.producers = [Producer(f"p{n}", daemon.run.root, self.oracle, self.topics, n) for n in range(2)]
        for producer in self.producers:
            producer.start()
            producer.go()

    def progress(self, acks: int = 20) -> None:
        wait_for_acks(self.producers, acks, lambda: None, 60)

    def finish(self) -> None:
        """Stop the load and compare everything."""
        for producer in self.producers:
            producer.stop()
            assert producer.error is None, repr(producer.error)
        client = self.daemon.client()
        problems = []
        for topic in self.topics:
            found = seen(drain_topic(client, topic))
            problems += self.oracle.check(topic, found, head_seq=client.state(topic).head_seq)
            newest = found[-1].seq if found else 0
            wait_until(
                lambda topic=topic, newest=newest: self.watcher.newest(topic) >= newest, f"the watcher of {topic}"
            )
            problems += self.oracle.check_watched(topic, self.watcher.seen[topic], found)
        self.watcher.stop()
        assert not problems, "\n".join(problems)
        assert self.watcher.error is None, repr(self.watcher.error)
        assert not self.watcher.gaps


def bystander(client: Client, victim: str) -> str:
    """A topic that needs nothing of the victim."""
    kind, number = victim.split("-")
    for n in range(100):
        name = f"bystander-{n}"
        client.configure(name, durability="fsync")
        owners = {
            "dlv": delivery_shard(name, SHARDS),
            "wal": wal_shard(client.state(name).topic_id, SHARDS),
        }
        if owners[kind] != int(number):
            return name
    raise AssertionError("no topic lives elsewhere")


@pytest.mark.fault("PROC-01", "PROC-02")
@pytest.mark.parametrize("victim", ["wal-00", "wal-01", "dlv-00", "dlv-01"])
def test_killed_shard_comes_back_and_nothing_is_lost_doubled_or_missed(daemon: Daemon, victim: str) -> None:
    load = Load(daemon)
    load.progress()
    other = bystander(daemon.client(), victim)
    for _ in range(2):
        client = daemon.client(timeout=30)
        # Stopped first, so that it is certain that the bystander is served while the victim is away.
        pid = daemon.kill(victim, signal.SIGSTOP)
        client.publish(other, b"meanwhile")
        os.kill(pid, signal.SIGKILL)
        client.publish(other, b"meanwhile")
        daemon.wait_replaced(victim, pid)
        load.progress()
    load.finish()


@pytest.mark.fault("PROC-04")
def test_killed_supervisor_takes_its_children_along_and_a_start_goes_on(daemon: Daemon) -> None:
    load = Load(daemon)
    load.progress()
    daemon.kill(SUPERVISOR)
    daemon.wait_children_gone()
    daemon.start().wait_ready()
    load.progress()
    load.finish()


@pytest.mark.fault("PROC-04")
def test_children_leave_in_time_though_nobody_takes_what_they_wait_for(tmp_path: Path) -> None:
    """The supervisor is dead and so are the WAL shards: a delivery shard with records on their way does not wait for
    them, or the next start would have to."""
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, **LIVELY, heartbeat_timeout_s=600) as daemon:
        client, oracle = daemon.client(), Oracle()
        client.configure("m", durability="memory")
        client.configure("f", durability="fsync")
        stopped = daemon.kill("wal-00", signal.SIGSTOP)
        for n in range(20):
            oracle.acked(oracle.submit("m", "p", [b"%d" % n]), client.publish("m", b"%d" % n))
        with pytest.raises(ConnectionLost):
            daemon.client(timeout=0.5).publish("f", b"on its way")
        daemon.kill(SUPERVISOR)
        os.kill(stopped, signal.SIGKILL)
        daemon.settings |= {"stop_timeout_s": 3.0}  # so long the start waits
        daemon.start().wait_ready()
        assert oracle.check("m", seen(drain_topic(client, "m"))) == []


@pytest.mark.fault("PROC-03")
def test_rings_of_a_killed_run_are_drained_by_the_next_start(daemon: Daemon) -> None:
    """The WAL shards are stopped, so what is acknowledged as `memory` lies in the rings and nowhere else."""
    client, oracle = daemon.client(), Oracle()
    for topic in ("memory-0", "memory-1"):
        client.configure(topic, durability="memory")
    for name in ("wal-00", "wal-01"):
        daemon.kill(name, signal.SIGSTOP)
    for n in range(50):
        for topic in ("memory-0", "memory-1"):
            batch = oracle.submit(topic, "p", [f"{n}".encode()])
            oracle.acked(batch, client.publish(topic, batch.payloads[0]))
    daemon.kill_all()
    daemon.settings |= {"wal_shards": 1, "delivery_shards": 1}
    daemon.start().wait_ready()
    assert "rings of the killed run drained" in daemon.log
    for topic in ("memory-0", "memory-1"):
        assert oracle.check(topic, seen(drain_topic(client, topic))) == []
    assert len([instance for instance in daemon.instances() if shm.names_of(instance)]) == 1


@pytest.mark.fault("PROC-07")
def test_shared_memory_that_vanished_costs_only_what_was_in_it(daemon: Daemon) -> None:
    """As after a loss of power: what fsync promised is there, and a disk topic gives no seq out twice."""
    client, oracle = daemon.client(), Oracle()
    for topic in ("fsync-0", "disk-0"):
        client.configure(topic, durability=topic.split("-")[0])
        batch = oracle.submit(topic, "p", [b"a", b"b"])
        oracle.acked(batch, client.publish_many(topic, batch.payloads).first_seq)
    daemon.kill_all()
    for instance in daemon.instances():
        for name in shm.names_of(instance):
            shm.unlink(name)
    daemon.start().wait_ready()
    for topic in ("fsync-0", "disk-0"):
        assert oracle.check(topic, seen(drain_topic(client, topic))) == []
    assert client.publish("fsync-0", b"c") == 3
    assert client.publish("disk-0", b"c") >= 3


@pytest.mark.fault("PROC-08")
def test_stopped_wal_shard_makes_writers_wait_and_memory_does_not_grow(tmp_path: Path) -> None:
    settings = {**LIVELY, "heartbeat_timeout_s": 600, "max_inflight_bytes": "1MiB"}
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1, **settings) as daemon:
        client, oracle = daemon.client(), Oracle()
        client.configure("m", durability="memory")
        impatient = daemon.client(timeout=0.5)
        oracle.acked(oracle.submit("m", "p", [b"first"]), impatient.publish("m", b"first"))
        pid = daemon.kill("wal-00", signal.SIGSTOP)
        refused = 0
        for n in range(30):
            batch = oracle.submit("m", f"p{n}", [f"{n}/".encode().ljust(300_000, b".")])
            try:
                oracle.acked(batch, impatient.publish("m", batch.payloads[0]))
            except Throttled:
                refused += 1
                break
            except ConnectionLost:
                continue  # it waits for room in the ring; its outcome is open
        assert refused, "nine megabytes fit into a ring of one and a half"
        assert daemon.stats("dlv-00").get("in_flight_bytes", 0) <= 2 << 20
        os.kill(pid, signal.SIGCONT)
        oracle.acked(oracle.submit("m", "q", [b"last"]), client.publish("m", b"last"))
        assert oracle.check("m", seen(drain_topic(client, "m"))) == []


@pytest.mark.fault("PROC-09")
def test_clean_stop_under_load_answers_or_refuses_everything(daemon: Daemon) -> None:
    load = Load(daemon)
    load.progress()
    stopped = daemon.stop()
    assert stopped.code == 0
    assert stopped.seconds < 10
    assert daemon.shm_left() == []
    daemon.start().wait_ready()
    load.progress()
    load.finish()


@pytest.mark.fault("ROT-04")
def test_second_daemon_on_the_directory_is_refused(daemon: Daemon, tmp_path: Path) -> None:
    second = Daemon(tmp_path / "second", wal_shards=1, delivery_shards=1)
    second.data = daemon.data
    second.start()
    wait_until(lambda: not second.running, "the second daemon to give up")
    assert second.exit_code == 3
    assert str(daemon.pid) in second.log
    assert daemon.client().publish("still", b"served") == 1
