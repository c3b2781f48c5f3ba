"""status, shards, top, ping, metrics: the daemon about itself."""

from __future__ import annotations

import json

import pytest

import topicd
from tests.support.fakeserver import FakeServer
from tests.unit.cli.kit import Ctl, answer_status
from tests.unit.cli.samples import dlv, process, status, troubled, wal
from topicd import metrics
from topicd.cli.show.rates import process_rates, quantile, topic_rates, totals
from topicd.shards.process.histogram import BOUNDS_S


def test_status_is_0_when_all_serves_and_1_when_not(ctl: Ctl, server: FakeServer) -> None:
    answer_status(server, status())
    assert ctl("status").exit_code == 0
    answer_status(server, troubled())
    done = ctl("status")
    assert done.exit_code == 1
    assert "42% replay" in done.stdout
    assert "read-only after a disk failure; 2 write failures" in done.stdout
    assert "3 damaged places, run fsck; 1 checkpoint failure" in done.stdout


def test_status_says_which_places_are_damaged(ctl: Ctl, server: FakeServer) -> None:
    where = "/data/topics/1/seg-1.data: the data file is missing (seqs 801..1000, lost)"
    answer_status(server, status(processes=[process("supervisor", 1), dlv(0, 100, damage=3, damaged=[where])]))
    done = ctl("status")
    assert done.exit_code == 1
    assert f"dlv-00: 3 damaged places, run fsck\n  {where}\n" in done.stdout


def test_status_json_is_what_the_daemon_said(ctl: Ctl, server: FakeServer) -> None:
    answer_status(server, status())
    assert json.loads(ctl("status", "--json").stdout) == {**status(), "queues": []}


def test_a_failed_daemon_says_why(ctl: Ctl, server: FakeServer) -> None:
    answer_status(server, status(state="failed", failure="dlv-00 died 5 times"))
    done = ctl("status")
    assert done.exit_code == 1
    assert "failed: dlv-00 died 5 times" in done.stdout


def test_shards_json_has_the_counters_flat(ctl: Ctl, server: FakeServer) -> None:
    answer_status(server, status())
    found = json.loads(ctl("shards", "--json").stdout)
    assert [shard["name"] for shard in found["wal"]] == ["wal-00", "wal-01"]
    assert found["delivery"][0]["records"] == 1_000_000


def test_processes_without_stats_are_shown_too(ctl: Ctl, server: FakeServer) -> None:
    answer_status(server, troubled())
    assert ctl("shards").exit_code == 0
    assert ctl("top", "--once", "--interval", "0.1").exit_code == 0


def test_ping(ctl: Ctl) -> None:
    assert ctl("ping").stdout.startswith("pong in ")
    lines = ctl("ping", "--count", "3", "--interval", "0", "--json").stdout.splitlines()
    assert [json.loads(line)["ok"] for line in lines] == [True] * 3


def test_version_needs_no_daemon(ctl: Ctl, server: FakeServer) -> None:
    server.silence()
    assert ctl("version").stdout.startswith("topicctl 0.")
    assert ctl("--version").stdout == f"topicctl {topicd.__version__}\n"
    assert json.loads(ctl("version", "--json").stdout)["core"]


# ---- rates ----


def test_rates_are_differences_over_the_time_between() -> None:
    found = totals(status(0), status(2))
    assert (found.records_s, found.appends_s, found.groups_s) == (50_000, 5_000, 2_000)
    assert found.bytes_s == 8_000_000
    assert (found.topics, found.connections) == (24, 14)
    rows = {row.name: row for row in process_rates(status(0), status(2))}
    assert (rows["dlv-00"].records_s, rows["wal-00"].bytes_s, rows["wal-00"].ring) == (25_000, 4_000_000, 0.25)
    assert rows["supervisor"].records_s is None


def test_a_process_started_anew_counts_from_zero() -> None:
    before, after = status(0), status(2)
    after["processes"][3] = {**dlv(0, 600), "pid": 9999, "uptime_s": 0.5}
    after["processes"][4]["stats"] = None
    rows = {row.name: row for row in process_rates(before, after)}
    assert rows["dlv-00"].records_s == 1_200
    assert totals(before, after).records_s == 0  # and never negative


def test_rates_of_processes_that_come_and_go() -> None:
    before, after = status(0), status(1)
    before["processes"] = before["processes"][:2]
    assert totals(before, after).groups_s == 1_000
    assert totals(after, {**before, "uptime_s": after["uptime_s"] + 1}).records_s == 0


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ([0] * 13, 0.5, None),
        ([], 0.5, None),
        ([1] + [0] * 12, 0.99, BOUNDS_S[0]),
        ([50, 50] + [0] * 11, 0.5, BOUNDS_S[0]),
        ([50, 50] + [0] * 11, 0.99, BOUNDS_S[1]),
        ([0] * 12 + [1], 0.5, float("inf")),
    ],
)
def test_quantile_is_the_bound_of_its_bucket(counts: list[int], share: float, expected: float | None) -> None:
    assert quantile(counts, share) == expected


def test_top_as_json(ctl: Ctl, server: FakeServer) -> None:
    answer_status(server, status(0), status(1), status(2), status(3))
    lines = ctl("top", "--json", "--count", "2", "--interval", "0.1").stdout.splitlines()
    assert [json.loads(line)["totals"]["records_s"] for line in lines] == [50_000, 50_000]


def test_top_begins_anew_when_the_daemon_did(ctl: Ctl, server: FakeServer) -> None:
    again = status(0, instance="another", run=4, uptime_s=1.0)
    answer_status(server, status(0), again, {**again, "uptime_s": 2.0})
    line = json.loads(ctl("top", "--json", "--count", "1", "--interval", "0.1").stdout)
    assert (line["uptime_s"], line["totals"]["records_s"]) == (2.0, 0)


def test_top_knows_how_fast_consumers_catch_up(ctl: Ctl, server: FakeServer) -> None:
    answer_status(server, status(0), status(1))
    line = json.loads(ctl("top", "--json", "--count", "1", "--interval", "0.1").stdout)
    found = {(one["topic"], one["consumer"]): one for one in line["consumers"]}
    assert len(found) == 6
    search, billing = found["orders-0", "search"], found["orders-0", "billing"]
    assert (billing["acked_s"], billing["lag"], billing["lag_s"]) == (25_000, 12_000, 0)
    assert (search["acked_s"], search["lag_s"]) == (50_000, -25_000)
    assert next(topic["lag"] for topic in line["topics"] if topic["name"] == "orders-1") == 12_001


def test_top_by_consumer_once_and_refused_where_it_means_nothing(ctl: Ctl, server: FakeServer) -> None:
    answer_status(server, status(0), status(1))
    text = ctl("top", "--by", "consumer", "--once", "--interval", "0.1").stdout
    assert "billing" in text and "wal-00" not in text
    refused = ctl("top", "--by", "consumer", "--json", "--once")
    assert refused.exit_code == 2 and "--by" in refused.stderr


def test_top_wants_a_terminal(ctl: Ctl, server: FakeServer) -> None:
    answer_status(server, status())
    done = ctl("top")
    assert done.exit_code == 2 and "--once" in done.stderr


# ---- metrics ----


def test_metrics_are_prometheus_text(ctl: Ctl, server: FakeServer) -> None:
    answer_status(server, status())
    text = ctl("metrics").stdout
    assert 'topicd_records_total{shard="00"} 1000000\n' in text
    assert 'topicd_ring_used_bytes{wal="01",dlv="00"} 1048576\n' in text
    assert 'topicd_process_cpu_ratio{process="wal-00"} 0.324\n' in text
    assert 'topicd_loop_lag_seconds{shard="00"} 0.00125\n' in text
    assert 'topicd_serving{run="a81da7fa167af8c2"} 1\n' in text


def test_each_metric_has_one_head_before_its_lines() -> None:
    seen: list[str] = []
    for line in metrics.render(status()).splitlines():
        if line.startswith("# TYPE"):
            seen.append(line.split()[2])
        elif not line.startswith("#"):
            name = line.partition("{")[0].partition(" ")[0]
            assert (
                name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") == seen[-1] or name == seen[-1]
            )
    assert len(seen) == len(set(seen))


def test_the_sync_histogram_is_cumulative() -> None:
    lines = [line for line in metrics.render(status()).splitlines() if line.startswith("topicd_wal_sync_seconds")]
    buckets = [line for line in lines if 'shard="00"' in line and "_bucket" in line]
    values = [int(line.rpartition(" ")[2]) for line in buckets]
    assert values == sorted(values) and values[-1] == 20_400
    assert 'le="+Inf"' in buckets[-1]
    assert 'topicd_wal_sync_seconds_count{shard="00"} 20400' in lines


def test_bounds_are_those_of_the_wal_shards() -> None:
    assert metrics.SYNC_BOUNDS_S == BOUNDS_S


def test_metrics_of_a_daemon_in_trouble() -> None:
    text = metrics.render(troubled())
    assert 'topicd_serving{run="a81da7fa167af8c2"} 0\n' in text
    assert 'topicd_process_recovered_ratio{process="dlv-00"} 0.42\n' in text
    assert 'topicd_wal_read_only_errno{shard="00"} 28\n' in text


def test_labels_are_escaped() -> None:
    text = metrics.render(status(instance='a"\\\n', processes=[process("wal-00", 1), wal(1, 10, sync_histogram=[1])]))
    assert 'run="a\\"\\\\\\n"' in text
    assert "wal_sync_seconds" not in text  # buckets we do not know are left out


def test_status_of_the_pressure(ctl: Ctl, server: FakeServer) -> None:
    answer_status(server, status())
    assert "pressure" in ctl("status").stdout
    assert "0.31 (gather)" in ctl("status", "--pressure").stdout
    assert json.loads(ctl("status", "--pressure", "--json").stdout) == status()["pressure"]


@pytest.mark.parametrize("value", ["2", "-0.1", "much", "nan"])
def test_a_pressure_that_is_none_is_refused(ctl: Ctl, value: str) -> None:
    done = ctl("debug", "pressure", "--", value)
    assert done.exit_code == 2
    assert "from 0 to 1, or off" in done.stderr


def test_topics_that_grow_fastest_come_first() -> None:
    found = topic_rates(status(0), status(2))
    assert [(topic.name, topic.records_s, topic.priority) for topic in found][:2] == [
        ("orders-0", 25_000, 500),
        ("orders-1", 25_000, 500),
    ]
