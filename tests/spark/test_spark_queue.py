"""How a queue has done, on real Spark and without it."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from topicd.cli.main import main
from topicd.client.blocking.client import Client
from topicd.errors import NotAQueue
from topicd.spark.pipelines import queue_report
from topicd.spark.pipelines.place import connection_options
from topicd.spark.pipelines.session import LazySpark

HOUR_MS = 3_600_000
PAUSE_S = 0.06


class Without(LazySpark):
    def is_needless(self, records: int, size: int) -> bool:
        return True


@pytest.fixture(scope="module")
def queue(client: Client) -> str:
    """40 plain jobs, done at once; ten of a group, of which five run for a while, three fail first and two die."""
    name = "reported"
    jobs = client.queue(name)
    jobs.configure(keep_done_ms=HOUR_MS, max_deliveries=2, dead_letter=f"{name}.dead", backoff_ms=0)
    jobs.put_many([b"plain"] * 40)
    jobs.claim(40).done()
    jobs.put_many([b"grouped"] * 10, group="g")
    time.sleep(PAUSE_S)
    first = list(jobs.claim(10))
    for job in first[:3]:
        job.fail("the printer is on fire", delay_ms=0)
    for job in first[3:5]:
        job.dead("out of paper")
    time.sleep(PAUSE_S)
    for job in first[5:]:
        assert job.done()
    again = jobs.claim(10, wait=5)
    assert len(again) == 3 and not again.done().skipped
    deadline = time.monotonic() + 30
    while jobs.stats().dead_lettered < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return name


def test_a_report_has_every_job_and_every_letter(
    spark: Any, socket: str, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_report, "TILE", 17)
    monkeypatch.setattr(queue_report, "PAGE", 5)
    options = queue_report.Options(connection_options(socket, 60.0), queue)
    here = queue_report.run(Without(), options)
    assert queue_report.run(LazySpark(session=spark), options).to_json() == here.to_json()
    plain, group = here.rows
    assert (plain["group"], plain["done"], plain["retries"], plain["dead"]) == (None, 40, 0, 0)
    assert (group["group"], group["done"], group["retried"], group["retries"], group["dead"]) == ("g", 8, 3, 3, 2)
    pause_ms = PAUSE_S * 1000 - 2  # two clocks, each in whole milliseconds
    assert group["waiting_p50_ms"] >= pause_ms and group["running_p95_ms"] >= pause_ms
    assert plain["waiting_p99_ms"] is not None and plain["running_p50_ms"] <= plain["running_p99_ms"]
    assert here.totals["failures"] == [
        {"group": "g", "reason": "the printer is on fire", "jobs": 3},
        {"group": "g", "reason": "out of paper", "jobs": 2},
    ]


def test_the_command_line_has_it(
    spark: Any, socket: str, queue: str, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    def ran(*words: str) -> str:
        with pytest.raises(SystemExit) as left:
            main(["--socket", socket, "pipeline", "run", "queue-report", queue, *words])
        assert left.value.code in (None, 0)
        return capsys.readouterr().out

    assert json.loads(ran("--json"))["done"] == 48
    assert "48 jobs done, 3 retries, 2 dead letters" in ran()


def test_a_queue_that_keeps_nothing_says_so(socket: str, client: Client) -> None:
    jobs = client.queue("forgetful")
    jobs.configure(max_deliveries=3, dead_letter="forgetful.dead")  # which is not there yet
    jobs.put(b"x")
    jobs.claim().done()
    report = queue_report.run(Without(), queue_report.Options(connection_options(socket, 60.0), "forgetful"))
    assert report.rows == [] and "keep_done_ms is 0" in report.notes[0]


def test_a_log_has_no_report(socket: str, client: Client) -> None:
    client.publish("a.log", b"x")
    with pytest.raises(NotAQueue):
        queue_report.run(Without(), queue_report.Options(connection_options(socket, 60.0), "a.log"))


def test_percentiles_lie_between_two_values() -> None:
    assert [queue_report.percentile([1, 2, 3, 4], q) for q in (0.0, 0.5, 1.0)] == [1, 2.5, 4]
    assert queue_report.percentile([], 0.5) is None and queue_report.percentile([7], 0.99) == 7
