"""Every step of the ladder on a real daemon: forced by the debug request, it has the effect that its name says and goes
away again; and a WAL shard that stands still brings it about by itself.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.process.wire import Wire, batch, owner
from tests.support.daemon import Daemon, wait_until
from tests.support.web import Web
from topicd.client.core import requests
from topicd.errors import InvalidRequest, Throttled
from topicd.ipc.protocol.messages import Op
from topicd.ipc.protocol.wire import FLAG_PERFORMANCE
from topicd.metrics import render

SETTINGS: dict[str, Any] = {
    "wal_shards": 1,
    "delivery_shards": 1,
    "ring_bytes": "1536KiB",
    "wal_file_bytes": "4MiB",
    "heartbeat_timeout_s": 600,
}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    env = {"TOPICD_TEST_CLOCK": "1", "TOPICD_HTTP": "true", "TOPICD_HTTP_LISTEN": "127.0.0.1:0"}
    with Daemon(tmp_path_factory.mktemp("pressure"), env=env, **SETTINGS) as made:
        yield made


@pytest.fixture(autouse=True)
def no_pressure(daemon: Daemon) -> Iterator[None]:
    yield
    force(daemon, None)
    wait_until(lambda: not active(daemon), "the steps to end")


def force(daemon: Daemon, value: float | None) -> None:
    daemon.client()._caller.ask(requests.force_pressure(value))


def active(daemon: Daemon) -> set[str]:
    return {step["name"] for step in daemon.status()["pressure"]["steps"] if step["active"]}


def wire(daemon: Daemon) -> Wire:
    return Wire(owner(daemon.run.root, "any", 1))


def append_times(link: Wire, topic_id: int, times: int = 5) -> list[dict[str, float]]:
    told = [link.append(topic_id, [b"x"], flags=FLAG_PERFORMANCE).performance for _ in range(times)]
    return [one for one in told if one is not None]


def test_each_step_has_its_name_in_status_metrics_and_log(daemon: Daemon) -> None:
    assert active(daemon) == set()
    force(daemon, 0.99)
    wait_until(lambda: active(daemon) == {"gather", "widen", "pause", "refuse"}, "all steps")
    page = render(daemon.status())
    assert "topicd_pressure_ratio 0.99" in page
    assert 'topicd_pressure_step{step="pause"} 1' in page
    force(daemon, 0.5)
    wait_until(lambda: active(daemon) == {"gather", "widen"}, "two steps to end")
    assert 'topicd_pressure_step{step="pause"} 0' in render(daemon.status())
    said = daemon.log
    for step in ("gather", "widen", "pause", "refuse"):
        assert f"pressure: a step begins step={step} " in said
    assert "pressure: a step ends step=pause " in said


def test_pushes_are_gathered(daemon: Daemon) -> None:
    """Records that come one by one arrive in fewer pushes, all of them and in order."""
    link, reader = wire(daemon), wire(daemon)
    topic_id = link.open("gathered", durability="memory")
    subscription = reader.subscribe([{"topic": "gathered"}])
    tries = []
    for _ in range(10):  # a machine that is busy with other things spreads the records itself
        counts = []
        for value in (0.0, 0.79):
            force(daemon, value)
            for n in range(40):
                link.append(topic_id, [b"%d" % n])
            counts.append(len(pushes(reader, subscription, 40)))
        tries.append(counts)
        if counts[1] < counts[0] / 2:
            return
    raise AssertionError(f"pushes without and with gathering: {tries}")


def pushes(reader: Wire, subscription: int, records: int) -> list[list[bytes]]:
    found: list[list[bytes]] = []
    while sum(map(len, found)) < records:
        found.append(reader.pushed(subscription).datas)
    assert [data for push in found for data in push] == [b"%d" % n for n in range(records)]
    return found


def test_a_write_waits_in_the_commit_window_and_says_so(daemon: Daemon) -> None:
    link = wire(daemon)
    disk, synced = link.open("disk", durability="disk"), link.open("fsync", durability="fsync")
    for topic_id, needs_sync in ((disk, False), (synced, True)):
        told = append_times(link, topic_id)
        assert all(one["throttle_wait_ms"] == 0 for one in told)
        assert all(one["wal_append_ms"] > 0 for one in told)
        assert all((one["fsync_ms"] > 0) is needs_sync for one in told)
    force(daemon, 0.7)
    assert all(one["throttle_wait_ms"] >= 0.4 for one in append_times(link, disk))
    force(daemon, 0.0)
    assert all(one["throttle_wait_ms"] == 0 for one in append_times(link, disk))


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_over_http_a_write_says_what_it_waited_for_whatever_its_class(daemon: Daemon, durability: str) -> None:
    web, path = Web(daemon, "1.1"), f"/v0/topics/http.{durability}"
    web("PUT", path, {"durability": durability})
    assert told_over_http(web, path)["throttle_wait_ms"] == 0
    force(daemon, 0.7)
    waited = told_over_http(web, path)
    assert waited["throttle_wait_ms"] >= 0.4
    assert (waited["wal_append_ms"] > 0, waited["fsync_ms"] > 0) == (True, durability == "fsync")
    force(daemon, 0.0)
    assert told_over_http(web, path)["throttle_wait_ms"] == 0
    web.close()


def told_over_http(web: Web, path: str) -> dict[str, float]:
    found: dict[str, float] = web("POST", path, {"records": [{"data": 1}]}).body["performance"]
    return found


def test_a_negative_priority_is_not_pushed_but_can_be_read(daemon: Daemon) -> None:
    link, reader = wire(daemon), wire(daemon)
    low = link.open("low", durability="memory", priority=-5)
    high = link.open("high", durability="memory")
    subscription = reader.subscribe([{"topic": "low"}, {"topic": "high"}])
    force(daemon, 0.9)
    wait_until(lambda: "pause" in active(daemon), "the pause")
    link.append(low, [b"l"])
    link.append(high, [b"h"])
    assert reader.pushed(subscription).datas == [b"h"]
    assert link.fetch(low).datas == [b"l"]
    wait_until(lambda: daemon.stats("dlv-00")["parked_topics"] == 1, "it to be parked")
    force(daemon, 0.7)  # not low enough
    link.append(high, [b"i"])
    assert reader.pushed(subscription).datas == [b"i"]
    force(daemon, 0.5)
    assert reader.pushed(subscription).datas == [b"l"]


def test_a_wal_shard_that_stands_still_makes_writers_be_refused_and_goes_on(daemon: Daemon) -> None:
    link = wire(daemon)
    topic_id = link.open("stalled", durability="disk")
    said_before = len(daemon.log)
    daemon.kill("wal-00", signal.SIGSTOP)
    try:
        stored = []
        for n in range(30):  # 1.5 of the ring's 1.5 MiB
            stored.append(link.send_append(topic_id, batch([b"%d" % n + bytes(80_000)]), 1))
        wait_until(lambda: active(daemon) == {"gather", "widen", "pause", "refuse"}, "full pressure")
        with pytest.raises(Throttled) as refused:
            link.append(topic_id, [bytes(1_000)])
        assert refused.value.detail["limit"] == "pressure"
        assert refused.value.detail["retry_after_ms"] > 0
    finally:
        daemon.kill("wal-00", signal.SIGCONT)
    for request_id in stored:
        link.appended(request_id)
    wait_until(lambda: not active(daemon), "the steps to end")
    said = daemon.log[said_before:]
    for step in ("gather", "widen", "pause", "refuse"):
        assert said.index(f"a step begins step={step} ") < said.index(f"a step ends step={step} ")
    link.append(topic_id, [b"again"])
    found = [row.data.rstrip(b"\0") for row in link.read_all(topic_id)]
    assert found == [*(b"%d" % n for n in range(30)), b"again"]


def test_a_flood_that_checkpoints_cannot_follow_climbs_by_itself_and_comes_down(tmp_path: Path) -> None:
    """No debug request, no stopped process: writers that are faster than the disk, with little memory to wait in."""
    settings = {**SETTINGS, "checkpoint_bytes": "1MiB", "checkpoint_ms": 5_000}
    with Daemon(tmp_path, **settings) as flooded:
        links = [wire(flooded) for _ in range(4)]
        ids = [link.open(f"flood-{n}", durability="disk") for n, link in enumerate(links)]
        payload = [bytes(50_000)] * 10
        sent = [0] * len(links)
        deadline = time.monotonic() + 60
        while not {"gather", "widen"} <= active(flooded):
            assert time.monotonic() < deadline, flooded.status()["pressure"]
            for n, link in enumerate(links):
                requests_sent = [link.send_append(ids[n], batch(payload), len(payload)) for _ in range(8)]
                for request_id in requests_sent:
                    try:
                        link.appended(request_id)
                        sent[n] += len(payload)
                    except Throttled:
                        pass
        wait_until(lambda: not active(flooded), "the steps to end")
        assert [len(link.read_all(topic_id)) for link, topic_id in zip(links, ids, strict=True)] == sent


def test_one_that_reads_nothing_for_30_s_is_closed_with_a_reason_and_others_are_not(daemon: Daemon) -> None:
    link, stuck = wire(daemon), wire(daemon)
    topic_id = link.open("unread", durability="memory")
    stuck.subscribe([{"topic": "unread"}], credit=1 << 30)
    for _ in range(12):  # more than the sockets and its outbox hold
        link.append(topic_id, [bytes(600_000)])
    wait_until(lambda: daemon.stats("dlv-00")["lagging"] == 1, "it to lag")
    deadline = time.monotonic() + 60
    while not daemon.stats("dlv-00")["cut_off"]:
        assert time.monotonic() < deadline
        link.ask(Op.DEBUG, {"advance_ms": 16_000})
        time.sleep(1.1)
    *_, last = stuck.wait_closed()
    assert (last.request_id, last.op, last.map["code"]) == (0, Op.ERROR, "throttled")
    assert "has read nothing for 30 s" in last.map["message"]
    link.append(topic_id, [b"x"])


def test_a_watch_that_stood_still_for_long_goes_on_where_it_was(daemon: Daemon) -> None:
    client, link = daemon.client(), wire(daemon)
    topic_id = link.open("standing", durability="memory")
    before = daemon.stats("dlv-00")["cut_off"]
    with client.watch("standing", "earliest", batch_bytes=256 << 20) as watch:
        link.append(topic_id, [b"0"])
        assert next(watch).data == b"0"
        for n in range(1, 13):
            link.append(topic_id, [b"%d" % n + bytes(600_000)])
        deadline = time.monotonic() + 60
        while daemon.stats("dlv-00")["cut_off"] == before:
            assert time.monotonic() < deadline
            link.ask(Op.DEBUG, {"advance_ms": 16_000})
            time.sleep(1.1)
        found = [next(watch).data.rstrip(b"\0") for _ in range(12)]
        assert found == [b"%d" % n for n in range(1, 13)]


def test_without_the_test_clock_nobody_forces_anything(tmp_path: Path) -> None:
    with Daemon(tmp_path, wal_shards=1, delivery_shards=1) as plain:
        with pytest.raises(InvalidRequest, match="need the test clock"):
            force(plain, 0.5)
        assert plain.status()["pressure"]["value"] == 0
