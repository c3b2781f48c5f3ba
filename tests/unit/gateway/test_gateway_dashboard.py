"""What the dashboard is told, made of what was seen: problems, rates, records as text."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest

from topicd.config import Settings
from topicd.gateway.dashboard.problems import Problem, problems
from topicd.gateway.dashboard.pulse import Pulse, rates, summed, told, topic_rates, without_names
from topicd.gateway.dashboard.showing import HEX_MAX, TEXT_MAX, shown
from topicd.gateway.dashboard.surroundings import Surroundings
from topicd.gateway.keys import Keys
from topicd.gateway.stats import StatsFeed

NOW = 1_800_000_000_000
GIB = 1 << 30


def process(name: str, state: str = "serving", **stats: Any) -> dict[str, Any]:
    row = {"name": name, "state": state, "restarts": 0, "uptime_s": 999.0, "percent": 100.0, "what": "", "pid": 7}
    return {**row, "cpu": 1.0, "rss": 5, "stats": stats}


def status(*processes: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"state": "serving", "failure": "", "pressure": {"value": 0.0, "steps": []}, "processes": processes, **more}


def wrong(*processes: dict[str, Any], around: Any = None, consumers: Any = (), **more: Any) -> list[Problem]:
    return problems(status(*processes, **more), around or {}, list(consumers), NOW)


def test_nothing_is_wrong_with_a_daemon_that_is_well() -> None:
    well = {"disk": {"free": 50 * GIB, "size": 100 * GIB}, "ending": []}
    assert wrong(process("wal-00", ring_used=[10], ring_capacity=100), around=well) == []


@pytest.mark.parametrize(
    ("given", "level", "words"),
    [
        (process("dlv-00", "starting"), "bad", "dlv-00 is away"),
        ({**process("dlv-00", "recovering"), "percent": 41.0}, "warn", "recovering: 41 %"),
        ({**process("dlv-00"), "restarts": 1, "uptime_s": 3.0}, "warn", "started anew 3 s ago"),
        (process("wal-00", read_only=5), "bad", "read-only"),
        (process("dlv-00", damage=2), "bad", "2 places cannot be read"),
        (process("dlv-00", snapshot_failing=1), "bad", "snapshots fail"),
        (process("wal-00", ring_used=[90], ring_capacity=100), "warn", "ring is almost full"),
        (process("dlv-00", stopped_queues=[["q", "paused", "user", "lunch"]]), "warn", "queue q is paused: lunch"),
        (process("dlv-00", stopped_queues=[["q", "paused", "breaker", "5 failed"]]), "bad", "queue q stopped itself"),
        (process("dlv-00", top_routers=[["a->b", 1, 9, "b is full"]]), "warn", "stands still, 9 behind: b is full"),
    ],
)
def test_each_trouble_is_named(given: dict[str, Any], level: str, words: str) -> None:
    (found,) = wrong(given)
    assert found.level == level and words in found.text and found.link.startswith("#/")


def test_a_disk_pressure_and_ends_are_named_worst_first() -> None:
    day = 86_400_000
    around = {
        "disk": {"free": 5 * GIB, "size": 100 * GIB},
        "ending": [["token", "spark", NOW + 5 * day], ["certificate", "/c.pem", NOW - day]],
    }
    step = {"name": "refuse", "active": True, "effect": "writes are throttled"}
    found = wrong(around=around, pressure={"value": 0.97, "steps": [step]})
    assert [one.level for one in found] == ["bad", "bad", "warn", "warn"]
    text = " / ".join(one.text for one in found)
    assert "certificate /c.pem has ended" in text and "token spark ends in 5 days" in text and "5%" in text


def test_consumers_that_stall_or_lag_are_told_apart() -> None:
    rows = [
        {"name": "a", "topic": "t/x", "lag": 3, "updated_ts": NOW - 120_000},
        {"name": "b", "topic": "t", "lag": 20_000, "updated_ts": NOW - 1_000},
        {"name": "c", "topic": "t", "lag": 5, "updated_ts": NOW - 1_000},
        {"name": "d", "topic": "t", "lag": 0, "updated_ts": NOW - 999_000},
    ]
    stalled, lagging = wrong(consumers=rows)
    assert "nothing for 2 min, 3 behind" in stalled.text and stalled.link == "#/topics/t%2Fx"
    assert "20,000 records behind" in lagging.text


def test_rates_and_quantiles_are_of_what_came_in_between() -> None:
    def seen(records: int, syncs: list[int], head: int) -> dict[str, Any]:
        shard = process("dlv-00", records=records, delivered=2 * records, top_topics=[["t", head, 1, 1, 0, 0]])
        return status(shard, process("wal-00", sync_histogram=syncs, bytes=0, syncs=sum(syncs)))

    before, after = summed(seen(100, [5, 0, 0], 10), 10.0), summed(seen(300, [5, 98, 2], 30), 12.0)
    found = rates(before, after)
    assert (found["in"], found["out"], found["syncs"]) == (100.0, 200.0, 50.0)
    assert found["sync"] == [0.1, 0.2]  # upper bounds of their buckets, in ms
    assert topic_rates(before, after) == {"t": 10.0}
    # A shard that was started anew counts from 0 again.
    assert rates(after, summed(seen(20, [0, 0, 0], 30), 13.0))["in"] == 20.0


def test_somebody_who_may_not_read_learns_no_names() -> None:
    rows = [["secret-topic", 5, 5, 5, 0, 0]]
    given = status(process("dlv-00", top_topics=rows, stopped_queues=[["secret-q", "paused", "user", ""]]))
    given["processes"][0]["stats"]["warnings"] = [[1, "warning", "topic=secret-topic"]]
    tick = told(given, rates(None, summed(given, 0.0)), {})
    tick["problems"] = [one.row() for one in problems(given, {}, [], NOW)]
    assert "secret" in str(tick)
    assert "secret" not in str(without_names(tick))


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (b'{"big":12345678901234567890,"a":1.0}', "json", '{\n  "big": 12345678901234567890,\n  "a": 1.0\n}'),
        (b"<img src=x onerror=alert(1)>", "text", "<img src=x onerror=alert(1)>"),
        ("grüße\n".encode(), "text", "grüße\n"),
        (b"\x00\xff\x10", "binary", "00ff10"),
        (b"", "text", ""),
    ],
)
def test_records_are_shown_as_what_they_are(data: bytes, kind: str, text: str) -> None:
    row = shown((7, 1, b"node", b"tag", b"", data))
    assert (row["kind"], row["text"], row["cut"], row["tag"], row["node"]) == (kind, text, False, "tag", "node")


def test_large_records_are_cut() -> None:
    long, binary = shown((1, 1, b"", b"", b"", b"a" * 10**6)), shown((1, 1, b"", b"", b"", b"\x00" * 10**6))
    assert long["cut"] and len(long["text"]) == TEXT_MAX and long["size"] == 10**6
    assert binary["cut"] and len(binary["text"]) == 2 * HEX_MAX


def test_a_certificate_that_ends_soon_is_found(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    curve = "-newkey ec -pkeyopt ec_paramgen_curve:P-256"
    made = f"openssl req -x509 {curve} -nodes -days 3 -subj /CN=x -keyout {key} -out {cert}"
    subprocess.run(made.split(), check=True, capture_output=True)
    settings = Settings().replace(tls_cert=str(cert), data_dir=tmp_path)
    look = Surroundings(settings, Keys(None, lambda: 0, lambda: 0.0))
    from topicd.clock import SystemClock

    now = SystemClock().now_ms()
    found = look.look(now, 0.0)
    ((what, name, ends),) = found["ending"]
    assert (what, name) == ("certificate", str(cert))
    assert 2.9 < (ends - now) / 86_400_000 < 3.1
    assert found["disk"]["size"] > found["disk"]["free"] > 0
    assert look.look(now - 30 * 86_400_000, 100.0)["ending"] == []


class Supervisor:
    """Counts how often it is asked."""

    count = 1

    def __init__(self) -> None:
        self.asked = 0

    async def ask_supervisor(self, message: Any) -> dict[str, Any]:
        self.asked += 1
        return status(process("dlv-00", records=self.asked))

    async def ask_all(self, message: Any) -> list[dict[str, Any]]:
        return [{"topics": []}]


def test_one_look_serves_all_pages_and_none_is_made_for_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("topicd.gateway.stats.PERIOD_S", 0.01)

    async def run() -> None:
        supervisor: Any = Supervisor()
        surroundings = Surroundings(Settings().replace(data_dir=tmp_path), Keys(None, lambda: 0, lambda: 0.0))
        pulse = Pulse(StatsFeed(supervisor), supervisor, surroundings, lambda: NOW)
        ticks: list[list[bytes]] = [[] for _ in range(10)]
        ends = [pulse.watch(lambda whole, bare, page=page: page.append(whole)) for page in ticks]
        while min(map(len, ticks)) < 3:
            await asyncio.sleep(0.005)
        assert supervisor.asked <= len(ticks[0]) + 1
        for end in ends:
            end()
        await asyncio.sleep(0.03)
        asked = supervisor.asked
        await asyncio.sleep(0.1)
        assert supervisor.asked == asked

    asyncio.run(run())
