"""Metrics and health of a real daemon: what was done is what is shown."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support import webget as http
from tests.support.daemon import Daemon, wait_until
from tests.support.promtext import Exposition
from tests.support.stub_harness import stub_daemons, wait_for
from topicd import metrics
from topicd.client.blocking.client import Client
from topicd.placement import delivery_shard


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


PORT = free_port()
SETTINGS = {"metrics_port": PORT}


@pytest.fixture
def client(module_daemon: Daemon) -> Iterator[Client]:
    with module_daemon.client() as made:
        yield made


def scrape(daemon: Daemon) -> Exposition:
    found = http.get(daemon.run.metrics_socket, "/metrics")
    assert (found.status, found.content_type) == (200, metrics.CONTENT_TYPE)
    return Exposition(found.body)


def scrape_until(daemon: Daemon, condition: Callable[[Exposition], bool], what: str) -> Exposition:
    """Shards publish their figures once a second."""
    seen: list[Exposition] = []

    def look() -> bool:
        seen[:] = [scrape(daemon)]
        return condition(seen[0])

    wait_until(look, what)
    return seen[0]


def test_a_consumer_that_is_behind_is_shown_with_its_lag(module_daemon: Daemon, client: Client) -> None:
    client.publish_many("followed", [b"x"] * 5)
    with client.consumer("followed", "billing") as consumer:
        consumer.ack_to(next(consumer))
    labels = {"topic": "followed", "consumer": "billing"}
    found = scrape_until(module_daemon, lambda page: page.has("topicd_consumer_lag_records", **labels), "the consumer")
    assert found.value("topicd_consumer_lag_records", **labels) == 4
    assert found.value("topicd_consumer_acked_seq", **labels) == 1


def baseline(daemon: Daemon, topic: str) -> tuple[str, Exposition]:
    """(the topic's shard, a page that shard published after the topic was made and therefore after all before it)."""
    page = scrape_until(daemon, lambda page: page.has("topicd_topic_head_seq", topic=topic[:64]), "the topic")
    return f"{delivery_shard(topic, 2):02d}", page


def test_a_scrape_is_well_formed_and_shows_every_process(module_daemon: Daemon) -> None:
    found = scrape_until(module_daemon, lambda page: page.has("topicd_topics", shard="01"), "both shards")
    assert found.value("topicd_serving") == 1
    for name in ("supervisor", "wal-00", "wal-01", "dlv-00", "dlv-01"):
        assert found.value("topicd_process_serving", process=name) == 1
        assert found.value("topicd_process_resident_bytes", process=name) > 1_000_000
    assert found.has("topicd_ring_used_bytes", wal="01", dlv="00")
    assert found.value("topicd_ring_capacity_bytes", shard="00") == 1536 * 1024
    known = {f"topicd_{metric.name}": metric.kind for metric in metrics.METRICS}
    assert found.kinds.items() <= known.items()
    # Chat is not on here; topics and routers there may be none of.
    absent = (*metrics.TOPIC, *metrics.ROUTER, metrics.ROUTER_WAITING, *metrics.CHAT.values())
    assert set(known) - set(found.kinds) <= {f"topicd_{metric.name}" for metric in absent}


def test_appends_are_counted(module_daemon: Daemon, client: Client, topic: str) -> None:
    client.configure(topic, durability="fsync")
    shard, before = baseline(module_daemon, topic)
    for _ in range(5):
        client.publish_many(topic, [b"x" * 100] * 10)
    after = scrape_until(
        module_daemon, lambda page: page.value("topicd_topic_records", topic=topic) == 50, "50 records"
    )

    def grown(name: str) -> float:
        return after.value(name, shard=shard) - before.value(name, shard=shard)

    assert grown("topicd_records_total") == 50
    assert grown("topicd_appends_total") == 5
    assert after.value("topicd_topic_head_seq", topic=topic) == 50
    assert after.value("topicd_topic_bytes", topic=topic) >= 5000

    def durable(page: Exposition) -> bool:
        syncs = page.value("topicd_wal_syncs_total") - before.value("topicd_wal_syncs_total")
        written = page.value("topicd_wal_bytes_total") - before.value("topicd_wal_bytes_total")
        return syncs >= 5 and written >= 5000

    found = scrape_until(module_daemon, durable, "the WAL's figures")
    assert found.value("topicd_wal_sync_seconds_count") == found.value("topicd_wal_sync_seconds_bucket", le="+Inf")
    assert found.value("topicd_wal_sync_seconds_count") > 0
    assert found.value("topicd_wal_sync_seconds_sum") > 0


def test_what_caps_and_deletes_remove_and_who_is_told_is_counted(
    module_daemon: Daemon, client: Client, topic: str
) -> None:
    client.configure(topic, cap_records=10)
    shard, before = baseline(module_daemon, topic)
    for _ in range(5):
        client.publish_many(topic, [b"x"] * 5)
    assert client.fetch(topic, 0).tombstone is not None
    client.delete(topic, before_seq=20)
    wanted = {"topicd_evicted_total": 15, "topicd_tombstones_total": 1, "topicd_deleted_total": 4}
    scrape_until(
        module_daemon,
        lambda page: all(
            page.value(n, shard=shard) - before.value(n, shard=shard) == count for n, count in wanted.items()
        ),
        str(wanted),
    )


def test_the_lag_of_a_named_consumer_is_shown(module_daemon: Daemon, client: Client, topic: str) -> None:
    client.publish_many(topic, [b"x"] * 7)
    with client.consumer(topic, "worker", auto_ack=False) as consumer:
        next(iter(consumer))
        consumer.ack(1)
        name = "topicd_topic_consumer_lag_records"
        scrape_until(module_daemon, lambda page: page.value(name, topic=topic) == 6, "the lag")


def test_connections_are_shown(module_daemon: Daemon, topic: str) -> None:
    module_daemon.client().publish(topic, b"x")
    scrape_until(module_daemon, lambda page: page.value("topicd_connections") >= 1, "the connection")


def test_health_ready_and_nothing_else(module_daemon: Daemon) -> None:
    for where in (module_daemon.run.metrics_socket, PORT):
        assert http.get(where, "/health")[0] == 200
        assert http.get(where, "/ready") == (200, "text/plain; charset=utf-8", "serving: 4 processes\n")
        assert http.get(where, "/metrics?x=1")[0] == 200
        for path in ("/", "/metrics/", "/nothing"):
            assert http.get(where, path)[0] == 404
        assert http.get(where, "/metrics", "POST")[0] == 404


def test_only_loopback_is_listened_on(module_daemon: Daemon) -> None:
    local = {line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]}
    assert {address for address in local if address.endswith(f":{PORT:04X}")} == {f"0100007F:{PORT:04X}"}


def test_topicctl_prints_the_same_series(module_daemon: Daemon) -> None:
    command = [sys.executable, "-m", "topicd.cli.main", "metrics", "--socket", str(module_daemon.run.root)]
    printed = Exposition(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert set(printed.samples) == set(scrape(module_daemon).samples)


def test_a_restart_is_counted(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1) as daemon:
        assert scrape(daemon).value("topicd_process_restarts_total") == 0
        daemon.wait_replaced("dlv-00", daemon.kill("dlv-00"))
        assert scrape(daemon).value("topicd_process_restarts_total", process="dlv-00") == 1
        daemon.stop()
        assert not daemon.run.metrics_socket.exists()


def test_ready_says_how_far_recovery_is(tmp_path: Path) -> None:
    with stub_daemons(tmp_path / "d") as make:
        daemon = make({"wal-00": {"slow": 3600}}).start().wait_answering()
        where = daemon.root / "run" / "metrics.sock"
        wait_for(lambda: "wal-00 recovering 50 %" in http.get(where, "/ready").body, "progress")
        found = http.get(where, "/ready")
        assert found.status == 503
        assert "% recovered; starting: " in found.body
        assert http.get(where, "/health").status == 200
        assert Exposition(http.get(where, "/metrics").body).value("topicd_serving") == 0


def test_a_taken_port_refuses_the_start(tmp_path: Path, module_daemon: Daemon) -> None:
    daemon = Daemon(tmp_path, metrics_port=PORT)
    try:
        daemon.start()
        wait_until(lambda: not daemon.running, "the refusal")
        assert f"metrics_port: cannot listen on 127.0.0.1:{PORT}: Address already in use" in daemon.log
    finally:
        daemon.close()
